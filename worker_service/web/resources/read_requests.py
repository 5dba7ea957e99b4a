"""Requests to read uploads, sources or a document again, in the option names of `pagemill add`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from job_handlers.crawl.requests import SourceOptions, jobs_of_request
from job_handlers.reading.find_files import LeftOut
from job_handlers.reading.requests import ReadOptions, download_job, parse_options, reindex_job
from worker_service.base.errors import BadInput
from worker_service.jobs.batches import BatchAdded, InBatch
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.jobs.library import Document
from worker_service.services import batches, exports, notifications, passwords
from worker_service.services.enqueue import check_action_payload, enqueue_job, missing_capability_warnings
from worker_service.services.failures import dismiss_replaced
from worker_service.services.page_images import NoPageImage, PageLocked, PageRenderer, check_password
from worker_service.services.passwords import DocumentPassword
from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.error_responses import NotAllowed
from worker_service.web.multipart import ReceivedForm
from worker_service.web.resources.jobs import owner_for, refuse_server_files

OptionValues = Mapping[str, Sequence[str]]
"""Values of the options of `pagemill add`, by name without dashes."""

_NAME_CHARACTERS_MAX = 40
_SOURCES_KEPT_MAX = 100
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
_FIELDS_BESIDE_OPTIONS = ("owner", "force", "csrf", "notify", "replaces")


class ReadRequested(Struct, frozen=True):
    enqueued: Enqueued
    lacking: Sequence[str]
    """A sentence for each program or model that this machine lacks; the job waits for it."""


class SourceJobs(Struct, frozen=True):
    jobs: Sequence[NewJob]
    lacking: Sequence[str]
    left_out: Mapping[str, int]
    left_out_files: Sequence[Mapping[str, str]] = ()


def submit_files(
    session: Session,
    files: Sequence[Path],
    values: OptionValues,
    *,
    owner: str,
    is_forced: bool = False,
    notify: str = "",
) -> tuple[Sequence[ReadRequested], int | None]:
    """Enqueue the files, several as a batch. Return the requests and the batch's id."""
    options = parse_options(ReadOptions, values)
    lacking = _check_options(session, options)
    jobs = [download_job(file, options, owner=owner, is_forced=is_forced) for file in files]
    if len(jobs) == 1 and not notify:
        # As a batch, each upload of a loop could make the one before wait (owner_policy).
        return [ReadRequested(enqueue_job(session, jobs[0]), lacking)], None
    names = [file.name for file in files]
    name = names[0][:_NAME_CHARACTERS_MAX] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    asked = {"sources": names[:_SOURCES_KEPT_MAX]}
    added: BatchAdded | None
    items: Sequence[InBatch]
    if notify:
        added = batches.add_batch(session, jobs, owner=owner, name=name, asked=asked, notify=notify)
        items = added.jobs
    else:
        submission = batches.prepare_submission(session, jobs)
        submitted = batches.submit_batch(session, submission, owner=owner, name=name, asked=asked)
        items, added = submitted.items, submitted.added
    enqueued = [Enqueued(item.job_id or 0, item.existing, item.document_id, item.decision) for item in items]
    return [ReadRequested(one, lacking) for one in enqueued], None if added is None else added.batch.id


def notify_address(session: Session, text: str, *, owner: str) -> str:
    """Return the address to notify. Raise `NotAllowed` if only the administrator may name it."""
    address = notifications.read_address(session, text.strip(), owner=owner)
    if not notifications.is_allowed_address(session, address, owner=owner):
        raise NotAllowed(
            "only your own address and those that the setting notify_allow lists can be notified", "write me"
        )
    return address


def submit_reindex(
    session: Session, document_id: int, values: OptionValues, *, is_forced: bool = False
) -> ReadRequested:
    document = session.library.document(document_id)
    options = parse_options(ReadOptions, values)
    lacking = _check_options(session, options)
    if options.as_usual:
        passwords.forget(session.settings.workspace, document)
    has_original = exports.has_original(session, document)
    job = reindex_job(document, options, has_original=has_original, is_forced=is_forced)
    return ReadRequested(enqueue_job(session, job), lacking)


class WrongPassword(BadInput):
    code = "wrong_password"


def give_password(
    session: Session, renderer: PageRenderer, document: Document, password: str, *, is_kept: bool
) -> ReadRequested:
    """Store the password if it opens the PDF, and have the document read unless it has text."""
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


def source_jobs(session: Session, sources: Sequence[object], values: OptionValues, *, owner: str) -> SourceJobs:
    options, left_out = parse_options(SourceOptions, values), LeftOut()
    jobs = jobs_of_request(sources, options, owner=owner, left_out=left_out)
    return SourceJobs(jobs, _check_options(session, options), dict(left_out.counts), left_out.files)


def _check_options(session: Session, options: ReadOptions) -> Sequence[str]:
    """Raise an error for invalid options; return what the machine lacks."""
    for action in options.actions():
        check_action_payload(session, action)
    return missing_capability_warnings(session, options.reading_settings())


# ── Uploads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Upload(Struct, frozen=True):
    accepted: Sequence[tuple[str, ReadRequested]]
    empty: Sequence[str]
    batch_id: int | None


def submit_upload(session: Session, visitor: Visitor, form: ReceivedForm) -> Upload:
    """Submit the files that are not empty. Raise `BadInput` if all are."""
    files = [(name, incoming) for name, incoming in form.files if name or incoming.size]
    if not files:
        raise BadInput("the upload contains no file", "curl -F file=@report.pdf")
    empty = [name for name, incoming in files if not incoming.size]
    if len(empty) == len(files):
        raise BadInput(", ".join(f"{name!r} is empty" for name in empty))
    owner = owner_for(visitor, form.first_value("owner") or None)
    options = {name: values for name, values in form.fields.items() if name not in _FIELDS_BESIDE_OPTIONS}
    refuse_server_files(visitor, options)
    force = (form.first_value("force") or "").lower()
    if force not in (*_TRUE, *_FALSE):
        raise BadInput(f"force must be true or false, not {force!r}")
    notify = notify_address(session, form.first_value("notify") or "", owner=owner)
    replaced_ids = [_job_id(text) for text in form.fields.get("replaces", ())]
    paths = [incoming.keep(name, owner) for name, incoming in files if incoming.size]
    requests, batch_id = submit_files(session, paths, options, owner=owner, is_forced=force in _TRUE, notify=notify)
    dismiss_replaced(session, visitor.owner, replaced_ids)
    accepted = [(path.name, request) for path, request in zip(paths, requests, strict=True)]
    return Upload(accepted, empty, batch_id)


def _job_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"replaces must be the id of a job, not {text!r}") from None
