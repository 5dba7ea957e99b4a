"""Messages between daemon, fork server and children: their types, their frames, and the checks on them.

The fork server checks a child's messages (`Started` … `Ended`) and passes them on as the same bytes. It adds one
message of its own, `AttemptOver`: the child and all that it started have ended. A frame is ``P``, one byte of version,
four bytes of length, and one JSON message. The receiver trusts nothing: a message with another header, beyond the size
limit, or of the wrong type raises `Garbled`.
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
from worker_service.jobs.attempts import Count, Usage
from worker_service.jobs.documents import (
    QUESTIONS,
    CrawlItems,
    CrawlPage,
    DocumentFacts,
    DocumentPages,
    FileAgain,
    KnownDocument,
    KnownPages,
    PageResult,
    Question,
    QuestionAnswer,
)
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.jobs.job import NewJob
from worker_service.jobs.workers import HandlerFacts, NodeState

VERSION = 8
FRAME_BYTES_MAX = 8 << 20
"""Limit of one message from a child."""
RELAY_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Limit of one message between daemon and fork server: a child's message in an envelope."""
PAGES_AT_ONCE = 1000
LAYOUTS_AT_ONCE = 100
NAMES_AT_ONCE = 50_000
"""Page digests, or ids of a crawl."""
LINE_CHARACTERS_MAX = 2000
MESSAGE_CHARACTERS_MAX = 4000
_NAME_CHARACTERS_MAX = 1000
_WORD_CHARACTERS_MAX = 200
_NUMBER_MAX = 2**53
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?")
_MD5 = re.compile(r"(?:[0-9a-f]{32})?")

Key = tuple[int, int]
"""Job id and fence: together they identify one attempt for ever."""

M = TypeVar("M")


class Garbled(ValueError):
    """The message does not follow the protocol."""


class ChildError(PagemillError):
    """The fork server could not be started, or died. All its processes are gone; it can be started again."""

    code = "nursery_failed"
    exit_code = 69


def attempt_name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


# --- orders and handlers ---------------------------------------------------------------------------


class Order(Struct, frozen=True):
    """One attempt of one job, with everything that its child needs to know."""

    job_id: int
    fence: int
    job_type: str
    platform: str
    account: str | None
    payload: str | None
    timeout_seconds: int | None
    """The job's own limit; None uses the handler's."""
    state: str | None = None
    """The last checkpoint, as JSON."""
    document_id: int | None = None
    generation: int | None = None
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Published files of the job's document by role; absolute paths, readable in this attempt."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of inputs by role, where it is known."""
    owner: str = ""
    document: KnownDocument | None = None
    parent_id: int | None = None
    """The job that enqueued this one."""
    node_slots: int = 0
    """Total slots of all cluster nodes."""
    known_digests: Sequence[str] = ()
    """Digests of the document's pages that earlier attempts have read. A node answers `KnownPages` from these."""

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Declared(Struct, frozen=True):
    """Declarations of a handler that are only shown to users. Its child reads them from the handler itself."""

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
    """The description of one handler, made in a trial child."""

    facts: HandlerFacts
    reuse: int = 1
    """Maximum number of attempts that one child may serve."""
    set_aside: str | None = None
    """Why the handler cannot be used: it hangs, crashes or cannot be imported. Its jobs fail with this message."""
    distribution: str = ""
    """Distribution and module:attribute of the handler; empty if several provide it."""
    spec: str = ""
    declared: Declared | None = None
    """None if the handler was set aside before it was imported."""
    identity: Sequence[str] = ()
    """Programs and data that its results depend on (see `Handler.identity`)."""
    runs_on_cluster: bool = False
    has_slicer: bool = False


# --- messages from a child --------------------------------------------------------------------------


class AttemptReport(msgspec.Struct, tag=True, frozen=True):
    """Base class of the messages about one attempt."""

    job_id: int
    fence: int

    @property
    def key(self) -> Key:
        return self.job_id, self.fence


