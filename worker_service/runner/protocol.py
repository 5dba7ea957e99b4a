"""Encode, decode and check the messages between daemon, fork server and children (`messages.py`).

A frame is ``P``, one byte of version, four bytes of length, and one JSON message. A child or a node may be hostile:
other data raises `Garbled`. The fork server passes a child's messages on as the same bytes.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from worker_service.base.directories import open_beneath
from worker_service.base.sanitize import safe_text
from worker_service.jobs.documents import PageResult
from worker_service.jobs.embeddings import EMBED
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.runner.messages import (
    LINE_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    Asked,
    AttemptEvent,
    AttemptMessage,
    AttemptOver,
    Begin,
    Checkpointed,
    ChildInput,
    ChildMessage,
    DaemonMessage,
    Ended,
    Hello,
    How,
    Logged,
    NodeMessage,
    NodesSeen,
    Order,
    PagesRead,
    Pong,
    PoolMessage,
    Progressed,
    Started,
    attempt_name,
)
from worker_service.runner.questions import decode_question

# Raise it with each change of a message: during an upgrade, an old process may meet a new one.
VERSION = 8
# Largest message of a child.
FRAME_BYTES_MAX = 8 << 20
# Largest message to a child, or between daemon and fork server.
RELAY_BYTES_MAX = 4 * FRAME_BYTES_MAX
# For names of files, crawls and their items; and for all other names.
_NAME_CHARACTERS_MAX, _SHORT_NAME_CHARACTERS_MAX = 1000, 200
# JSON numbers are exact up to this one.
_NUMBER_MAX = 2**53
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?")
_MD5 = re.compile(r"(?:[0-9a-f]{32})?")
M = TypeVar("M")


class Garbled(ValueError):
    pass


# Ends that a child may report. The fork server reports the others.
_CHILD_OUTCOMES = (How.DONE, How.RETRYABLE, How.PERMANENT, How.SNOOZED, How.OUT_OF_MEMORY)


def _encode_path(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind.__name__)


_HEADER = struct.Struct(">cBI")
_READ_BYTES = 1 << 16
_encoder = msgspec.json.Encoder(enc_hook=_encode_path)
# Created before children are forked, so that no child has to analyse the types again.
_daemon_decoder: msgspec.json.Decoder[DaemonMessage] = msgspec.json.Decoder(DaemonMessage, dec_hook=_decode_path)
_pool_decoder: msgspec.json.Decoder[PoolMessage] = msgspec.json.Decoder(PoolMessage, dec_hook=_decode_path)
_child_decoder: msgspec.json.Decoder[ChildMessage] = msgspec.json.Decoder(ChildMessage, dec_hook=_decode_path)
_child_input_decoder: msgspec.json.Decoder[ChildInput] = msgspec.json.Decoder(ChildInput, dec_hook=_decode_path)
_node_decoder: msgspec.json.Decoder[NodeMessage] = msgspec.json.Decoder(NodeMessage, dec_hook=_decode_path)
_ended_decoder: msgspec.json.Decoder[Ended] = msgspec.json.Decoder(Ended, dec_hook=_decode_path)


def encode_message(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def wrap_frame(body: bytes) -> bytes:
    return _HEADER.pack(b"P", VERSION, len(body)) + body


def encode_frame(message: msgspec.Struct) -> bytes:
    return wrap_frame(_encoder.encode(message))


def decode_daemon_message(body: bytes) -> DaemonMessage:
    return _decode(_daemon_decoder, body)


def take_control_socket() -> socket.socket:
    """Return the socket to the daemon. The daemon handles signals, and stops this process itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in map(int, sys.argv[1:]):
        os.set_inheritable(descriptor, False)
    return socket.socket(fileno=int(sys.argv[1]))


