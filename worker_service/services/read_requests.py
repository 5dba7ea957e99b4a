"""A person's wish that a file be brought in, or a document be read again, in words, wherever it is said.

What can be said of how to read is known to those who read. They come in by the door: functions behind the entry
points `worker_service.wishes` that make of a wish its job, and of the words what they ask for. `bring` is for a file
of this machine, `together` for several sources, `again` for a document. The words are those of the command line's
options, each with its values; unlike there nothing has looked at them yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from worker_service.base.errors import PagemillError
from worker_service.handlers.contract import Choices
from worker_service.handlers.registry import find
from worker_service.jobs.documents import DeferredAction
from worker_service.jobs.library import Document
from worker_service.jobs.model import Enqueued, NewJob
from worker_service.services import batches, documents
from worker_service.services.database import Session
from worker_service.services.enqueue import enqueue_job, lacking, refuse_unfit_action

GROUP = "worker_service.wishes"

Words = Mapping[str, Sequence[str]]

_NAME_CHARACTERS_MAX = 40
_SOURCES_KEPT_MAX = 100


class NobodyReads(PagemillError):
    code = "nobody_reads"
    exit_code = 69


class Wished(Struct, frozen=True):
    enqueued: Enqueued
    lacking: Sequence[str]
    """A sentence for each thing that was asked for and that the machine lacks: the job waits for it."""


def bring_in(
    session: Session, files: Sequence[Path], words: Words, *, owner: str, is_forced: bool = False
) -> tuple[Sequence[Wished], int | None]:
    """Return what became of each file, and the batch of several. One file alone is a job, so that a loop of uploads
    does not replace itself."""
    make = _maker("bring")
    if len(files) == 1:
        return [_wished(session, *make(files[0], words, owner=owner, is_forced=is_forced))], None
    jobs: list[NewJob] = []
    for file in files:
        job, asked, actions = make(file, words, owner=owner, is_forced=is_forced)
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
    """Of several sources, for a batch."""

    jobs: Sequence[NewJob]
    lacking: Sequence[str]
    left_out: Mapping[str, int]
    left_out_files: Sequence[Mapping[str, str]] = ()
    """Of directories, by the reason."""


def bring_together(session: Session, sources: Sequence[object], words: Words, *, owner: str) -> Together:
    """Folders, files and addresses; or tables, as of a crawl."""
    jobs, asked, actions, left_out = _maker("together")(sources, words, owner=owner)
    for action in actions:
        refuse_unfit_action(session, action)
    return Together(jobs, lacking(session, asked), dict(left_out.counts), left_out.files)


def read_again(session: Session, document_id: int, words: Words, *, is_forced: bool = False) -> Wished:
    document = documents.document(session, document_id)
    has_original = documents.has_original(session, document)
    return _wished(session, *_maker("again")(document, words, has_original=has_original, is_forced=is_forced))


def credential_of(document: Document) -> str | None:
    """The one that opens its file. None: it needs none."""
    with suppress(NobodyReads):
        name: str | None = _maker("opens")(document.settings)
        return name
    return None


def offered(session: Session) -> Mapping[str, Sequence[str]]:
    """What the machines of the workers that live have to choose from, by what is chosen."""
    there: dict[str, dict[str, None]] = {}
    for text in session.store.reading.choices():
        with suppress(msgspec.MsgspecError):  # which no daemon has written
            for key, choices in msgspec.json.decode(text, type=dict[str, Choices]).items():
                there.setdefault(key, {}).update(dict.fromkeys(choices.there))
    return {key: list(words) for key, words in there.items()}


def _wished(session: Session, job: NewJob, asked: Mapping[str, object], actions: Sequence[DeferredAction]) -> Wished:
    for action in actions:
        refuse_unfit_action(session, action)
    sentences = lacking(session, asked)
    return Wished(enqueue_job(session, job), sentences)


def _maker(name: str) -> Any:
    for found in find(group=GROUP):
        if found.name == name:
            return found.load()
    raise NobodyReads("nothing that reads documents is installed here")
