"""What is said between daemon, nursery and children: frames of a bounded length, each one JSON message.

A frame is ``P``, the version, four bytes of length, and the message. Whoever reads trusts nothing: what does not
begin so, is too long, or does not fit its type is `Garbled`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from worker_service.children.model import (
    Asked,
    Checkpointed,
    Described,
    Ended,
    Happening,
    How,
    Logged,
    Order,
    PagesRead,
    Progressed,
    Publication,
    Started,
)
from worker_service.jobs.documents import CrawlPage, DocumentFacts, FileAgain, PageResult
from worker_service.jobs.model import NewJob

VERSION = 4
FRAME_BYTES_MAX = 8 << 20
"""Of what a child may say at once."""
RELAY_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Of what passes between daemon and nursery: a child's words once more, with an envelope."""

_HEADER = struct.Struct(">cBI")
_HAPPENINGS: dict[str, type[Happening]] = {
    kind.__name__: kind for kind in (Started, Progressed, Logged, PagesRead, Checkpointed, Asked, Ended)
}

M = TypeVar("M")


class Garbled(ValueError):
    """These are not our words."""


# --- daemon to nursery ----------------------------------------------------------------------------


class Begin(msgspec.Struct, tag=True, frozen=True):
    staging_root: Path
    keep_root: Path
    house: str
    commands: dict[str, dict[str, Any]]
    sandbox: str
    grace_seconds: float
    import_seconds: float
    extra_handlers: tuple[str, ...] = ()
    is_without_installed: bool = False
    lock_fd: int | None = None
    credentials: Path | None = None
    idle_seconds: float = 10.0
    types: tuple[str, ...] = ()
    """Those that will be asked for, as WORKER_TYPES has it: the others are not kept warm."""


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


class Reply(msgspec.Struct, tag=True, frozen=True):
    """The answer to the question of this number, on its way to the child; with a code: why there is none."""

    job_id: int
    fence: int
    number: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    code: str = ""
    message: str = ""


ToNursery = Begin | Launch | Stop | Ping | Reply


# --- nursery to daemon ----------------------------------------------------------------------------


class Introduced(msgspec.Struct, frozen=True):
    described: Described
    environment: tuple[str, ...] = ()


class Hello(msgspec.Struct, tag=True, frozen=True):
    threads: int
    handlers: tuple[Introduced, ...]


class Happened(msgspec.Struct, tag=True, frozen=True):
    kind: str
    body: msgspec.Raw


class Pong(msgspec.Struct, tag=True, frozen=True):
    pass


FromNursery = Hello | Happened | Pong


# --- nursery to child, beside replies --------------------------------------------------------------


class Next(msgspec.Struct, frozen=True):
    """An order for a child that is kept, and its number there."""

    number: int
    order: Order


# --- child to nursery -----------------------------------------------------------------------------


class Ready(msgspec.Struct, tag=True, frozen=True):
    sandbox: str


class Progress(msgspec.Struct, tag=True, frozen=True):
    percent: float
    message: str


class Pages(msgspec.Struct, tag=True, frozen=True):
    """As many at once as its child has ready: each message wakes nursery and daemon."""

    pages: list[PageResult]


class Checkpoint(msgspec.Struct, tag=True, frozen=True):
    state: str
    follow_ups: list[NewJob]
    crawl: CrawlPage | None = None


class Ask(msgspec.Struct, tag=True, frozen=True):
    number: int
    kind: str
    body: str


class Used(msgspec.Struct, frozen=True):
    """By one of a kept child's attempts."""

    seconds: float
    cpu_seconds: float
    memory_peak_bytes: int


class Finished(msgspec.Struct, tag=True, frozen=True):
    how: How
    result: str | None = None
    follow_ups: list[NewJob] = []
    files: list[Publication] = []
    files_again: list[FileAgain] = []
    document: DocumentFacts | None = None
    publishes: bool = False
    code: str = ""
    message: str = ""
    after_seconds: float | None = None
    rests_source: bool = False
    number: int = 0
    """Which of a kept child's attempts this is the end of."""
    stays: bool = False
    """It is as it was before, and takes the next order."""
    used: Used | None = None


class Tried(msgspec.Struct, tag=True, frozen=True):
    """What a trial child found behind one entry point."""

    handlers: tuple[Introduced, ...]
    threads: int
    reason: str = ""
    """Why it cannot be used."""


FromChild = Ready | Progress | Pages | Checkpoint | Ask | Finished


# --- frames ---------------------------------------------------------------------------------------


def _encode_other(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode_other(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind.__name__)


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_to_nursery: msgspec.json.Decoder[ToNursery] = msgspec.json.Decoder(ToNursery, dec_hook=_decode_other)
_from_nursery: msgspec.json.Decoder[FromNursery] = msgspec.json.Decoder(FromNursery, dec_hook=_decode_other)
_from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild, dec_hook=_decode_other)
_to_child: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_to_kept: msgspec.json.Decoder[Next] = msgspec.json.Decoder(Next, dec_hook=_decode_other)
_tried: msgspec.json.Decoder[Tried] = msgspec.json.Decoder(Tried, dec_hook=_decode_other)


def frame(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return _HEADER.pack(b"P", VERSION, len(body)) + body


def frame_of_happening(happening: Happening) -> bytes:
    return frame(Happened(type(happening).__name__, msgspec.Raw(_encoder.encode(happening))))


def to_nursery(body: bytes) -> ToNursery:
    return _read(_to_nursery, body)


def from_nursery(body: bytes) -> Hello | Pong | Happening:
    message = _read(_from_nursery, body)
    if isinstance(message, Hello | Pong):
        return message
    kind = _HAPPENINGS.get(message.kind)
    if kind is None:
        raise Garbled(f"there is no happening {message.kind[:40]!r}")
    try:
        return msgspec.json.decode(message.body, type=kind, dec_hook=_decode_other)
    except msgspec.MsgspecError as error:
        raise Garbled(str(error)) from error


def from_child(body: bytes) -> FromChild:
    return _read(_from_child, body)


def to_child(body: bytes) -> Reply:
    return _read(_to_child, body)


def for_kept(following: Next) -> bytes:
    """Without a frame: what carries it keeps messages whole."""
    return _encoder.encode(following)


def to_kept(body: bytes) -> Next:
    return _read(_to_kept, body)


def from_trial(body: bytes) -> Tried:
    return _read(_tried, body)


def _read(decoder: msgspec.json.Decoder[M], body: bytes) -> M:
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


def plain(tables: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
    return {name: dict(table) for name, table in tables.items()}


def clipped(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def printable(text: str) -> str:
    return "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)
