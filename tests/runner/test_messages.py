"""Encoding and checks of messages."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from worker_service.base.sanitize import safe_text
from worker_service.jobs.attempts import Usage
from worker_service.jobs.documents import (
    CrawlItem,
    CrawlPage,
    DeferredAction,
    DocumentFacts,
    DocumentRequest,
    OnEnd,
    PageResult,
    RepublishedFile,
)
from worker_service.jobs.job import NewJob
from worker_service.runner import pool as pool_module
from worker_service.runner import protocol
from worker_service.runner.messages import (
    Asked,
    AttemptOver,
    Begin,
    Checkpointed,
    ChildMessage,
    Ended,
    How,
    Launch,
    Order,
    PagesRead,
    Progressed,
    Publication,
    Started,
)
from worker_service.runner.pool import ChildError, LocalPool
from worker_service.runner.protocol import Garbled, Inbox

OURS = bytes([*b"P", protocol.VERSION])

MESSAGES: list[ChildMessage] = [
    Started(1, 2, 3, 4, "landlock"),
    Progressed(1, 2, 40.0, "page 4 of 10"),
    PagesRead(1, 2, [PageResult(4, "d4", "Zürich", "ocr", 91.5, '{"words":[]}')]),
    Checkpointed(1, 2, '{"page":4}', [NewJob("x", after=[1, 2], on_failure=[])], CrawlPage("c", [CrawlItem("i")], 3)),
    Asked(1, 2, 1, "KnownPages", '{"digests":["d4"]}'),
    Ended(
        1,
        2,
        How.DONE,
        '{"a":1}',
        [
            NewJob(
                "ingest",
                after=[],
                on_failure=[DeferredAction("webhook", "{}", OnEnd.FAILURE)],
                document=DocumentRequest(
                    "/a.pdf", "a.pdf", "ab", actions=[DeferredAction("x", is_standing=True)], tags=[]
                ),
            )
        ],
        [Publication(Path("a.txt"), "text", "a.txt", "ab" * 32)],
        published_again=[RepublishedFile(7, "original")],
        document=DocumentFacts(pages=12),
        publishes=True,
    ),
]


ORDER = Order(1, 2, "x", "local", None, None, None, document_id=7)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_of_a_child_survive_encoding_and_fragmentation(message: ChildMessage) -> None:
    frame = protocol.encode_frame(message)
    inbox = Inbox(2000)

    # One byte at a time.
    bodies = [body for at in range(len(frame)) for body in inbox.feed(frame[at : at + 1])]

    assert [protocol.decode_child_message(body, ORDER) for body in bodies] == [message]
    if not isinstance(message, Ended):
        # The daemon gets the same bytes.
        assert [protocol.decode_pool_message(body, Path("/s")) for body in bodies] == [message]


def test_the_end_of_an_attempt_arrives_with_usage_and_absolute_paths() -> None:
    ended = MESSAGES[-1]
    over = AttemptOver(msgspec.Raw(protocol.encode_message(ended)), Usage(1.5, 1024, "SIGKILL"), 0.5)
    (body,) = Inbox(2000).feed(protocol.encode_frame(over))

    decoded = protocol.decode_pool_message(body, Path("/s"))

    assert isinstance(ended, Ended)
    assert isinstance(decoded, Ended)
    assert (decoded.usage, decoded.took_seconds, decoded.files) == (over.usage, 0.5, [Path("/s/1-2/a.txt")])
    assert (decoded.how, decoded.result, decoded.document) == (ended.how, ended.result, ended.document)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_for_another_attempt_is_garbled(message: ChildMessage) -> None:
    (body,) = Inbox(2000).feed(protocol.encode_frame(message))

    with pytest.raises(Garbled, match="another attempt"):
        protocol.decode_child_message(body, replace(ORDER, fence=3))


def test_several_messages_can_arrive_at_once() -> None:
    frames = b"".join(map(protocol.encode_frame, MESSAGES))

    assert len(Inbox(2000).feed(frames)) == len(MESSAGES)


def test_a_launch_survives_encoding() -> None:
    inputs = {"original": Path("/w/objects/1-1/a.pdf")}
    order = Order(1, 2, "x", "local", None, '{"a": "ü"}', 60, "[1]", 7, 2, inputs, known_digests=["d"])
    launch = Launch(order, {"A": "b"})

    (body,) = Inbox(2000).feed(protocol.encode_frame(launch))

    assert protocol.decode_daemon_message(body) == launch


@pytest.mark.parametrize(
    "received",
    [b"HTTP/1.1 200 OK", b"\0" * 10, b"P\x01\0\0\0\x01x", OURS + b"\xff\xff\xff\xff", OURS + b"\0\0\x10\0"],
    ids=["text", "zeros", "another version", "endless", "longer than allowed"],
)
def test_bytes_that_are_no_frame_are_garbled_at_once(received: bytes) -> None:
    with pytest.raises(Garbled):
        Inbox(2000).feed(received)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"type":"Log"}', b'{"type":"Log","line":1}', b"[" * 100_000, b'{"type":"X"}']
)
def test_an_invalid_message_is_garbled(body: bytes) -> None:
    with pytest.raises(Garbled):
        protocol.decode_child_message(body, ORDER)
    with pytest.raises(Garbled):
        protocol.decode_pool_message(body, Path("/s"))


def test_control_characters_are_replaced_and_joiners_stay() -> None:
    assert safe_text("5\xa0km 👩\u200d🔧", 100) == "5\xa0km 👩\u200d🔧"
    assert safe_text("one\n\x1b[31mtwo\x07", 100) == "one\n�[31mtwo�"


def test_a_fork_server_that_sends_garbage_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    # Its arguments: -P -m MODULE DESCRIPTOR
    talk = "import os, sys, time; os.write(int(sys.argv[4]), b'nonsense'); time.sleep(3600)"
    script.write_text(f"#!{sys.executable} -I\n{talk}\n")
    script.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(script))
    monkeypatch.setattr(pool_module, "_EXIT_SECONDS", 0.2)
    fork_server = LocalPool(Begin(tmp_path / "s", tmp_path / "k"))

    with pytest.raises(ChildError, match="garbage"):
        fork_server.start()

    fork_server.close()
