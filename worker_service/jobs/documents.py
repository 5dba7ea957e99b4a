"""Documents, the files and pages that belong to them, and what a crawl has found. Frozen values, like all of `jobs`.

A document is one thing to read: where it comes from, what its file holds, and how far its text is. Its generation
counts the wishes to read it; only work of the newest one may publish (P11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct, field

from worker_service.jobs.digest import canonical


class IndexStatus(StrEnum):
    NOT_INDEXED = "not_indexed"
    QUEUED = "queued"
    INDEXING = "indexing"
    SUCCESS = "success"
    FAILED = "failed"


class OnEnd(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


class DeferredAction(Struct, frozen=True):
    """A job for afterwards. `FACTS` lists the placeholders that its payload may have."""

    job_type: str
    payload: str = ""
    """JSON; empty: none."""
    on_end: OnEnd = OnEnd.SUCCESS
    is_standing: bool = False
    """Again for each generation of a document."""


class AskedAction(DeferredAction, frozen=True):
    """One that was asked for, and what became of it."""

    document_id: int = 0
    generation: int = 0
    fired_at: str | None = None
    job_id: int | None = None


class OwnersAction(DeferredAction, frozen=True):
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


class DocumentRequest(Struct, frozen=True):
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


class KnownDocument(Struct, frozen=True):
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


class DocumentFacts(Struct, frozen=True):
    """What a job learned of its document. None: nothing new."""

    kind: str | None = None
    """pdf, image, sheet, text, mail, …"""
    pages: int | None = None
    content: str | None = None
    note: str | None = None
    """For a person, such as "repaired"."""


CONFIDENCE_LEAST = 50
"""Per cent. Recognised text below it is doubtful: notes name its pages, and a search can leave them out."""


class PageResult(Struct, frozen=True):
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


class PublishedFile(Struct, frozen=True):
    id: int
    job_id: int
    role: str
    name: str
    path: str
    """Below the workspace."""
    size: int
    sha256: str
    md5: str


class NewFile(Struct, frozen=True):
    """A file that a completion publishes."""

    name: str
    path: str
    """Below the workspace, where it lies already."""
    role: str = ""
    size: int = 0
    sha256: str = ""
    md5: str = ""
    note: str = ""


class FileAgain(Struct, frozen=True):
    """A published file that a completion publishes once more."""

    file_id: int
    role: str = ""
    name: str = ""


class CrawlItem(Struct, frozen=True):
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


class CrawlPage(Struct, frozen=True):
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


class Answer(Struct, frozen=True):
    pass


A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Question(Generic[A_co]):
    """Few, typed, read-only. What is asked of a document means the job's own."""

    __slots__ = ()


class KnownDigests(Answer, frozen=True):
    digests: Sequence[str] = ()
    is_stale: bool = False
    """The job's generation is no longer the newest of its document: who finds nothing known here need not ask twice."""


class KnownPages(Question[KnownDigests], Struct, frozen=True):
    """Which of these digests have a stored page?"""

    digests: Sequence[str]


class Pages(Answer, frozen=True):
    pages: Sequence[PageResult] = ()


class DocumentPages(Question[Pages], Struct, frozen=True):
    """The stored pages of the job's document and generation, from number `first` to `last`."""

    first: int
    last: int
    with_layout: bool = False


class Files(Answer, frozen=True):
    files: Sequence[PublishedFile] = ()


class SameContent(Question[Files], Struct, frozen=True):
    """Published files with the same content: by SHA-256 of anybody, by MD5 and size of the job's owner only."""

    sha256: str = ""
    md5: str = ""
    size: int | None = None


class Currency(Answer, frozen=True):
    is_current: bool = True


class IsCurrent(Question[Currency], Struct, frozen=True):
    """Is the job's generation still the newest of its document? To be asked before an expensive piece of work."""


class CrawlMemory(Answer, frozen=True):
    state: str | None = None
    items: Sequence[CrawlItem] = field(default_factory=tuple)


class CrawlItems(Question[CrawlMemory], Struct, frozen=True):
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
