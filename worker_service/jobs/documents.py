"""Documents, the files and pages that belong to them, and what a crawl has found. Frozen values, like all of `jobs`.

A document is one thing to read: where it comes from, what its file holds, and how far its text is. Its generation
counts the wishes to read it; only work of the newest one may publish (P11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Generic, TypeVar

from worker_service.jobs.digest import canonical
from worker_service.jobs.values import dataclass


class IndexStatus(StrEnum):
    NOT_INDEXED = "not_indexed"
    QUEUED = "queued"
    INDEXING = "indexing"
    SUCCESS = "success"
    FAILED = "failed"


class OnEnd(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class DeferredAction:
    """A job for afterwards. `FACTS` lists the placeholders that its payload may have."""

    job_type: str
    payload: str = ""
    """JSON; empty: none."""
    on_end: OnEnd = OnEnd.SUCCESS
    is_standing: bool = False
    """Again for each generation of a document."""


@dataclass(frozen=True, slots=True)
class AskedAction(DeferredAction):
    """One that was asked for, and what became of it."""

    document_id: int = 0
    generation: int = 0
    fired_at: str | None = None
    job_id: int | None = None


@dataclass(frozen=True, slots=True)
class OwnersAction(DeferredAction):
    """What follows for each document of an owner."""

    owner: str = ""


FACTS: Mapping[str, object] = {
    "document_id": 1, "batch_id": 1, "job_id": 1, "generation": 1,
    "owner": "owner", "name": "name", "state": "success", "error_code": "CODE",
}  # fmt: skip
"""The placeholders of a deferred action's payload, each with an example."""
_WORD = re.compile(r"\{(\w+)\}")


def filled(payload: str, facts: Mapping[str, object]) -> str:
    """Return the payload with facts for its placeholders, such as {document_id}. A string that is nothing but a
    placeholder becomes the fact itself, which may be a number or null."""

    def fill(value: object) -> object:
        if isinstance(value, dict):
            return {key: fill(one) for key, one in value.items()}
        if isinstance(value, list):
            return [fill(one) for one in value]
        if not isinstance(value, str):
            return value
        if (alone := _WORD.fullmatch(value)) and alone[1] in facts:
            return facts[alone[1]]
        return _WORD.sub(lambda word: _written(facts[word[1]]) if word[1] in facts else word[0], value)

    return canonical(fill(json.loads(payload)))


def _written(fact: object) -> str:
    return "" if fact is None else str(fact)


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """The wish that a document be read. Carried by the job that would do it: the transaction that inserts the job
    takes the document's next generation, or finds that nothing is to be done, and inserts no job."""

    source_key: str
    """What it is at its source: a Drive file's id, a URL, an absolute path. With platform and owner it names the
    document for ever."""
    name: str
    content: str = ""
    """SHA-256 of its file. Empty: not known yet."""
    settings: str = ""
    """JSON of what is said of how it is to be read: what can change the text. The rest is as the document remembers it;
    null: as usual again. Where another way comes out of it, the document is read again."""
    is_forced: bool = False
    is_standing: bool = False
    """Nobody says it now: a document that was asked for before is read as it remembers."""
    actions: Sequence[DeferredAction] = ()
    """What follows; beside what others have asked for."""
    revision: str = ""
    """What its source calls this content. Empty: it has no name for it, or one that may come to stand for another."""


class Decision(StrEnum):
    """What became of a wish."""

    ACCEPTED = "accepted"
    TAKEN_OVER = "taken over"
    """Older work had not moved for too long."""
    UNDER_WAY = "under way"
    """The same is queued or indexing already: that will do."""
    UNCHANGED = "unchanged"
    """It was read with success, and neither its content nor what was asked for has changed."""


@dataclass(frozen=True, slots=True)
class KnownDocument:
    """What is known of a job's document when an attempt begins."""

    content: str = ""
    """SHA-256 of its newest published original; empty: nobody has told it."""
    kind: str | None = None
    pages: int | None = None
    """None: not counted yet."""
    settings: str = ""
    """JSON: how its newest generation is to be read."""
    status: str = ""
    """Of its newest generation: queued, indexing, success or failed."""
    source_key: str = ""
    """What it is at its source."""
    name: str = ""
    generation: int | None = None
    """The newest that was asked for."""
    batch_id: int | None = None
    """The newest batch that asked for it."""


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """What a job learned of its document. None: nothing new."""

    kind: str | None = None
    """pdf, image, sheet, text, mail, …"""
    pages: int | None = None
    content: str | None = None
    note: str | None = None
    """For a person, such as "repaired"."""


