"""Requests to read uploads, sources or a document again, in the option names of `pagemill add`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Struct

from job_handlers.crawl.requests import SourceOptions, jobs_of_request
from job_handlers.reading.find_files import LeftOut
from job_handlers.reading.requests import ReadOptions, download_job, parse_options, reindex_job
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.jobs.batches import BatchAdded, InBatch
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.jobs.library import Document
from worker_service.services import batches, exports, notifications, passwords
from worker_service.services.enqueue import check_action_payload, enqueue_job, uninstalled_choice_warnings
from worker_service.services.failures import dismiss_replaced
from worker_service.services.page_images import NoPageImage, PageLocked, PageRenderer, check_password
from worker_service.services.passwords import DocumentPassword
from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.error_responses import NotAllowed
from worker_service.web.multipart import ReceivedForm
from worker_service.web.parameters import about, parse_number
from worker_service.web.resources.jobs import owner_for, refuse_server_files

OptionValues = Mapping[str, Sequence[str]]
"""Values of the options of `pagemill add`, by name without dashes."""

BATCH_JOBS_MAX = 10_000
"""A batch is one transaction, and all other writers wait for it."""

_NAME_CHARACTERS_MAX = 40
_SOURCE_NAMES_MAX = 100
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
_FIELDS_BESIDE_OPTIONS = ("owner", "force", "csrf", "notify", "replaces")


class ReadRequest(Struct, frozen=True):
    id: Annotated[int | None, about("Job id; null: there is nothing to do.")]
    existing: bool
    document_id: int | None
    decision: str | None
    lacking: Annotated[Sequence[str], about("Missing programs or models that the job waits for.")]

    @classmethod
    def from_enqueued(cls, job: Enqueued, lacking: Sequence[str]) -> ReadRequest:
        return cls(job.job_id or None, job.existing, job.document_id, job.decision, lacking)


class SourceJobs(Struct, frozen=True):
    jobs: Sequence[NewJob]
    lacking: Sequence[str]
    left_out: Mapping[str, int]
    left_out_files: Sequence[Mapping[str, str]] = ()


class SubmittedFiles(NamedTuple):
    requests: Sequence[ReadRequest]
    batch_id: int | None


def submit_files(
    session: Session,
    files: Sequence[Path],
    values: OptionValues,
    *,
    owner: str,
    is_forced: bool = False,
    notify: str = "",
) -> SubmittedFiles:
    """Enqueue the files: several, or with `notify`, as a batch."""
    options = parse_options(ReadOptions, values)
    lacking = _check_options(session, options)
    jobs = [download_job(file, options, owner=owner, is_forced=is_forced) for file in files]
    if len(jobs) == 1 and not notify:
        # As a batch, each upload of a loop could make the one before wait (owner_policy).
        return SubmittedFiles([ReadRequest.from_enqueued(enqueue_job(session, jobs[0]), lacking)], None)
    names = [file.name for file in files]
    name = names[0][:_NAME_CHARACTERS_MAX] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    request = batches.BatchRequest(owner, name, asked={"sources": names[:_SOURCE_NAMES_MAX]}, notify=notify)
    added: BatchAdded | None
    items: Sequence[InBatch]
    if notify:
        # Also without a new job, or no message would be sent.
        added = batches.add_batch(session, jobs, request)
        items = added.jobs
    else:
        submitted = batches.submit_batch(session, jobs, request)
        items, added = submitted.items, submitted.added
    requests = [
        ReadRequest(item.job_id or None, item.existing, item.document_id, item.decision, lacking) for item in items
    ]
    return SubmittedFiles(requests, None if added is None else added.batch.id)


def notify_address(session: Session, text: str, *, owner: str) -> str:
    """Raise `NotAllowed` if only the administrator may name the address."""
    address = notifications.read_address(session, text.strip(), owner=owner)
    if not notifications.is_allowed_address(session, address, owner=owner):
        raise NotAllowed(
            "only your own address and those that the setting notify_allow lists can be notified", "write me"
        )
    return address


def submit_reindex(session: Session, document_id: int, values: OptionValues, *, is_forced: bool = False) -> ReadRequest:
    document = session.library.document(document_id)
    options = parse_options(ReadOptions, values)
    lacking = _check_options(session, options)
    if options.as_usual:
        # `as-usual` drops the document's own settings; its password is one of them.
        passwords.forget(session.settings.workspace, document)
    has_original = exports.has_original(session, document)
    job = reindex_job(document, options, has_original=has_original, is_forced=is_forced)
    return ReadRequest.from_enqueued(enqueue_job(session, job), lacking)


class WrongPassword(BadInput, code="wrong_password"): ...


def unlock_document(
    session: Session, renderer: PageRenderer, document: Document, password: str, *, is_kept: bool
) -> ReadRequest:
    """Store the password if it opens the PDF, and have the document read. Otherwise raise `WrongPassword`."""
    workspace = session.settings.workspace
    key = (document.platform, document.owner, document.source_key)
    previous = passwords.find(workspace, document)
    passwords.save(workspace, DocumentPassword(*key, passwords.check(password), is_kept))
    try:
        check_password(session, renderer, document)
    except NoPageImage as error:
        if previous is None:
            passwords.forget(workspace, document)
        else:
            passwords.save(workspace, previous)
        if not isinstance(error, PageLocked):
            raise
        remedy = "type it again; capital letters and the language of the keyboard matter"
        raise WrongPassword("this password does not open the PDF", remedy) from error
    return submit_reindex(session, document.id, {})


def source_jobs(
    session: Session, visitor: Visitor, sources: Sequence[object], values: OptionValues, *, owner: str
) -> SourceJobs:
    refuse_server_files(visitor, [sources, values])
    options, left_out = parse_options(SourceOptions, values), LeftOut()
    jobs = jobs_of_request(sources, options, owner=owner, left_out=left_out)
    if len(jobs) > BATCH_JOBS_MAX:
        raise BadInput(
            f"this would be {counted(len(jobs), 'job')}, and a batch has at most {BATCH_JOBS_MAX:,}", "split it"
        )
    return SourceJobs(jobs, _check_options(session, options), dict(left_out.counts), left_out.files)


def _check_options(session: Session, options: ReadOptions) -> Sequence[str]:
    """Raise an error for invalid options; return what the machine lacks."""
    for action in options.actions():
        check_action_payload(session, action)
    return uninstalled_choice_warnings(session, options.reading_settings())


# ── Uploads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Upload(Struct, frozen=True):
    accepted: Sequence[tuple[str, ReadRequest]]  # name of the file, request
    empty_names: Sequence[str]
    batch_id: int | None


def submit_upload(session: Session, visitor: Visitor, form: ReceivedForm) -> Upload:
    """Submit the files that are not empty. Raise `BadInput` if all are."""
    files = [(name, incoming) for name, incoming in form.files if name or incoming.size]
    if not files:
        raise BadInput("the upload contains no file", "curl -F file=@report.pdf")
    empty_names = [name for name, incoming in files if not incoming.size]
    if len(empty_names) == len(files):
        raise BadInput(", ".join(f"{name!r} is empty" for name in empty_names))
    owner = owner_for(visitor, form.first_value("owner") or None)
    options = {name: values for name, values in form.fields.items() if name not in _FIELDS_BESIDE_OPTIONS}
    refuse_server_files(visitor, options)
    force = (form.first_value("force") or "").lower()
    if force not in (*_TRUE, *_FALSE):
        raise BadInput(f"force must be true or false, not {force!r}")
    notify = notify_address(session, form.first_value("notify") or "", owner=owner)
    replaced_ids = [parse_number(text, "replaces") for text in form.fields.get("replaces", ())]
    paths = [incoming.keep(name, owner) for name, incoming in files if incoming.size]
    requests, batch_id = submit_files(session, paths, options, owner=owner, is_forced=force in _TRUE, notify=notify)
    dismiss_replaced(session, visitor.owner, replaced_ids)
    accepted = [(path.name, request) for path, request in zip(paths, requests, strict=True)]
    return Upload(accepted, empty_names, batch_id)