class Assigned(AttemptReport, tag=True, frozen=True):
    """The attempt's Ray task runs on this cluster node; its child has not started yet."""

    node: str


class Started(AttemptReport, tag=True, frozen=True):
    """The child runs and its sandbox is applied. `pid_started` is its start time in clock ticks; together with the pid
    it identifies one process for ever."""

    pid: int
    pid_started: int
    sandbox: str


class Progressed(AttemptReport, tag=True, frozen=True):
    percent: float
    message: str
    count: Count | None = None


class Logged(AttemptReport, tag=True, frozen=True):
    """Lines that the attempt has logged and printed since the last message. Sent by the fork server, which reads the
    output."""

    lines: Sequence[str]


class PagesRead(AttemptReport, tag=True, frozen=True):
    """Pages of the job's document. A child sends many at once, because each message wakes fork server and daemon."""

    pages: Sequence[PageResult]


class Checkpointed(AttemptReport, tag=True, frozen=True):
    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None


class Asked(AttemptReport, tag=True, frozen=True):
    """A question of the child, which waits for a `Reply` with the same number."""

    number: int
    kind: str
    body: str
    """The question as JSON."""


class How(StrEnum):
    """The end of an attempt, before the daemon decides what happens to the job."""

    DONE = "done"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    """Stopped by the daemon: the job was cancelled, the lease was lost, or the daemon drains."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    GARBLED = "garbled"
    """The child sent garbage, or ended without a result."""


_OWN_WORDS = (How.DONE, How.RETRYABLE, How.PERMANENT, How.SNOOZED, How.OUT_OF_MEMORY)


class Publication(Struct, frozen=True):
    """A file to be published, and its handler's description of it."""

    path: Path
    """A file in the staging directory, fsynced: relative in the child's message, absolute in the daemon's."""
    role: str = ""
    name: str = ""
    sha256: str = ""
    md5: str = ""
    note: str = ""


class Ended(AttemptReport, tag=True, frozen=True):
    """The end of an attempt, sent by its child or by the fork server. When the daemon receives it, no process of the
    attempt is left."""

    how: How
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    published: Sequence[Publication] = ()
    """Files that the daemon still has to move to the published files."""
    code: str = ""
    message: str = ""
    remedy: str = ""
    after_seconds: float | None = None
    usage: Usage = Usage()
    published_again: Sequence[FileAgain] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """The generation of the document becomes the one that users see."""
    pauses_source: bool = False
    """Snoozed because its source must pause: no other job of the source should start either."""
    took_seconds: float | None = None
    """Duration, for a child that serves several attempts. For an order that was not started, its minimum wait."""
    is_reusable: bool = False
    """The child is unchanged and can take the next order."""

    @property
    def files(self) -> list[Path]:
        return [one.path for one in self.published]


AttemptEvent = Assigned | Started | Progressed | Logged | PagesRead | Checkpointed | Asked | Ended


# --- daemon to fork server; orders and replies go on to the child -----------------------------------


