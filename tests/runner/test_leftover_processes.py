"""No process of an attempt outlives it, even if it hides or the fork server dies."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.system import is_running
from tests.runner.conftest import SABOTEURS, MakeClient, PoolClient
from worker_service.runner import processes
from worker_service.runner.messages import Begin, Ended, How, Started
from worker_service.runner.pool import ChildError
from worker_service.runner.protocol import encode_frame
from worker_service.runner.worker_identity import is_free


@pytest.fixture
def client(shared_client: PoolClient) -> Iterator[PoolClient]:
    """Use one pool for the whole file, and start its fork server again after a test that killed it."""
    if not shared_client.pool.is_alive:
        shared_client.pool.restart()
    yield shared_client
    shared_client.stop_all()


def at(path: Path) -> str:
    return json.dumps({"path": str(path)})


def pid_in(path: Path) -> int:
    return int(path.read_text())


@pytest.mark.parametrize("job_type", ["leaves_a_daemon", "leaves_a_nameless_daemon"])
def test_a_hidden_grandchild_is_killed_before_the_attempt_ends(
    client: PoolClient, tmp_path: Path, job_type: str
) -> None:
    ended = client.run(job_type, at(tmp_path / "pid"))

    assert ended.how is How.DONE
    assert not is_running(pid_in(tmp_path / "pid"))


def test_a_grandchild_that_forks_for_ever_is_killed(client: PoolClient, tmp_path: Path) -> None:
    ended = client.run("leaves_a_runaway", at(tmp_path / "lock"))

    assert ended.how is How.DONE
    assert is_free(tmp_path / "lock")


@pytest.mark.parametrize("again", range(2))
def test_a_grandchild_that_forks_for_ever_is_killed_after_the_fork_server_died(
    client: PoolClient, tmp_path: Path, again: int
) -> None:
    order = client.launch("runs_beside_a_runaway", at(tmp_path / "lock"))
    client.wait_for_progress(order)

    os.kill(client.pool.pid or 0, signal.SIGKILL)

    assert client.wait_for_end(order).code == "FORK_SERVER_DIED"
    assert is_free(tmp_path / "lock")


def test_a_grandchild_of_a_running_attempt_is_left_alone_while_another_ends(client: PoolClient, tmp_path: Path) -> None:
    order = client.launch("runs_beside_a_nameless_daemon", at(tmp_path / "pid"))
    client.wait_for_progress(order)

    client.run("leaves_a_daemon", at(tmp_path / "other"))

    assert is_running(pid_in(tmp_path / "pid"))
    assert not is_running(pid_in(tmp_path / "other"))


@pytest.mark.parametrize("job_type", ["runs_beside_a_daemon", "runs_beside_a_nameless_daemon"])
def test_a_stop_kills_a_hidden_grandchild(client: PoolClient, tmp_path: Path, job_type: str) -> None:
    order = client.launch(job_type, at(tmp_path / "pid"))
    client.wait_for_progress(order)

    client.pool.stop(order.job_id, order.fence)

    assert client.wait_for_end(order).how is How.STOPPED
    assert not is_running(pid_in(tmp_path / "pid"))


@pytest.mark.parametrize("job_type", ["runs_beside_a_daemon", "runs_beside_a_nameless_daemon"])
def test_all_processes_of_a_killed_fork_server_are_killed(client: PoolClient, tmp_path: Path, job_type: str) -> None:
    orders = [client.launch(job_type, at(tmp_path / f"{number}")) for number in range(2)]
    for order in orders:
        client.wait_for_progress(order)

    os.kill(client.pool.pid or 0, signal.SIGKILL)

    for number, order in enumerate(orders):
        ended = client.wait_for_end(order)
        assert (ended.how, ended.code) == (How.CRASHED, "FORK_SERVER_DIED")
        started = client.events_of(order)[0]
        assert isinstance(started, Started)
        assert not is_running(started.pid)
        assert not is_running(pid_in(tmp_path / f"{number}"))
        assert not (client.pool._staging_root / f"{order.job_id}-1").exists()


def test_a_dead_fork_server_can_be_restarted(client: PoolClient) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)
    os.kill(client.pool.pid or 0, signal.SIGKILL)
    client.wait_for_end(order)
    assert client.run("silent").code == "FORK_SERVER_DIED"
    descriptor = client.pool.fileno()

    described = client.pool.restart()

    assert client.pool.is_alive
    assert client.pool.fileno() == descriptor
    assert "silent" in {handler.facts.job_type for handler in described}
    assert client.run("silent").how is How.DONE


def test_a_restart_keeps_the_ends_of_attempts_for_the_next_call(client: PoolClient) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)
    os.kill(client.pool.pid or 0, signal.SIGKILL)
    client.wait_until(lambda: not client.pool.is_alive)

    client.pool.restart()

    assert client.wait_for_end(order).code == "FORK_SERVER_DIED"


def test_a_fork_server_that_answers_no_pings_is_killed(client: PoolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)
    monkeypatch.setattr(client.pool, "ping_seconds", 0.02)
    fork_server = client.pool.pid or 0

    os.kill(fork_server, signal.SIGSTOP)

    # No event arrives, so the pool pings only when it is asked for events.
    while not client.events_of_kind(order, Ended):
        select.select([client.pool], [], [], 0.01)
        client.events += client.pool.take_events()
    assert client.wait_for_end(order).code == "FORK_SERVER_DIED"
    assert not is_running(fork_server)


def test_a_fork_server_that_answers_pings_is_kept(client: PoolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.pool, "ping_seconds", 0.0)
    order = client.launch("waits")
    asked = 0

    def has_been_asked_often() -> bool:
        nonlocal asked
        asked += 1
        return asked > 50

    client.wait_until(has_been_asked_often)

    assert client.pool.is_alive
    client.pool.stop(order.job_id, order.fence)
    assert client.wait_for_end(order).how is How.STOPPED


def test_a_fork_server_that_is_alive_is_not_restarted(client: PoolClient) -> None:
    with pytest.raises(ChildError, match="is running"):
        client.pool.restart()


def test_closing_the_pool_kills_all_processes(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(grace_seconds=600.0)
    order = client.launch("runs_beside_a_nameless_daemon", at(tmp_path / "pid"))
    client.wait_for_progress(order)
    fork_server = client.pool.pid or 0

    client.pool.close()

    assert not is_running(fork_server)
    assert not is_running(pid_in(tmp_path / "pid"))


DAEMON = """
import json, select, sys
from collections.abc import Iterator
from pathlib import Path
from worker_service.runner.messages import Begin, Order, Progressed
from worker_service.runner.pool import LocalPool