def receive_begin(control: socket.socket, inbox: Inbox) -> tuple[Begin, list[bytes]]:
    """Return the first message, and those after it. Exit if the daemon is gone."""
    bodies: list[bytes] = []
    while not bodies:
        try:
            received = control.recv(_READ_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            sys.exit(0)
        bodies = inbox.feed(received)
    begin = decode_daemon_message(bodies[0])
    if not isinstance(begin, Begin):
        sys.exit("the daemon did not begin")
    return begin, bodies[1:]


def decode_child_input(body: bytes) -> ChildInput:
    return _decode(_child_input_decoder, body)


def decode_as(kind: type[M], body: bytes) -> M:
    return _decode(msgspec.json.Decoder(kind, dec_hook=_decode_path), body)


def decode_child_message(body: bytes, order: Order) -> ChildMessage:
    message = _decode(_child_decoder, body)
    _check_report(message, order)
    if isinstance(message, Ended) and message.how not in _CHILD_OUTCOMES:
        raise Garbled(f"a child cannot say {message.how}")
    return message


def decode_node_message(body: bytes, order: Order) -> NodeMessage:
    message = _decode(_node_decoder, body)
    if isinstance(message, AttemptOver):
        ended = _decode(_ended_decoder, memoryview(message.ended))
        _check_report(ended, order)
        _check_numbers(message.took_seconds, message.usage.cpu_seconds, message.usage.memory_peak_bytes)
        if ended.published:
            raise Garbled("files of an attempt on a cluster node")
        return message
    _check_report(message, order)
    if isinstance(message, Started):
        _check_numbers(message.pid, message.pid_started)
        return replace(message, sandbox=safe_text(message.sandbox, _SHORT_NAME_CHARACTERS_MAX))
    if isinstance(message, Logged):
        return replace(
            message, lines=[safe_text(line, LINE_CHARACTERS_MAX) for line in message.lines[-LOG_LINES_MOST:]]
        )
    return message


def _check_report(message: AttemptMessage, order: Order) -> None:
    if message.key != order.key:
        raise Garbled("it speaks for another attempt")
    if isinstance(message, Progressed):
        if message.count is not None:
            _check_numbers(message.count.done, message.count.total, message.count.rate)
    elif isinstance(message, Checkpointed):
        if message.embeddings is not None and order.job_type != EMBED:
            raise Garbled("vectors, and its job is not one that makes them")
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
        _check_names((file.role for file in message.published_again), is_needed=False)


def check_paths(ended: Ended) -> None:
    for file in ended.published:
        if file.path.is_absolute() or ".." in file.path.parts or not file.path.parts or "\0" in str(file.path):
            raise Garbled("a file outside its staging")
        if not _DIGEST.fullmatch(file.sha256) or not _MD5.fullmatch(file.md5):
            raise Garbled("a digest that is none")
    _check_names((file.role for file in ended.published), is_needed=False)


def check_files(ended: Ended, directory_fd: int) -> None:
    for file in ended.published:
        try:
            descriptor = open_beneath(directory_fd, file.path, os.O_PATH)
        except OSError as error:
            raise Garbled(f"a file outside its staging: {error.strerror}") from error
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
        if not is_file:
            raise Garbled("a file outside its staging: not a regular file")


def decode_pool_message(body: bytes, staging_root: Path) -> Hello | Pong | NodesSeen | AttemptEvent:
    message = _decode(_pool_decoder, body)
    if isinstance(message, AttemptOver):
        return _complete_end(_decode(_ended_decoder, memoryview(message.ended)), message, staging_root)
    if isinstance(message, Progressed):
        count = message.count
        if count is not None:
            count = count._replace(unit=safe_text(count.unit, _SHORT_NAME_CHARACTERS_MAX))
        return replace(message, message=safe_text(message.message, LINE_CHARACTERS_MAX), count=count)
    return message


def _complete_end(ended: Ended, over: AttemptOver, staging_root: Path) -> Ended:
    folder = staging_root / attempt_name(ended.key)
    published = []
    for file in ended.published:
        name, note = _safe_name(file.name or str(file.path)), _safe_name(file.note)
        published.append(replace(file, path=folder / file.path, name=name, note=note))
    return replace(
        ended,
        usage=over.usage,
        took_seconds=over.took_seconds,
        code=safe_text(ended.code, 100),
        message=safe_text(ended.message, MESSAGE_CHARACTERS_MAX),
        remedy=safe_text(ended.remedy, MESSAGE_CHARACTERS_MAX),
        after_seconds=None if ended.after_seconds is None else max(ended.after_seconds, 0.0),
        published=published,
        published_again=[replace(file, name=_safe_name(file.name)) for file in ended.published_again],
    )


def _decode(decoder: msgspec.json.Decoder[M], body: bytes | memoryview) -> M:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Garbled(str(error)) from error


class Inbox:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """Return the bodies of the frames that are complete now."""
        self._buffer += received
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            magic, version, length = _HEADER.unpack_from(self._buffer, start)
            if magic != b"P" or length > self._bytes_max:
                raise Garbled("this is not a message of ours")
            if version != VERSION:
                raise Garbled(f"a message of version {version}; this is version {VERSION}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        # Garbage shorter than a header would wait for ever.
        if self._buffer and self._buffer[:1] != b"P":
            raise Garbled("this is not a message of ours")
        return bodies


def _check_checkpoint(message: Checkpointed) -> None:
    _check_json(message.state)
    crawl = message.crawl
    if crawl is not None:
        names = [crawl.crawl, crawl.unique_key_prefix or "none", *(item.id for item in crawl.items)]
        _check_names(names, characters_max=_NAME_CHARACTERS_MAX)
        _check_json(crawl.state)


def _check_page(page: PageResult, order: Order) -> None:
    if order.document_id is None:
        raise Garbled("a page, and its job has no document")
    if not 1 <= page.number <= _NUMBER_MAX:
        raise Garbled(f"a page with the number {page.number}: they begin with 1")
    _check_names([page.digest])
    _check_names([page.method, page.alias_digest], is_needed=False)
    _check_json(page.layout)


def _check_numbers(*numbers: float | None) -> None:
    if not all(0 <= number <= _NUMBER_MAX for number in numbers if number is not None):
        raise Garbled("a number that is none")


def _check_json(value: str | None) -> None:
    try:
        msgspec.json.decode(value if value is not None else "null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Garbled(f"a result or state that is no JSON: {error}") from error


def _check_names(
    names: Iterable[str], *, characters_max: int = _SHORT_NAME_CHARACTERS_MAX, is_needed: bool = True
) -> None:
    for name in names:
        if len(name) > characters_max or (is_needed and not name) or "\0" in name:
            raise Garbled(f"a name that is none: {safe_text(name, 40)!r}")


def _safe_name(value: str) -> str:
    return safe_text(value, _NAME_CHARACTERS_MAX)
