"""The node server, without Ray."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import fake_distributions as installed
from tests.cluster.ray_lab import command_of, is_alive, parent_of
from tests.kit.system import ROOT, wait_until
from worker_service import VERSION
from worker_service.cluster import ray_task
from worker_service.cluster.node_server import Terms, fault_of
from worker_service.jobs.workers import HandlerFacts
from worker_service.runner.messages import HandlerDescription, Launch, Order
from worker_service.runner.protocol import encode_message

TERMS = Terms(VERSION, "strict", {"sleep": (), "read": ()})


# An attempt of an earlier test may not have ended yet.
_job_ids = itertools.count(1)


class TaskSession:
    def __init__(self, place: Path, terms: Terms = TERMS) -> None:
        self.connection = ray_task._open_connection(place, encode_message(terms))
        self.messages: list[dict[str, Any]] = []

    def __enter__(self) -> TaskSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection._socket.close()

    def launch(self, job_type: str, **order: Any) -> None:
        payload = json.dumps(order.pop("payload", {}))
        launched = Launch(Order(next(_job_ids), 1, job_type, "local", None, payload, None, **order), {})
        self.connection.send([(ray_task.LAUNCH, encode_message(launched))])

    def wait_for(self, kind: str) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = [message for message in self.messages if message["type"] == kind]
            if found:
                return found[0]
            self.messages += [json.loads(message[1:]) for message in self.connection.receive()]
        pytest.fail(f"no {kind}")

    def child(self) -> int:
        return int(self.wait_for("Started")["pid"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a node server, which stays for all tests of the file."""
    root = tmp_path_factory.mktemp("node")
    handlers = root / "installed"
    installed.install(handlers, "pagemill-system-tests", {"system": "tests.system.handlers:handlers"})
    installed.keep_of_the_shipped(handlers)
    place = root / "state" / "node"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(handlers), str(ROOT)]))
        with TaskSession(place):
            yield place
        for folder in place.parent.iterdir():
            for pid in server_pids(folder):
                os.kill(pid, signal.SIGKILL)


def server_pids(place: Path) -> list[int]:
    pids = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()]
    return [pid for pid in pids if f"node_server {place}" in command_of(pid) and is_alive(pid)]


def test_several_ray_worker_processes_share_one_fork_server(place: Path) -> None:
    with TaskSession(place) as first, TaskSession(place) as second:
        first.launch("sleep")
        second.launch("sleep")

        assert parent_of(first.child()) == parent_of(second.child())
        assert len(server_pids(place)) == 1


def test_an_attempt_ends_with_its_ray_worker_process(place: Path) -> None:
    with TaskSession(place) as other:
        with TaskSession(place) as session:
            session.launch("sleep")
            pid = session.child()

        wait_until(lambda: not is_alive(pid), "its child has ended", seconds=5)
        assert other.connection.is_usable


def test_stop_returns_when_the_attempt_has_ended(place: Path) -> None:
    with TaskSession(place) as session:
        session.launch("sleep")
        pid = session.child()

        session.connection.stop()

        assert not is_alive(pid)


def test_stop_without_an_attempt_returns_at_once(place: Path) -> None:
    with TaskSession(place) as session:
        begun = time.monotonic()
        session.connection.stop()

        assert time.monotonic() - begun < 5


def test_a_killed_fork_server_ends_its_attempts_and_another_starts_and_leaves_nothing(place: Path) -> None:
    place = place.with_name("killed")
    with TaskSession(place) as session:
        session.launch("sleep")
        pid = session.child()

        os.kill(parent_of(pid), signal.SIGKILL)

        assert session.wait_for("AttemptOver")["ended"]["code"] == "FORK_SERVER_DIED"
        wait_until(lambda: not is_alive(pid), "its child has ended")
        with TaskSession(place) as again:
            again.launch("sleep")
            assert again.child() != pid
            [server] = server_pids(place)

    wait_until(lambda: not is_alive(server), "the server ends after its last connection", seconds=20)
    assert not place.exists()


def test_questions_are_answered_by_the_digests_in_the_order(place: Path) -> None:
    with TaskSession(place) as session:
        session.launch("read", payload={"pages": 3}, document_id=1, known_digests=["d2"])

        session.wait_for("AttemptOver")
        pages = [page for message in session.messages if message["type"] == "PagesRead" for page in message["pages"]]
        assert [page["digest"] for page in pages] == ["d1", "d3"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"version": "9.9"}, "9.9 on the head"),
        ({"identity": {"brew_tea": ()}}, "brew_tea is not installed"),
        ({"identity": {"sleep": ("tesseract 5.9",)}}, "the head has tesseract 5.9"),
    ],
)
def test_a_node_that_does_not_fit_says_why(changes: dict[str, Any], fault: str) -> None:
    described = {"sleep": HandlerDescription(HandlerFacts("sleep"))}

    assert fault in fault_of(msgspec.structs.replace(TERMS, **({"identity": {"sleep": ()}} | changes)), described)


def test_a_node_that_does_not_fit_refuses_each_attempt(place: Path) -> None:
    with TaskSession(place.with_name("unfit"), msgspec.structs.replace(TERMS, version="9.9")) as session:
        assert "9.9 on the head" in session.connection.fault