class ClusterBegin(msgspec.Struct, frozen=True):
    """The part of `Begin` that is for the Ray driver."""

    address: str
    """HOST:PORT of the Ray head."""
    objects: Path
    """The directory of published files: the only one of the workspace that the driver may read."""
    identity: Mapping[str, Sequence[str]] = {}
    """`Handler.identity` on this machine, by job type that runs on nodes."""
    slicers: Mapping[str, str] = {}
    """Entry point of the handler (module:attribute), by job type whose originals can be sliced."""


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first message, with the settings of the fork server. `LocalPool` fills in `pool_id` and `credentials`."""

    staging_root: Path
    keep_root: Path
    lock_fd: int | None = None
    commands: Mapping[str, Mapping[str, Any]] = {}
    sandbox: str = "strict"
    slots: Mapping[str, int] = {}
    """Maximum number of running attempts, by job class. More orders wait, if their handler declares reuse."""
    types: Sequence[str] = ()
    """Job types that this worker will claim (WORKER_TYPES). Other handlers are not preloaded."""
    grace_seconds: float = 10.0
    import_seconds: float = 20.0
    tries_all: bool = False
    """Try the shipped handlers in children, too. Set after one of them ended a fork server that loaded them untried."""
    idle_seconds: float = 10.0
    """Maximum idle time of a child; then it is stopped."""
    wait_seconds: float = 0.1
    """Maximum wait of an order while no attempt of its class ends; then it goes back to the daemon."""
    extra_handlers: Sequence[str] = ()
    """``module:attribute``, for tests, where nothing is installed."""
    is_without_installed: bool = False
    handlers_dir: Path | None = None
    """Directory of handler files; None for no such directory."""
    pool_id: str = ""
    credentials: Path | None = None
    cluster: ClusterBegin | None = None
    """Present only for the Ray driver, which takes the place of a fork server."""


class Launch(msgspec.Struct, tag=True, frozen=True):
    order: Order
    environment: dict[str, str]
    """The variables that the handler declares; the fork server itself has none of them."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    job_id: int
    fence: int
    now: bool = False


class Ping(msgspec.Struct, tag=True, frozen=True):
    """A check whether the fork server still responds."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """The names of all nodes that get no new attempts; sent only to the Ray driver."""

    nodes: tuple[str, ...] = ()


class Reply(msgspec.Struct, tag=True, frozen=True):
    """The answer to the child's question of this number. If `code` is set, there is no answer; `message` says why."""

    job_id: int
    fence: int
    number: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    code: str = ""
    message: str = ""


# --- fork server to daemon --------------------------------------------------------------------------


class Hello(msgspec.Struct, tag=True, frozen=True):
    threads: int
    handlers: Sequence[Described]


class Pong(msgspec.Struct, tag=True, frozen=True):
    pass


class NodesSeen(msgspec.Struct, tag=True, frozen=True):
    """All nodes of the cluster, as the Ray driver sees them."""

    nodes: tuple[NodeState, ...]


class AttemptOver(msgspec.Struct, tag=True, frozen=True):
    """The proven end of an attempt. `ended` is the child's message unchanged; usage and duration in it are ignored."""

    ended: msgspec.Raw
    usage: Usage
    took_seconds: float | None = None