root, lock, extra = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fork_server = LocalPool(Begin(root / "staging", root / "keep", lock, extra_handlers=[extra], is_without_installed=True))
fork_server.start()
payload = json.dumps({"path": str(root / "pid")})
fork_server.launch(Order(1, 1, "runs_beside_a_nameless_daemon", "local", None, payload, None))
while not any(isinstance(event, Progressed) for event in fork_server.take_events()):
    select.select([fork_server], [], [])
print("running", flush=True)
sys.stdin.read()
"""


SLOW_TO_LOAD = """
import time
from collections.abc import Iterator
from pathlib import Path
from worker_service.handlers import Handler

here = Path(__file__).parent
if (here / "tried").exists():
    (here / "loading").touch()
    while not (here / "go").exists():
        time.sleep(0.001)
(here / "tried").touch()
handler = Handler("late", lambda context: None, dict)
"""


def test_a_fork_server_whose_daemon_dies_while_it_starts_ends_silently(tmp_path: Path) -> None:
    (tmp_path / "slow_to_load.py").write_text(SLOW_TO_LOAD)
    near, far = socket.socketpair()
    begin = Begin(
        tmp_path / "s", tmp_path / "k", extra_handlers=["slow_to_load:handler"], is_without_installed=True, pool_id="h"
    )
    fork_server = subprocess.Popen(
        [sys.executable, "-m", "worker_service.runner.fork_server", str(far.fileno())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])},
        stderr=subprocess.PIPE,
        pass_fds=[far.fileno()],
    )
    far.close()
    near.sendall(encode_frame(begin))
    deadline = time.monotonic() + 30
    while not (tmp_path / "loading").exists():
        assert time.monotonic() < deadline, "it did not load its handler"
        time.sleep(0.002)

    near.close()
    (tmp_path / "go").touch()

    assert fork_server.communicate(timeout=30)[1] == b""
    assert fork_server.returncode == 0


def test_the_lock_of_a_killed_daemon_is_free_once_its_processes_are_gone(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(tmp_path), str(lock), SABOTEURS[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[lock],
    )
    # The lock is the daemon's from here on.
    os.close(lock)
    with daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"running\n"

        daemon.kill()

        again = os.open(tmp_path / "lock", os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX)
        os.close(again)
        assert not is_running(pid_in(tmp_path / "pid"))


def test_a_sweep_kills_only_processes_of_its_own_pool(client: PoolClient, tmp_path: Path) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)
    [started] = client.events_of_kind(order, Started)

    assert processes.sweep(processes.pool_id_of(tmp_path / "elsewhere")) == []

    assert processes.sweep(processes.pool_id_of(client.pool._staging_root)) == [started.pid]
