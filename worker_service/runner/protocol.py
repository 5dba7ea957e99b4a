"""What daemon, nursery and children say to each other: one set of types, and the frames that carry them.

What a child says (`Started` … `Ended`) is looked at by the nursery and passed on as the same bytes. The nursery adds
one message of its own, `Gone`: the child has ended, and that was proven. A frame is ``P``, the version, four bytes of
length, and one JSON message. Whoever reads trusts nothing: what does not begin so, is too long, or does not fit its
type is `Garbled`.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace
from msgspec.structs import replace as replace_fields

from worker_service.base.directories import open_beneath
from worker_service.base.errors import PagemillError
from worker_service.base.sanitize import harmless_text
from worker_service.handlers.contract import Limits
from worker_service.jobs.documents import (
    QUESTIONS,
    Answer,
    CrawlItems,
    CrawlPage,
    DocumentFacts,
    DocumentPages,
    FileAgain,
    KnownDocument,
    KnownPages,
    PageResult,
    Question,
)
from worker_service.jobs.model import LOG_LINES_MOST, Count, HandlerFacts, NewJob, NodeState, Usage

VERSION = 7
FRAME_BYTES_MAX = 8 << 20
"""Of what a child may say at once."""
RELAY_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Of what passes between daemon and nursery: a child's words once more, with an envelope."""
PAGES_AT_ONCE = 1000
LAYOUTS_AT_ONCE = 100
NAMES_AT_ONCE = 50_000
"""Digests of pages, ids of a crawl."""
LINE_CHARACTERS_MAX = 2000
MESSAGE_CHARACTERS_MAX = 4000
_NAME_CHARACTERS_MAX = 1000
_WORD_CHARACTERS_MAX = 200
_NUMBER_MAX = 2**53
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?")
_MD5 = re.compile(r"(?:[0-9a-f]{32})?")

Key = tuple[int, int]
"""Job id and fence: one attempt, for ever."""

M = TypeVar("M")


class Garbled(ValueError):
    """These are not our words."""


class ChildError(PagemillError):
    """The nursery could not be started, or died. Nothing of it runs any more; start it again."""

    code = "nursery_failed"
    exit_code = 69


