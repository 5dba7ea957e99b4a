"""What a head asks of a node, and what it is answered: one call, one answer, typed, as MessagePack.

A call may be lost, or made again, and so may its answer: whatever has an effect is numbered, and heard once. Who reads
trusts nothing: what is too long, or does not fit its type, is `Garbled`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from worker_service.children.messages import RELAY_BYTES_MAX, Garbled

VERSION = 1
"""Of these words. Nodes of another version of pagemill are refused as well, and say so in these words."""
PIECE_BYTES_MAX = 4 << 20
LISTEN_BYTES_MAX = 4 << 20
"""Of what has happened, in one answer; a single happening may be larger."""
ANSWER_BYTES_MAX = 2 * RELAY_BYTES_MAX
FILES_MOST = 1000

M = TypeVar("M")


class Settle(msgspec.Struct, tag=True, frozen=True):
    """Be a node of this house: the first call. Whatever ran here for the house before has ended when it is answered."""

    words: int
    version: str
    house: str
    slots: int | None
    sandbox: str
    types: tuple[str, ...]
    grace_seconds: float
    fence_seconds: float
    shared: str | None = None
    """A directory that both see: inputs below it are not carried."""


class Tell(msgspec.Struct, tag=True, frozen=True):
    """Commands, as the nursery would hear them; `first` is the number of the first."""

    life: str
    first: int
    frames: tuple[bytes, ...]


class Listen(msgspec.Struct, tag=True, frozen=True):
    """What has happened since number `heard`? `beat`: the newest answer to this call that has arrived."""

    life: str
    heard: int
    beat: int
    wait_seconds: float
    takes: bool = True
    """False: it is only heard that the node lives; what has happened waits there."""


class Has(msgspec.Struct, tag=True, frozen=True):
    """How much of this content is there?"""

    key: str
    size: int


class Put(msgspec.Struct, tag=True, frozen=True):
    key: str
    size: int
    at: int
    body: bytes


class Get(msgspec.Struct, tag=True, frozen=True):
    """A piece of a file that an attempt has published."""

    job_id: int
    fence: int
    path: str
    at: int
    most: int


class Forget(msgspec.Struct, tag=True, frozen=True):
    """What this attempt has published was taken."""

    job_id: int
    fence: int


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Stop everything: the head goes."""


Call = Settle | Tell | Listen | Has | Put | Get | Forget | Leave


class Settled(msgspec.Struct, tag=True, frozen=True):
    """It is one. `life`: another after each time that it has stopped everything by itself."""

    life: str
    version: str
    slots: int
    landlock: int
    """Version of the interface; 0: its kernel has none."""
    hello: bytes
    """What its nursery said of the handlers."""


class Told(msgspec.Struct, tag=True, frozen=True):
    """Up to this number commands were heard. 0 in another life."""

    heard: int


class Kept(msgspec.Struct, frozen=True):
    """A file that an attempt wants published, as it lies at the node."""

    path: str
    size: int
    sha256: str


class Happened(msgspec.Struct, frozen=True):
    body: bytes
    """A nursery's message, without its frame."""
    files: tuple[Kept, ...] = ()


class Heard(msgspec.Struct, tag=True, frozen=True):
    life: str
    beat: int
    first: int
    happened: tuple[Happened, ...]


class There(msgspec.Struct, tag=True, frozen=True):
    """So many bytes."""

    bytes: int


class Piece(msgspec.Struct, tag=True, frozen=True):
    body: bytes


class Refused(msgspec.Struct, tag=True, frozen=True):
    code: str
    message: str


Answer = Settled | Told | Heard | There | Piece | Refused

_encoder = msgspec.msgpack.Encoder()
_call: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encoded(said: Call | Answer) -> bytes:
    return _encoder.encode(said)


def call_from(body: bytes) -> Call:
    return _read(_call, body)


def answer_from(body: bytes) -> Answer:
    return _read(_answer, body)


def _read(decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    if len(body) > ANSWER_BYTES_MAX:
        raise Garbled(f"a message of {len(body)} bytes")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Garbled(str(error)) from error
