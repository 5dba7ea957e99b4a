"""Requests over HTTP to read a file, or to read a document again.

The reading handlers turn a request into a job. Their functions are imported when first called, because the handlers'
modules load libraries that most requests do not need. The words of a request are the names of the command line's
options, each with its values, not validated yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from worker_service.handlers.contract import Choices
from worker_service.jobs.documents import DeferredAction
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.jobs.library import Document
from worker_service.services import batches, documents
from worker_service.services.database import Session
from worker_service.services.enqueue import enqueue_job, lacking, refuse_unfit_action

Words = Mapping[str, Sequence[str]]

_NAME_CHARACTERS_MAX = 40
_SOURCES_KEPT_MAX = 100


class Wished(Struct, frozen=True):
    enqueued: Enqueued
    lacking: Sequence[str]
    """One sentence for each requested thing that the machine lacks; the job waits for it."""


def bring_in(
    session: Session, files: Sequence[Path], words: Words, *, owner: str, is_forced: bool = False
) -> tuple[Sequence[Wished], int | None]:
    """Enqueue the files. Return a result for each, and the id of their batch if there are several.

    A single file becomes a job without a batch, so that a loop of uploads does not replace its own batches.
    """
    from job_handlers.reading.job_factory import bring

    if len(files) == 1:
        return [_wished(session, *bring(files[0], words, owner=owner, is_forced=is_forced))], None
    jobs: list[NewJob] = []
    for file in files:
        job, asked, actions = bring(file, words, owner=owner, is_forced=is_forced)
        jobs.append(job)
    for action in actions:
        refuse_unfit_action(session, action)
    sentences = lacking(session, asked)
    names = [file.name for file in files]
    name = f"{names[0][:_NAME_CHARACTERS_MAX]} and {len(names) - 1} more"
    submission = batches.prepare(session, jobs)
    done = batches.submit(session, submission, owner=owner, name=name, asked={"sources": names[:_SOURCES_KEPT_MAX]})
    wished = [Wished(Enqueued(one.job_id or 0, *one[1:]), sentences) for one in done.items]
    return wished, None if done.added is None else done.added.batch.id


class Together(Struct, frozen=True):
    """The jobs of several sources, for a batch."""

    jobs: Sequence[NewJob]
    lacking: Sequence[str]
    left_out: Mapping[str, int]
    """Number of files left out of directories, by reason."""
    left_out_files: Sequence[Mapping[str, str]] = ()


def bring_together(session: Session, sources: Sequence[object], words: Words, *, owner: str) -> Together:
    """Make jobs of folders, files and addresses, or of tables as for a crawl."""
    from job_handlers.crawl.scheduled import together

    jobs, asked, actions, left_out = together(sources, words, owner=owner)
    for action in actions:
        refuse_unfit_action(session, action)
    return Together(jobs, lacking(session, asked), dict(left_out.counts), left_out.files)


def read_again(session: Session, document_id: int, words: Words, *, is_forced: bool = False) -> Wished:
    from job_handlers.reading.job_factory import again

    document = session.library.document(document_id)
    has_original = documents.has_original(session, document)
    return _wished(session, *again(document, words, has_original=has_original, is_forced=is_forced))


def credential_of(document: Document) -> str | None:
    """Return the name of the credential that opens the document's file; None if it needs none."""
    from job_handlers.reading.job_factory import opens

    return opens(document.settings)


def offered(session: Session) -> Mapping[str, Sequence[str]]:
    """Return the options that the live workers' machines offer, by key."""
    there: dict[str, dict[str, None]] = {}
    for text in session.store.reading.choices():
        with suppress(msgspec.MsgspecError):  # an entry that no daemon wrote
            for key, choices in msgspec.json.decode(text, type=dict[str, Choices]).items():
                there.setdefault(key, {}).update(dict.fromkeys(choices.there))
    return {key: list(words) for key, words in there.items()}


def _wished(session: Session, job: NewJob, asked: Mapping[str, object], actions: Sequence[DeferredAction]) -> Wished:
    for action in actions:
        refuse_unfit_action(session, action)
    sentences = lacking(session, asked)
    return Wished(enqueue_job(session, job), sentences)