def name_of(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


# --- an order, and who can take it -----------------------------------------------------------------


class Order(Struct, frozen=True):
    """Run one attempt of one job. All that a child learns of it."""

    job_id: int
    fence: int
    job_type: str
    platform: str
    account: str | None
    payload: str | None
    timeout_seconds: int | None
    """The job's own; None: the handler's."""
    state: str | None = None
    """The last checkpoint, JSON."""
    document_id: int | None = None
    generation: int | None = None
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """The published files of its document by their role; absolute, and readable for this attempt."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the inputs, where it is known."""
    owner: str = ""
    document: KnownDocument | None = None
    parent_id: int | None = None
    """The job that asked for it."""
    node_slots: int = 0
    """Slots of all cluster nodes together."""
    known_digests: Sequence[str] = ()
    """Digests of the document's pages that earlier attempts have read. A node answers `KnownPages` from these."""

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Declared(Struct, frozen=True):
    """What a handler says of itself that only people ask for: its child has it from the handler."""

    limits: Limits = Limits()
    sandbox: str = "default"
    has_keep: bool = False
    environment: Sequence[str] = ()
    credentials: Sequence[str] = ()
    reads: Sequence[Path] = ()
    writes: Sequence[Path] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    offers: str | None = None


class Described(Struct, frozen=True):
    """What the nursery found out about one handler, in a trial child."""

    facts: HandlerFacts
    reuse: int = 1
    """How many attempts one child of it may serve."""
    set_aside: str | None = None
    """Why it cannot be used: it hangs, crashes or cannot be imported. Its jobs fail with this sentence."""
    distribution: str = ""
    """Who brings it, and where it is: module:attribute. Empty where several do."""
    spec: str = ""
    declared: Declared | None = None
    """None: it was set aside before it could say anything."""
    identity: Sequence[str] = ()
    """What its results depend on beside what it is given."""
    runs_on_cluster: bool = False
    has_slicer: bool = False


# --- what a child says ------------------------------------------------------------------------------


class Said(msgspec.Struct, tag=True, frozen=True):
    """Of one attempt."""

    job_id: int
    fence: int

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Placed(Said, tag=True, frozen=True):
    """Its task runs on this cluster node. Its child has not started yet."""

    node: str


class Started(Said, tag=True, frozen=True):
    """The child is there, and its jail is shut. `pid_started`, its start in clock ticks, makes the pid the name of one
    process for ever."""

    pid: int
    pid_started: int
    sandbox: str


class Progressed(Said, tag=True, frozen=True):
    percent: float
    message: str
    count: Count | None = None


class Logged(Said, tag=True, frozen=True):
    """What it has logged and printed, since it was told of last. Said for it by the nursery, which reads its output."""

    lines: Sequence[str]


class PagesRead(Said, tag=True, frozen=True):
    """Pages of the job's document, as many at once as its child has ready: each message wakes nursery and daemon."""

    pages: Sequence[PageResult]


class Checkpointed(Said, tag=True, frozen=True):
    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None


class Asked(Said, tag=True, frozen=True):
    """The child waits for an answer: a `Reply` with the same number."""

    number: int
    kind: str
    body: str
    """JSON."""


class How(StrEnum):
    """How an attempt ended, before anybody decided what follows from it."""

    DONE = "done"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    """We stopped it: cancelled, lease lost, or the daemon drains."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    GARBLED = "garbled"
    """It spoke nonsense, or ended without a result."""


_OWN_WORDS = (How.DONE, How.RETRYABLE, How.PERMANENT, How.SNOOZED, How.OUT_OF_MEMORY)


class Publication(Struct, frozen=True):
    """A file that is to be published, and what its handler knows of it."""

    path: Path
    """In the staging directory, fsynced: below it as the child says it, absolute as the daemon hears it."""
    role: str = ""
    name: str = ""
    sha256: str = ""
    md5: str = ""
    note: str = ""


class Ended(Said, tag=True, frozen=True):
    """The attempt's last word, its child's own or the nursery's. Who hears it from the nursery knows that the attempt
    is over for good: nothing that it started is left."""

    how: How
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    published: Sequence[Publication] = ()
    """Still to be moved to where published files live."""
    code: str = ""
    message: str = ""
    remedy: str = ""
    after_seconds: float | None = None
    usage: Usage = Usage()
    published_again: Sequence[FileAgain] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """Its generation of the document is from now on the one that people read."""
    rests_source: bool = False
    """Snoozed because its source needs a rest: nothing else of that source should start either."""
    took_seconds: float | None = None
    """In a child that serves several; or, for one that was not begun, how long it has waited at least."""
    stays: bool = False
    """Its child is as it was before, and takes the next order."""

    @property
    def files(self) -> list[Path]:
        return [one.path for one in self.published]


Happening = Placed | Started | Progressed | Logged | PagesRead | Checkpointed | Asked | Ended


# --- daemon to nursery; orders and replies go on to the child ---------------------------------------


class ClusterBegin(msgspec.Struct, frozen=True):
    """What the Ray driver needs to know."""

    address: str
    """HOST:PORT of the Ray head."""
    objects: Path
    """The directory of published files: the only one of the workspace that the driver may read."""
    identity: Mapping[str, Sequence[str]] = {}
    """By job type that runs on nodes: what its results depend on here."""
    slicers: Mapping[str, str] = {}
    """By job type whose originals can be sliced: the entry point of its handler, as module:attribute."""


class Begin(msgspec.Struct, tag=True, frozen=True):
    """What a nursery is to be. The daemon's side of the line fills in `house` and `credentials`."""

    staging_root: Path
    keep_root: Path
    lock_fd: int | None = None
    commands: Mapping[str, Mapping[str, Any]] = {}
    sandbox: str = "strict"
    slots: Mapping[str, int] = {}
    """By class, how many attempts run at once; what comes beyond that waits for a child that serves several."""
    types: Sequence[str] = ()
    """Those that will be asked for, as WORKER_TYPES has it: the others are not kept warm."""
    grace_seconds: float = 10.0
    import_seconds: float = 20.0
    tries_all: bool = False
    """Of the handlers the shipped ones, too: one of them has ended a nursery that loaded them without a trial."""
    idle_seconds: float = 10.0
    """After that a child that waits for another order is stopped."""
    wait_seconds: float = 0.1
    """So long an order waits for a child while none of its class is done; then it goes back."""
    extra_handlers: Sequence[str] = ()
    """``module:attribute``, for tests, where nothing is installed."""
    is_without_installed: bool = False
    handlers_dir: Path | None = None
    """Where files with handlers may lie; None: nowhere."""
    house: str = ""
    credentials: Path | None = None
    cluster: ClusterBegin | None = None
    """For the Ray driver, which takes the place of a nursery."""


class Launch(msgspec.Struct, tag=True, frozen=True):
    order: Order
    environment: dict[str, str]
    """What its handler asked for; the nursery itself has none of it."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    job_id: int
    fence: int
    now: bool = False


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Is it still turning?"""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """For the Ray driver: the names of all nodes that get no new attempts."""

    nodes: tuple[str, ...] = ()


class Reply(msgspec.Struct, tag=True, frozen=True):
    """The answer to the question of this number, on its way to the child; with a code: why there is none."""

    job_id: int
    fence: int
    number: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    code: str = ""
    message: str = ""


# --- nursery to daemon ------------------------------------------------------------------------------


class Introduced(msgspec.Struct, frozen=True):
    described: Described
    environment: tuple[str, ...] = ()


class Hello(msgspec.Struct, tag=True, frozen=True):
    threads: int
    handlers: tuple[Introduced, ...]


class Tried(msgspec.Struct, tag=True, frozen=True):
    """What a trial child found behind one entry point."""

    handlers: tuple[Introduced, ...]
    threads: int
    reason: str = ""
    """Why it cannot be used."""


class Pong(msgspec.Struct, tag=True, frozen=True):
    pass


class NodesSeen(msgspec.Struct, tag=True, frozen=True):
    """All nodes of the cluster, as the Ray driver sees them."""

    nodes: tuple[NodeState, ...]


class Gone(msgspec.Struct, tag=True, frozen=True):
    """An attempt is over, with its last word as it was said. What that says of usage and time is not believed."""

    ended: msgspec.Raw
    usage: Usage
    took_seconds: float | None = None


ToNursery = Begin | Launch | Stop | Ping | Reply | Drain
ToChild = Launch | Reply
FromChild = Started | Progressed | PagesRead | Checkpointed | Asked | Ended
FromNode = Gone | Started | Progressed | Logged | PagesRead | Checkpointed | Asked
FromNursery = (
    Hello | Pong | NodesSeen | Gone | Placed | Started | Progressed | Logged | PagesRead | Checkpointed | Asked
)


# --- frames -----------------------------------------------------------------------------------------


def _encode_other(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode_other(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind.__name__)


_HEADER = struct.Struct(">cBI")
_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
# Made before children are forked, which would each learn anew what the types hold.
_to_nursery: msgspec.json.Decoder[ToNursery] = msgspec.json.Decoder(ToNursery, dec_hook=_decode_other)
_from_nursery: msgspec.json.Decoder[FromNursery] = msgspec.json.Decoder(FromNursery, dec_hook=_decode_other)
_from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild, dec_hook=_decode_other)
_to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild, dec_hook=_decode_other)
_tried: msgspec.json.Decoder[Tried] = msgspec.json.Decoder(Tried, dec_hook=_decode_other)
_from_node: msgspec.json.Decoder[FromNode] = msgspec.json.Decoder(FromNode, dec_hook=_decode_other)
_ended: msgspec.json.Decoder[Ended] = msgspec.json.Decoder(Ended, dec_hook=_decode_other)