DaemonMessage = Begin | Launch | Stop | Ping | Reply | Drain
ChildInput = Launch | Reply
ChildMessage = Started | Progressed | PagesRead | Checkpointed | Asked | Ended
NodeMessage = AttemptOver | Started | Progressed | Logged | PagesRead | Checkpointed | Asked
PoolMessage = (
    Hello | Pong | NodesSeen | AttemptOver | Assigned | Started | Progressed | Logged | PagesRead | Checkpointed | Asked
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
# Created before children are forked, so that no child has to analyse the types again.
_daemon_decoder: msgspec.json.Decoder[DaemonMessage] = msgspec.json.Decoder(DaemonMessage, dec_hook=_decode_other)
_pool_decoder: msgspec.json.Decoder[PoolMessage] = msgspec.json.Decoder(PoolMessage, dec_hook=_decode_other)
_child_decoder: msgspec.json.Decoder[ChildMessage] = msgspec.json.Decoder(ChildMessage, dec_hook=_decode_other)
_child_input_decoder: msgspec.json.Decoder[ChildInput] = msgspec.json.Decoder(ChildInput, dec_hook=_decode_other)
_node_decoder: msgspec.json.Decoder[NodeMessage] = msgspec.json.Decoder(NodeMessage, dec_hook=_decode_other)
_ended_decoder: msgspec.json.Decoder[Ended] = msgspec.json.Decoder(Ended, dec_hook=_decode_other)


def encode_message(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def wrap_frame(body: bytes) -> bytes:
    return _HEADER.pack(b"P", VERSION, len(body)) + body


def encode_frame(message: msgspec.Struct) -> bytes:
    return wrap_frame(_encoder.encode(message))


def decode_daemon_message(body: bytes) -> DaemonMessage:
    return _read(_daemon_decoder, body)


def decode_child_input(body: bytes) -> ChildInput:
    return _read(_child_input_decoder, body)


def decode_as(kind: type[M], body: bytes) -> M:
    return _read(msgspec.json.Decoder(kind, dec_hook=_decode_other), body)


def decode_child_message(body: bytes, order: Order) -> ChildMessage:
    """Decode a message from the child of this order. Raise `Garbled` for anything that an honest child would not
    send."""
    message = _read(_child_decoder, body)
    _check_report(message, order)
    if isinstance(message, Ended) and message.how not in _OWN_WORDS:
        raise Garbled(f"a child cannot say {message.how}")
    return message


def decode_node_message(body: bytes, order: Order) -> NodeMessage:
    """Decode a message from a node about the attempt of this order. Raise `Garbled` for anything that an honest node
    would not send."""
    message = _read(_node_decoder, body)
    word: AttemptReport = (
        _read(_ended_decoder, memoryview(message.ended)) if isinstance(message, AttemptOver) else message
    )
    _check_report(word, order)
    if isinstance(message, AttemptOver):
        _check_numbers(message.took_seconds, message.usage.cpu_seconds, message.usage.memory_peak_bytes)
    if isinstance(word, Ended) and word.published:
        raise Garbled("files of an attempt on a cluster node")
    if isinstance(message, Started):
        _check_numbers(message.pid, message.pid_started)
        return replace(message, sandbox=safe_text(message.sandbox, _WORD_CHARACTERS_MAX))
    if isinstance(message, Logged):
        return replace(
            message, lines=[safe_text(line, LINE_CHARACTERS_MAX) for line in message.lines[-LOG_LINES_MOST:]]
        )
    return message


def _check_report(message: AttemptReport, order: Order) -> None:
    if message.key != order.key:
        raise Garbled("it speaks for another attempt")
    if isinstance(message, Progressed):
        if message.count is not None:
            _check_numbers(message.count.done, message.count.total, message.count.rate)
    elif isinstance(message, Checkpointed):
        _check_checkpoint(message)
    elif isinstance(message, PagesRead):
        for page in message.pages:
            _check_page(page, order)
    elif isinstance(message, Asked):
        try:
            decode_question(message.kind, message.body)
        except ValueError as error:
            raise Garbled(str(error)) from error
    elif isinstance(message, Ended):
        _check_json(message.result)
        _check_words((file.role for file in message.published_again), is_needed=False)


def check_paths(ended: Ended) -> None:
    """Raise `Garbled` unless every published path, role and digest is valid."""
    for file in ended.published:
        if file.path.is_absolute() or ".." in file.path.parts or not file.path.parts or "\0" in str(file.path):
            raise Garbled("a file outside its staging")
        _check_digests(file)
    _check_words((file.role for file in ended.published), is_needed=False)


def check_files(ended: Ended, directory: int) -> None:
    """Raise `Garbled` unless every published path is a regular file beneath this directory, which no process may write
    any more."""
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


def decode_pool_message(body: bytes, staging_root: Path) -> Hello | Pong | NodesSeen | AttemptEvent:
    """Decode a message for the daemon: published files get their full path, and texts are made safe to show."""
    message = _read(_pool_decoder, body)
    if isinstance(message, AttemptOver):
        return _with_safe_texts(_read(_ended_decoder, memoryview(message.ended)), message, staging_root)
    if isinstance(message, Progressed):
        count = message.count and message.count._replace(unit=safe_text(message.count.unit, _WORD_CHARACTERS_MAX))
        return replace(message, message=safe_text(message.message, LINE_CHARACTERS_MAX), count=count)
    return message


def _with_safe_texts(ended: Ended, over: AttemptOver, staging_root: Path) -> Ended:
    place = staging_root / attempt_name(ended.key) if ended.published else staging_root
    after = ended.after_seconds
    return replace(
        ended,
        usage=over.usage,
        took_seconds=over.took_seconds,
        code=safe_text(ended.code, 100),
        message=safe_text(ended.message, MESSAGE_CHARACTERS_MAX),
        remedy=safe_text(ended.remedy, MESSAGE_CHARACTERS_MAX),
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
    """Received bytes, split into complete messages."""

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


# --- log lines ----------------------------------------------------------------------------------------

GAP = "… older lines are left out here"
"""The prune of log lines removes it with the lines before it, once all of an attempt's newest lines are written."""


class LogBuffer:
    """Lines that an attempt has logged and printed, waiting to be written in order. If they come faster than they can
    be written, the oldest are dropped, since the table would not keep them either."""

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
        """Return lines from the last `take`; they are older than all that wait."""
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


def encode_question(question: Question[Any]) -> tuple[str, str]:
    """Return the kind of the question, and the question as JSON."""
    kind = type(question).__name__
    if QUESTIONS.get(kind, (None,))[0] is not type(question):
        raise ValueError(f"{kind} is not a question: ask one of {', '.join(QUESTIONS)}")
    _check_bounds(question)
    return kind, msgspec.json.encode(question).decode()


def decode_question(kind: str, body: str) -> Question[QuestionAnswer]:
    if kind not in QUESTIONS:
        raise ValueError(f"there is no question {kind[:40]!r}")
    question: Question[QuestionAnswer] = _decode(body, QUESTIONS[kind][0])
    _check_bounds(question)
    return question


def decode_answer(kind: str, body: bytes | msgspec.Raw) -> QuestionAnswer:
    answer: QuestionAnswer = _decode(body, QUESTIONS[kind][1])
    return answer


def empty_answer(question: Question[Any]) -> QuestionAnswer:
    """Return the answer of an empty database."""
    return QUESTIONS[type(question).__name__][1]()


# Created before children are forked, so that no child has to analyse the types again.
_decoders = {kind: msgspec.json.Decoder(kind) for pair in QUESTIONS.values() for kind in pair}


def _decode(body: str | bytes | msgspec.Raw, kind: type[Any]) -> Any:
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


# --- checks of contents -----------------------------------------------------------------------------


def _check_checkpoint(message: Checkpointed) -> None:
    _check_json(message.state)
    if message.crawl is not None:
        names = [message.crawl.crawl, message.crawl.keys or "none", *(item.id for item in message.crawl.items)]
        _check_words(names, length=_NAME_CHARACTERS_MAX)
        _check_json(message.crawl.state)


def _check_page(page: PageResult, order: Order) -> None:
    if order.document_id is None:
        raise Garbled("a page, and its job has no document")
    if not 1 <= page.number <= _NUMBER_MAX:
        raise Garbled(f"a page with the number {page.number}: they begin with 1")
    _check_words([page.digest])
    _check_words([page.method, page.also], is_needed=False)
    _check_json(page.layout)


def _check_numbers(*numbers: float | None) -> None:
    """Raise `Garbled` for a number that a column cannot store."""
    if not all(0 <= number <= _NUMBER_MAX for number in numbers if number is not None):
        raise Garbled("a number that is none")


def _check_json(value: str | None) -> None:
    """Raise `Garbled` unless the text is JSON; its column accepts nothing else."""
    try:
        msgspec.json.decode(value if value is not None else "null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Garbled(f"a result or state that is no JSON: {error}") from error


def _check_words(words: Iterable[str], *, length: int = _WORD_CHARACTERS_MAX, is_needed: bool = True) -> None:
    for word in words:
        if len(word) > length or (is_needed and not word) or "\0" in word:
            raise Garbled(f"a name that is none: {safe_text(word, 40)!r}")


def safe_text(value: str, length: int) -> str:
    return clip(harmless_text(value), length)


def clip(value: str, length: int) -> str:
    return value if len(value) <= length else value[: length - 1] + "…"


def _name(value: str) -> str:
    return safe_text(value, _NAME_CHARACTERS_MAX)
