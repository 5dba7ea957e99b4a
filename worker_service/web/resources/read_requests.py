"""Requests to read uploaded files, sources, or a document again, from HTTP and the page.

The words of a request are the names of the options of `pagemill add`, each with its values, not validated yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from job_handlers.crawl.requests import SourceOptions, jobs_of_request
from job_handlers.reading.find_files import LeftOut
from job_handlers.reading.requests import ReadOptions, download_job, parse_options, reindex_job
from worker_service.base.errors import BadInput
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.jobs.library import Document
from worker_service.services import batches, exports, passwords
from worker_service.services.database import Session
from worker_service.services.enqueue import check_action_payload, enqueue_job, missing_capability_warnings
from worker_service.services.page_images import PageLocked, PageRenderer, check_password
from worker_service.services.passwords import DocumentPassword
from worker_service.web.access import Visitor
from worker_service.web.multipart import ReceivedForm
from worker_service.web.resources.jobs import owner_for, refuse_server_files_in_follow_ups

Words = Mapping[str, Sequence[str]]

_NAME_CHARACTERS_MAX = 40
_SOURCES_KEPT_MAX = 100
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
_OWN_FIELDS = ("owner", "force", "csrf")
"""Form fields that are no reading options."""


class ReadRequested(Struct, frozen=True):
    enqueued: Enqueued
    lacking: Sequence[str]
    """One sentence for each requested thing that the machine lacks; the job waits for it."""


class SourceJobs(Struct, frozen=True):
    """The jobs of several sources, for a batch."""

    jobs: Sequence[NewJob]
    lacking: Sequence[str]
    left_out: Mapping[str, int]
    """Number of files left out of directories, by reason."""
    left_out_files: Sequence[Mapping[str, str]] = ()


def submit_files(
    session: Session, files: Sequence[Path], words: Words, *, owner: str, is_forced: bool = False
) -> tuple[Sequence[ReadRequested], int | None]:
    """Enqueue the files. Return a result for each, and the id of their batch if there are several.

    A single file becomes a job without a batch, so that a loop of uploads does not replace its own batches.
    """
    options = parse_options(ReadOptions, words)
    sentences = _check(session, options)
    jobs = [download_job(file, options, owner=owner, is_forced=is_forced) for file in files]
    if len(jobs) == 1:
        return [ReadRequested(enqueue_job(session, jobs[0]), sentences)], None
    names = [file.name for file in files]
    name = f"{names[0][:_NAME_CHARACTERS_MAX]} and {len(names) - 1} more"
    submission = batches.prepare_submission(session, jobs)
    done = batches.submit_batch(
        session, submission, owner=owner, name=name, asked={"sources": names[:_SOURCES_KEPT_MAX]}
    )
    requested = [ReadRequested(Enqueued(one.job_id or 0, *one[1:]), sentences) for one in done.items]
    return requested, None if done.added is None else done.added.batch.id


def submit_reindex(session: Session, document_id: int, words: Words, *, is_forced: bool = False) -> ReadRequested:
    document = session.library.document(document_id)
    options = parse_options(ReadOptions, words)
    sentences = _check(session, options)
    if options.as_usual:
        passwords.forget(session.settings.workspace, document)
    has_original = exports.has_original(session, document)
    job = reindex_job(document, options, has_original=has_original, is_forced=is_forced)
    return ReadRequested(enqueue_job(session, job), sentences)


class WrongPassword(BadInput):
    code = "wrong_password"


def give_password(
    session: Session, renderer: PageRenderer, document: Document, password: str, *, is_kept: bool
) -> ReadRequested:
    """Try the password, store it, and read the document unless its text is there already."""
    workspace = session.settings.workspace
    key = (document.platform, document.owner, document.source_key)
    passwords.save(workspace, DocumentPassword(*key, passwords.check(password), is_kept))
    try:
        check_password(session, renderer, document)
    except PageLocked as error:
        passwords.forget(workspace, document)
        remedy = "type it again; capital letters and the language of the keyboard matter"
        raise WrongPassword("this password does not open the PDF", remedy) from error
    return submit_reindex(session, document.id, {})


def source_jobs(session: Session, sources: Sequence[object], words: Words, *, owner: str) -> SourceJobs:
    """Make jobs of folders, files and addresses, or of tables as for a crawl."""
    options, left_out = parse_options(SourceOptions, words), LeftOut()
    jobs = jobs_of_request(sources, options, owner=owner, left_out=left_out)
    return SourceJobs(jobs, _check(session, options), dict(left_out.counts), left_out.files)


def _check(session: Session, options: ReadOptions) -> Sequence[str]:
    """Raise an error for options that no handler accepts; return a sentence for each thing that the machine lacks."""
    for action in options.actions():
        check_action_payload(session, action)
    return missing_capability_warnings(session, options.asked())


# ── Uploads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Upload(Struct, frozen=True):
    accepted: Sequence[tuple[str, ReadRequested]]
    empty: Sequence[str]
    """Names of empty files, which were left out."""
    batch_id: int | None


def submit_upload(session: Session, visitor: Visitor, form: ReceivedForm) -> Upload:
    """Submit the files that are not empty. Raise `BadInput` if all are empty."""
    files = [(name, incoming) for name, incoming in form.files if name or incoming.size]
    if not files:
        raise BadInput("the upload contains no file", "curl -F file=@report.pdf")
    empty = [name for name, incoming in files if not incoming.size]
    if len(empty) == len(files):
        raise BadInput(", ".join(f"{name!r} is empty" for name in empty))
    owner = owner_for(visitor, form.first_value("owner") or None)
    options = {name: values for name, values in form.fields.items() if name not in _OWN_FIELDS}
    refuse_server_files_in_follow_ups(visitor, options)
    force = (form.first_value("force") or "").lower()
    if force not in (*_TRUE, *_FALSE):
        raise BadInput(f"force must be true or false, not {force!r}")
    paths = [incoming.keep(name, owner) for name, incoming in files if incoming.size]
    made, batch_id = submit_files(session, paths, options, owner=owner, is_forced=force in _TRUE)
    return Upload([(path.name, one) for path, one in zip(paths, made, strict=True)], empty, batch_id)