def encoded(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def framed(body: bytes) -> bytes:
    return _HEADER.pack(b"P", VERSION, len(body)) + body


def frame(message: msgspec.Struct) -> bytes:
    return framed(_encoder.encode(message))


def to_nursery(body: bytes) -> ToNursery:
    return _read(_to_nursery, body)


def to_child(body: bytes) -> ToChild:
    return _read(_to_child, body)


def from_trial(body: bytes) -> Tried:
    return _read(_tried, body)


def from_child(body: bytes, order: Order) -> FromChild:
    """What the child that works for this order says. It may be broken, or worse: what no honest one would say is
    garbled."""
    said = _read(_from_child, body)
    _check_said(said, order)
    if isinstance(said, Ended) and said.how not in _OWN_WORDS:
        raise Garbled(f"a child cannot say {said.how}")
    return said


def from_node(body: bytes, order: Order) -> FromNode:
    """Return what a node says of the attempt of this order. Raise `Garbled` for what no honest node would say."""
    said = _read(_from_node, body)
    word: Said = _read(_ended, memoryview(said.ended)) if isinstance(said, Gone) else said
    _check_said(word, order)
    if isinstance(said, Gone):
        _check_numbers(said.took_seconds, said.usage.cpu_seconds, said.usage.memory_peak_bytes)
    if isinstance(word, Ended) and word.published:
        raise Garbled("files of an attempt on a cluster node")
    if isinstance(said, Started):
        _check_numbers(said.pid, said.pid_started)
        return replace(said, sandbox=text(said.sandbox, _WORD_CHARACTERS_MAX))
    if isinstance(said, Logged):
        return replace(said, lines=[text(line, LINE_CHARACTERS_MAX) for line in said.lines[-LOG_LINES_MOST:]])
    return said


def _check_said(said: Said, order: Order) -> None:
    if said.key != order.key:
        raise Garbled("it speaks for another attempt")
    if isinstance(said, Progressed):
        if said.count is not None:
            _check_numbers(said.count.done, said.count.total, said.count.rate)
    elif isinstance(said, Checkpointed):
        _check_checkpoint(said)
    elif isinstance(said, PagesRead):
        for page in said.pages:
            _check_page(page, order)
    elif isinstance(said, Asked):
        try:
            question_from(said.kind, said.body)
        except ValueError as error:
            raise Garbled(str(error)) from error
    elif isinstance(said, Ended):
        _check_json(said.result)
        _check_words((file.role for file in said.published_again), is_needed=False)


def check_paths(ended: Ended) -> None:
    """Raise `Garbled` unless every published path, role and digest can be one."""
    for file in ended.published:
        if file.path.is_absolute() or ".." in file.path.parts or not file.path.parts or "\0" in str(file.path):
            raise Garbled("a file outside its staging")
        _check_digests(file)
    _check_words((file.role for file in ended.published), is_needed=False)


def check_files(ended: Ended, directory: int) -> None:
    """Raise `Garbled` unless every published path is a regular file beneath this directory, which nothing else may
    write any more."""
    for file in ended.published:
        try:
            descriptor = open_beneath(directory, file.path, os.O_PATH)
        except OSError as error:
            raise Garbled(f"a file outside its staging: {error.strerror}") from error
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
        if not is_file:
            raise Garbled("a file outside its staging: not a regular file")


def _check_digests(file: Publication) -> None:
    if not _DIGEST.fullmatch(file.sha256) or not _MD5.fullmatch(file.md5):
        raise Garbled("a digest that is none")


def from_nursery(body: bytes, staging_root: Path) -> Hello | Pong | NodesSeen | Happening:
    """As the daemon takes it: files with their whole path, and words that are fit to be shown."""
    message = _read(_from_nursery, body)
    if isinstance(message, Gone):
        return _shown(_read(_ended, memoryview(message.ended)), message, staging_root)
    if isinstance(message, Progressed):
        count = message.count and message.count._replace(unit=text(message.count.unit, _WORD_CHARACTERS_MAX))
        return replace(message, message=text(message.message, LINE_CHARACTERS_MAX), count=count)
    return message


def _shown(ended: Ended, gone: Gone, staging_root: Path) -> Ended:
    place = staging_root / name_of(ended.key) if ended.published else staging_root
    after = ended.after_seconds
    return replace(
        ended,
        usage=gone.usage,
        took_seconds=gone.took_seconds,
        code=text(ended.code, 100),
        message=text(ended.message, MESSAGE_CHARACTERS_MAX),
        remedy=text(ended.remedy, MESSAGE_CHARACTERS_MAX),
        after_seconds=None if after is None else max(after, 0.0),
        published=[
            replace_fields(one, path=place / one.path, name=_name(one.name or str(one.path)), note=_name(one.note))
            for one in ended.published
        ],
        published_again=[replace_fields(one, name=_name(one.name)) for one in ended.published_again],
    )


def _read(decoder: msgspec.json.Decoder[M], body: bytes | memoryview) -> M:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Garbled(str(error)) from error


class Inbox:
    """Bytes as they arrive; whole messages as they are complete."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        self._buffer += received
        bodies: list[bytes] = []
        begin = 0
        while len(self._buffer) - begin >= _HEADER.size:
            magic, version, length = _HEADER.unpack_from(self._buffer, begin)
            if magic != b"P" or length > self._bytes_max:
                raise Garbled("this is not a message of ours")
            if version != VERSION:
                raise Garbled(f"a message of version {version}; this is version {VERSION}")
            end = begin + _HEADER.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[begin + _HEADER.size : end]))
            begin = end
        del self._buffer[:begin]
        if self._buffer and self._buffer[:1] != b"P":
            raise Garbled("this is not a message of ours")
        return bodies


# --- lines --------------------------------------------------------------------------------------------

GAP = "… older lines are left out here"
"""It is trimmed away with the lines before it once an attempt's newest lines are all written."""


class Newest:
    """What an attempt has logged and printed, and waits to be passed on in its order. Whatever comes faster than it can
    be written costs its author: the older lines go first, for the table would not keep them either."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self.characters = 0
        self._has_gap = False

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)
            self.characters += len(line)
        self._forget_older()

    def put_back(self, lines: Iterable[str]) -> None:
        """Those that were taken last, and are older than all that wait."""
        several = list(lines)
        self._lines.extendleft(reversed(several))
        self.characters += sum(map(len, several))
        self._forget_older()

    def take(self, most: int = LOG_LINES_MOST) -> list[str]:
        taken = [self._lines.popleft() for _ in range(min(most, len(self._lines)))]
        self.characters -= sum(map(len, taken))
        gap, self._has_gap = [GAP] if self._has_gap else [], False
        return [*gap, *taken]

    def _forget_older(self) -> None:
        while len(self._lines) > LOG_LINES_MOST:
            self.characters -= len(self._lines.popleft())
            self._has_gap = True


# --- questions --------------------------------------------------------------------------------------


def question_text(question: Question[Any]) -> tuple[str, str]:
    """Its kind, and the rest as JSON."""
    kind = type(question).__name__
    if QUESTIONS.get(kind, (None,))[0] is not type(question):
        raise ValueError(f"{kind} is not a question: ask one of {', '.join(QUESTIONS)}")
    _check_bounds(question)
    return kind, msgspec.json.encode(question).decode()


def question_from(kind: str, body: str) -> Question[Answer]:
    if kind not in QUESTIONS:
        raise ValueError(f"there is no question {kind[:40]!r}")
    question: Question[Answer] = _decoded(body, QUESTIONS[kind][0])
    _check_bounds(question)
    return question


def answer_from(kind: str, body: bytes | msgspec.Raw) -> Answer:
    answer: Answer = _decoded(body, QUESTIONS[kind][1])
    return answer


def answer_to_nothing(question: Question[Any]) -> Answer:
    """Where nothing is known."""
    return QUESTIONS[type(question).__name__][1]()


# Made before children are forked, which would each learn anew what the types hold.
_decoders = {kind: msgspec.json.Decoder(kind) for pair in QUESTIONS.values() for kind in pair}


def _decoded(body: str | bytes | msgspec.Raw, kind: type[Any]) -> Any:
    try:
        return _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from error


def _check_bounds(question: Question[Any]) -> None:
    if isinstance(question, DocumentPages):
        most = LAYOUTS_AT_ONCE if question.with_layout else PAGES_AT_ONCE
        if question.last - question.first >= most:
            layout = " with their layout" if question.with_layout else ""
            raise ValueError(f"ask for at most {most} pages{layout} at once, not {question.first} to {question.last}")
    names = question.digests if isinstance(question, KnownPages) else ()
    names = question.ids if isinstance(question, CrawlItems) else names
    if len(names) > NAMES_AT_ONCE:
        raise ValueError(f"ask for at most {NAMES_AT_ONCE} at once, not {len(names)}")


# --- what may stand in them -------------------------------------------------------------------------


def _check_checkpoint(said: Checkpointed) -> None:
    _check_json(said.state)
    if said.crawl is not None:
        names = [said.crawl.crawl, said.crawl.keys or "none", *(item.id for item in said.crawl.items)]
        _check_words(names, length=_NAME_CHARACTERS_MAX)
        _check_json(said.crawl.state)


def _check_page(page: PageResult, order: Order) -> None:
    if order.document_id is None:
        raise Garbled("a page, and its job has no document")
    if not 1 <= page.number <= _NUMBER_MAX:
        raise Garbled(f"a page with the number {page.number}: they begin with 1")
    _check_words([page.digest])
    _check_words([page.method, page.also], is_needed=False)
    _check_json(page.layout)


def _check_numbers(*numbers: float | None) -> None:
    """Raise `Garbled` for a number that a column cannot take."""
    if not all(0 <= number <= _NUMBER_MAX for number in numbers if number is not None):
        raise Garbled("a number that is none")


def _check_json(said: str | None) -> None:
    """It goes into a column that takes nothing else."""
    try:
        msgspec.json.decode(said if said is not None else "null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Garbled(f"a result or state that is no JSON: {error}") from error


def _check_words(words: Iterable[str], *, length: int = _WORD_CHARACTERS_MAX, is_needed: bool = True) -> None:
    for word in words:
        if len(word) > length or (is_needed and not word) or "\0" in word:
            raise Garbled(f"a name that is none: {text(word, 40)!r}")


def text(said: str, length: int) -> str:
    return clipped(harmless_text(said), length)


def clipped(said: str, length: int) -> str:
    return said if len(said) <= length else said[: length - 1] + "…"


def _name(said: str) -> str:
    return text(said, _NAME_CHARACTERS_MAX)