CONFIDENCE_LEAST = 50
"""Per cent. Recognised text below it is doubtful: notes name its pages, and a search can leave them out."""


@dataclass(frozen=True, slots=True)
class PageResult:
    """What was read of one page. Pages with the same digest are the same, whosever they are."""

    number: int
    """From 1."""
    digest: str
    text: str | None = None
    """None: a page with this digest is stored already, and this document has it too."""
    method: str = ""
    """layer, ocr, partial, rows, blank, too_large or unreadable. `partial`: a part of its picture is damaged."""
    confidence: float | None = None
    """0 to 100, of recognised text; 0 where the page is in a script that it was not read in."""
    layout: str | None = None
    """JSON: size of the page and its words with their boxes."""
    also: str = ""
    """Another digest by which it is known from now on."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    id: int
    job_id: int
    role: str
    name: str
    path: str
    """Below the workspace."""
    size: int
    sha256: str
    md5: str


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that a completion publishes."""

    name: str
    path: str
    """Below the workspace, where it lies already."""
    role: str = ""
    size: int = 0
    sha256: str = ""
    md5: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class FileAgain:
    """A published file that a completion publishes once more."""

    file_id: int
    role: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class CrawlItem:
    """A file or folder as a crawl saw it last."""

    id: str
    parent_id: str = ""
    name: str = ""
    kind: str = ""
    """file, folder, or what else the source calls it."""
    revision: str = ""
    """Changes when its content does."""
    size: int | None = None
    note: str = ""
    """Why it was not enqueued; empty: it was."""
    is_gone: bool = False
    detail: str = ""
    """What the crawl itself wants to know again."""
    walk: int = 0
    """In an answer: the number of the full walk that saw it last."""


@dataclass(frozen=True, slots=True)
class CrawlPage:
    """What a crawl has found, landing together with a checkpoint."""

    crawl: str
    """The crawl's own key, the same from run to run."""
    items: Sequence[CrawlItem] = ()
    walk: int = 0
    """Number of the full walk that saw them."""
    state: str | None = None
    """JSON, for the next run; None: as it was."""
    keys: str = ""
    """What the unique keys of the jobs that fetch its items begin with, before the item's id and a colon: those that
    wait for an item that went are cancelled. Empty: none are."""


# ── Questions that a handler may ask, each with its answer ──


@dataclass(frozen=True, slots=True)
class Answer:
    pass


A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Question(Generic[A_co]):
    """Few, typed, read-only. What is asked of a document means the job's own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class KnownDigests(Answer):
    digests: Sequence[str] = ()
    is_stale: bool = False
    """The job's generation is no longer the newest of its document: who finds nothing known here need not ask twice."""


@dataclass(frozen=True, slots=True)
class KnownPages(Question[KnownDigests]):
    """Which of these digests have a stored page?"""

    digests: Sequence[str]


@dataclass(frozen=True, slots=True)
class Pages(Answer):
    pages: Sequence[PageResult] = ()


@dataclass(frozen=True, slots=True)
class DocumentPages(Question[Pages]):
    """The stored pages of the job's document and generation, from number `first` to `last`."""

    first: int
    last: int
    with_layout: bool = False


@dataclass(frozen=True, slots=True)
class Files(Answer):
    files: Sequence[PublishedFile] = ()


@dataclass(frozen=True, slots=True)
class SameContent(Question[Files]):
    """Published files with the same content: by SHA-256 of anybody, by MD5 and size of the job's owner only."""

    sha256: str = ""
    md5: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Currency(Answer):
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class IsCurrent(Question[Currency]):
    """Is the job's generation still the newest of its document? To be asked before an expensive piece of work."""


@dataclass(frozen=True, slots=True)
class CrawlMemory(Answer):
    state: str | None = None
    items: Sequence[CrawlItem] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class CrawlItems(Question[CrawlMemory]):
    """What is known of these items of a crawl, and the crawl's state. Instead of `ids`, either asks for up to 1,000
    items that are there, in the order of their ids and after `after`."""

    crawl: str
    ids: Sequence[str] = ()
    not_seen_in: int | None = None
    """Those that no walk since the one of this number has seen."""
    with_note: str | None = None
    after: str = ""


QUESTIONS: dict[str, tuple[type[Question[Answer]], type[Answer]]] = {
    question.__name__: (question, answer)
    for question, answer in (
        (KnownPages, KnownDigests),
        (DocumentPages, Pages),
        (SameContent, Files),
        (IsCurrent, Currency),
        (CrawlItems, CrawlMemory),
    )
}
