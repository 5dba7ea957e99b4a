"""What is lost when a node, its agent, the gateway or the daemon goes: nothing. And nothing runs twice at once."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from tests import installed
from tests.nodes.conftest import MakeNodes, Nodes, gateway_of
from tests.nodes.test_contract import by_pipes
from tests.system.conftest import ROOT, is_running, wait_until
from worker_service.children.messages import Ended, Happening, Order
from worker_service.clock import boot_clock, wall_clock
from worker_service.jobs.model import Status
from worker_service.nodes.heard import Note
from worker_service.store.opening import back_up, open_store
from worker_service.store.restoring import RAISED_BY, look_at_backup, put_in_place


def sleeping(nodes: Nodes) -> tuple[int, int]:
    """A job that runs on a node, and the process of its handler."""
    job = nodes.system.enqueue("sleep")
    [pid] = nodes.system.pids_of(job)
    return job, pid


def test_jobs_run_on_nodes_and_their_attempts_say_where(make_nodes: MakeNodes) -> None:
    nodes = make_nodes()
    system = nodes.system
    nodes.start()

    jobs = [system.enqueue("sleep", seconds=0.2) for _ in range(4)]

    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
    assert {attempt.node for job in jobs for attempt in system.store.reading.attempts(job)} == {"n1", "n2"}
    system.assert_sound()


def test_a_daemon_with_nothing_for_nodes_leaves_them_to_one_that_has_something(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1})
    first = nodes.start(types="fetch")
    nodes.start(types="!fetch")

    job = nodes.system.enqueue("noop")

    nodes.system.wait_for(job, Status.COMPLETED)
    assert nodes.node_of(job) == "n1"
    assert len(first.nursery_pids()) == 1, "it has no gateway"


def test_files_follow_ups_and_pages_come_back_from_a_node(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 2})
    system = nodes.system
    nodes.write(types=["chaos", "fetch"])
    nodes.start()

    job = system.enqueue("chaos")

    system.wait_for(job, Status.COMPLETED)
    [file] = system.store.library.job_files(job)
    assert (system.workspace / file.path).read_text() == str(job)
    wait_until(lambda: system.job(job + 1).status is Status.COMPLETED, "what it asked for has run")
    assert nodes.node_of(job) == "n1"
    system.assert_sound()


@pytest.mark.parametrize("what", ["agent", "node"])
def test_when_a_node_dies_its_jobs_move_and_no_retry_is_spent(make_nodes: MakeNodes, what: str) -> None:
    nodes = make_nodes(patience_seconds=4.0)
    system = nodes.system
    nodes.start()
    job, pid = sleeping(nodes)
    first = nodes.node_of(job)

    if what == "node":
        nodes.switch_off(first)
    else:
        os.kill(nodes.agent(first), signal.SIGKILL)

    wait_until(lambda: system.job(job).fence == 2, "it is claimed again")
    assert not is_running(pid)
    attempt = system.store.reading.attempts(job)[0]
    assert (attempt.outcome, attempt.error_code, attempt.node) == ("requeued", "NODE_LOST", first)
    assert (system.job(job).retry_count, system.job(job).requeue_count) == (0, 1)
    if what == "node":
        assert nodes.node_of(job) != first
    system.assert_sound()


ONCE = """
from tests.system.handlers import sleep
from worker_service.handlers import Handler

handlers = [Handler("once", sleep, dict, at_most_once=True)]
"""


@pytest.mark.parametrize("what", ["agent", "node", "gateway", "daemon"])
def test_what_may_run_at_most_once_does_not_begin_again_whatever_is_killed(make_nodes: MakeNodes, what: str) -> None:
    # Where a node stays away, another is left.
    nodes = make_nodes({"n1": 1, "n2": 1} if what == "node" else {"n1": 1}, patience_seconds=3.0)
    system = nodes.system
    system.install("sends", ONCE)
    nodes.write(types=["once", "noop"])
    daemon = nodes.start()
    job = system.enqueue("once")
    [pid] = system.pids_of(job)

    if what == "node":
        nodes.switch_off(nodes.node_of(job))
    elif what == "agent":
        os.kill(nodes.agent(nodes.node_of(job)), signal.SIGKILL)
    elif what == "gateway":
        os.kill(gateway_of(daemon), signal.SIGKILL)
    else:
        daemon.signal(signal.SIGKILL)
        daemon.ends()
        nodes.start()

    system.wait_for(job, Status.FAILED)
    after = system.enqueue("noop")
    system.wait_for(after, Status.COMPLETED)
    assert not is_running(pid)
    assert (system.job(job).fence, system.status(job), system.outcomes(job)) == (1, Status.FAILED, ["failed"])
    system.assert_sound()


def test_an_agent_that_stands_still_has_lost_its_children_before_the_head_gives_it_up(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(patience_seconds=3.0)
    system = nodes.system
    nodes.start()
    job, pid = sleeping(nodes)
    first = nodes.node_of(job)

    os.kill(nodes.agent(first), signal.SIGSTOP)
    gone_at = given_up_at = 0.0
    while not (gone_at and given_up_at):
        now = time.monotonic()
        gone_at = gone_at or (0.0 if is_running(pid) else now)
        given_up_at = given_up_at or (now if system.job(job).fence > 1 or system.status(job) is Status.PENDING else 0.0)
        time.sleep(0.005)

    assert gone_at < given_up_at
    wait_until(lambda: nodes.node_of(job) != first, "it goes on elsewhere")
    os.kill(nodes.agent(first), signal.SIGCONT)
    nodes.wait_for(first)
    assert system.job(job).retry_count == 0
    system.assert_sound()


def test_a_gateway_that_is_killed_costs_nothing_but_the_attempts_that_it_had(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1})
    system = nodes.system
    daemon = nodes.start()
    job, pid = sleeping(nodes)
    here = system.enqueue("fetch", n=1)

    os.kill(gateway_of(daemon), signal.SIGKILL)

    system.wait_for(here, Status.COMPLETED)
    wait_until(lambda: system.job(job).fence == 2, "it is claimed again")
    assert not is_running(pid)
    assert (system.outcomes(job)[0], system.job(job).retry_count) == ("released", 0)
    nodes.node_of(job)
    system.assert_sound()


def test_what_may_live_on_after_its_gateway_keeps_no_place_of_the_nodes_that_are_there(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(patience_seconds=600.0)
    system = nodes.system
    daemon = nodes.start()
    jobs = {nodes.node_of(job): job for job, _ in (sleeping(nodes), sleeping(nodes))}

    # Nobody will ever say what became of the one on n1.
    nodes.root("n1").with_suffix(".off").touch()
    os.kill(nodes.agent("n1"), signal.SIGSTOP)
    os.kill(gateway_of(daemon), signal.SIGKILL)

    system.pids_of(jobs["n2"], 2)
    assert (nodes.node_of(jobs["n2"]), system.outcomes(jobs["n1"])) == ("n2", [None])


def test_patience_with_a_silent_node_does_not_begin_anew_with_its_gateway(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1}, patience_seconds=5.0)
    system = nodes.system
    daemon = nodes.start()
    job, pid = sleeping(nodes)

    nodes.root("n1").with_suffix(".off").touch()
    os.kill(nodes.agent("n1"), signal.SIGSTOP)
    nodes.wait_for("n1", "silent")
    os.kill(gateway_of(daemon), signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: system.status(job) is Status.PENDING, "it is given up")

    assert time.monotonic() - killed_at < nodes.patience_seconds
    assert not is_running(pid)


def test_after_a_kill_of_the_daemon_the_one_beside_it_takes_the_jobs_back_when_nothing_of_them_is_left(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes({"n1": 1}, patience_seconds=600.0)
    system = nodes.system
    first = nodes.start()
    job, pid = sleeping(nodes)
    nodes.start(recovery_interval=3600)

    first.signal(signal.SIGKILL)
    wait_until(lambda: system.job(job).fence == 2, "it is claimed again, long before the patience is over")

    assert not is_running(pid)
    assert system.outcomes(job)[0] == "requeued"
    system.assert_sound()


def test_what_nobody_has_placed_is_not_gone_before_each_node_has_begun_anew_that_was_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.install(tmp_path / "installed", "pagemill-system-tests", {"system": "tests.system.handlers:handlers"})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "installed"), str(ROOT)]))
    with by_pipes(tmp_path) as far:
        # The gateway had two, of which the next one finds one.
        Note(tmp_path / "staging", "n2").write(boot_clock())
        assert far.pid is not None
        os.kill(far.pid, signal.SIGSTOP)
        far.launch(Order(1, 1, "noop", "local", None, None, None))
        os.kill(far.pid, signal.SIGKILL)
        wait_until(lambda: far.happened() == [] and not far.is_alive, "the gateway is missed")

        far.start()
        happened: list[Happening] = []

        def is_there_again() -> bool:
            happened.extend(far.happened())
            return far.has_begun_anew(["n1"])

        wait_until(is_there_again, "the node is there again")
        assert (happened + far.happened(), dict(far.held)) == ([], {None: 1})
        Note(tmp_path / "staging", "n2").write(0.0)
        [ended] = far.happened()
        assert isinstance(ended, Ended)
        assert (ended.code, "n2 was not heard" in ended.message, dict(far.held)) == ("NURSERY_DIED", True, {})


def test_a_gateway_without_a_daemon_does_not_wait_for_a_node_that_is_silent(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1})
    daemon = nodes.start()
    nodes.wait_for("n1")
    gateway = gateway_of(daemon)

    os.kill(nodes.agent("n1"), signal.SIGSTOP)
    daemon.signal(signal.SIGKILL)
    daemon.ends()
    ended_at = time.monotonic()
    wait_until(lambda: not is_running(gateway), "it is gone")

    assert time.monotonic() - ended_at < 2.0, "whoever takes the jobs back waits for it"


def test_another_daemon_waits_for_the_patience_while_a_child_on_a_node_still_runs(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1}, patience_seconds=3.0)
    system = nodes.system
    first = nodes.start()
    job, pid = sleeping(nodes)
    # Its node does not hear that the head is gone.
    os.kill(nodes.agent("n1"), signal.SIGSTOP)

    first.signal(signal.SIGKILL)
    first.ends()
    system.start()
    wait_until(lambda: system.outcomes(job)[0] is not None, "it is taken back")

    assert not is_running(pid)
    assert system.outcomes(job)[0] == "requeued"


def test_what_a_node_ran_when_a_backup_was_brought_back_ends_and_runs_anew_under_a_fence_that_nobody_had(
    make_nodes: MakeNodes, tmp_path: Path
) -> None:
    nodes = make_nodes({"n1": 1}, patience_seconds=3.0)
    system = nodes.system
    daemon = nodes.start()
    job, pid = sleeping(nodes)
    agent = nodes.agent("n1")
    back_up(system.database, tmp_path / "copy.db")
    # The node does not hear that the head is gone, and goes on.
    os.kill(agent, signal.SIGSTOP)
    daemon.signal(signal.SIGKILL)
    daemon.ends()
    system.store.close()

    restored = put_in_place(look_at_backup(tmp_path / "copy.db"), system.database, wall_clock)
    system.store = open_store(system.database)
    nodes.start()
    os.kill(agent, signal.SIGCONT)

    assert restored.requeued == 1
    system.pids_of(job, 2)
    assert not is_running(pid)
    assert (system.job(job).fence, system.outcomes(job)) == (1 + RAISED_BY + 1, ["requeued", None])
    system.assert_sound()


def test_nodes_of_a_cluster_that_was_taken_out_of_the_settings_are_forgotten(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1})
    daemon = nodes.start()
    nodes.wait_for("n1")

    daemon.signal(signal.SIGTERM)
    daemon.ends()
    assert nodes.rows()["n1"].state == "down"
    nodes.system.start()

    wait_until(lambda: not nodes.rows(), "nobody speaks of it any more")


def test_a_cancelled_job_of_a_silent_node_is_cancelled_once_its_processes_are_proven_gone(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes({"n1": 1}, patience_seconds=3.0)
    system = nodes.system
    nodes.start()
    job, pid = sleeping(nodes)

    os.kill(nodes.agent("n1"), signal.SIGSTOP)
    system.sqlite3(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job}")
    wait_until(lambda: system.status(job) is not Status.RUNNING, "it has ended")

    assert not is_running(pid)
    assert system.status(job) is Status.CANCELLED


def test_without_a_node_nothing_is_claimed_and_why_says_so(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 2})
    system = nodes.system
    nodes.start()
    nodes.wait_for("n1")

    nodes.switch_off("n1")
    nodes.wait_for("n1", "down")
    job = system.enqueue("noop")
    wait_until(lambda: system.store.reading.workers()[0].node_slots == 0, "its slots are gone")

    [gate] = system.store.reading.explain(job)
    assert gate.code == "NO_NODE"
    assert gate.detail.startswith("none of 1 nodes is up; n1 is down")
    assert "was heard" in gate.detail
    assert system.job(job).fence == 0
    nodes.switch_on("n1")
    system.wait_for(job, Status.COMPLETED)


def test_a_node_that_is_drained_finishes_what_it_has_and_gets_nothing_new(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1, "n2": 1})
    system = nodes.system
    nodes.start()
    for name in ("n1", "n2"):
        nodes.wait_for(name)
    job = system.enqueue("sleep", seconds=600)
    busy = nodes.node_of(job)
    other = "n2" if busy == "n1" else "n1"

    assert system.store.steering.wish_of_node(busy, "drain")
    nodes.wait_for(busy, "draining")
    more = [system.enqueue("noop") for _ in range(3)]

    for one in more:
        system.wait_for(one, Status.COMPLETED)
        assert nodes.node_of(one) == other
    assert system.job(job).fence == 1
    assert system.store.steering.wish_of_node(other, "remove")
    nodes.wait_for(other, "removed")
    wait_until(lambda: nodes.pids(other) == [], "nothing of it is left")
    assert system.store.steering.wish_of_node(other, "")
    nodes.wait_for(other)


@pytest.mark.parametrize("wish", ["drain", "remove"])
@pytest.mark.parametrize("what", ["gateway", "daemon"])
def test_what_was_wished_of_a_node_holds_for_the_next_gateway_and_daemon(
    make_nodes: MakeNodes, what: str, wish: str
) -> None:
    nodes = make_nodes({"n1": 1, "n2": 8})
    system, state = nodes.system, {"drain": "draining", "remove": "removed"}[wish]
    daemon = nodes.start()
    for name in ("n1", "n2"):
        nodes.wait_for(name)
    assert system.store.steering.wish_of_node("n2", wish)
    nodes.wait_for("n2", state)

    if what == "gateway":
        os.kill(gateway_of(daemon), signal.SIGKILL)
    else:
        daemon.signal(signal.SIGKILL)
        daemon.ends()
        nodes.start()
    jobs = [system.enqueue("noop") for _ in range(4)]
    for job in jobs:
        system.wait_for(job, Status.COMPLETED)

    # The daemon may have claimed before it noticed: what it has given to nobody was nowhere.
    assert {attempt.node for job in jobs for attempt in system.store.reading.attempts(job)} - {None} == {"n1"}
    nodes.wait_for("n2", state)
    assert nodes.rows()["n2"].wish == wish
    assert system.store.steering.wish_of_node("n2", "")
    nodes.wait_for("n2")


def test_slots_follow_nodes_that_come_and_go(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 2, "n2": 3})
    nodes.root("n2").with_suffix(".off").touch()
    nodes.system.before = ("prlimit", "--nofile=512:4096")
    daemon = nodes.start()
    nodes.wait_for("n1")

    def slots() -> int:
        return nodes.system.store.reading.workers()[0].node_slots

    wait_until(lambda: slots() == 2, "only one is there")
    nodes.switch_on("n2")
    wait_until(lambda: slots() == 5, "both are there")
    nodes.switch_off("n1")
    wait_until(lambda: slots() == 3, "only the other one is there")
    assert resource.prlimit(gateway_of(daemon), resource.RLIMIT_NOFILE)[0] == 4096, "there may be hundreds"


def test_what_needs_a_secret_begins_again_where_the_secret_is(
    make_nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "password").write_text("open")
    nodes = make_nodes({"n1": 4})
    nodes.write(types=["secret"], engine=f"pipe:n1=env -u CREDENTIALS_DIRECTORY {nodes.command('n1')}*4,local*1")
    system = nodes.system
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    nodes.start()
    nodes.wait_for("local")
    nodes.wait_for("n1")

    jobs = [system.enqueue("secret") for _ in range(3)]

    for job in jobs:
        assert system.wait_for(job, Status.COMPLETED).result == '{"said": "open"}'
        assert (nodes.node_of(job), len(system.outcomes(job))) == ("local", 1)


def test_a_command_that_is_no_node_hurts_none_of_the_others(make_nodes: MakeNodes) -> None:
    nodes = make_nodes({"n1": 1})
    places = f"pipe:n1={nodes.command('n1')}*1,yes=yes*1,cat=cat*1,none=/no/such/program*1,false=false*1,local*0"
    nodes.write(engine=places)
    system = nodes.system
    nodes.start()

    job = system.enqueue("noop")

    system.wait_for(job, Status.COMPLETED)
    assert nodes.node_of(job) == "n1"
    nodes.wait_for("cat", "refused")
    reasons = {name: row.reason for name, row in nodes.rows().items()}
    assert reasons["yes"].startswith("it talks nonsense: 'y")
    assert reasons["false"] == "the line is closed"
    assert "No such file" in reasons["none"]
    assert "what no node of ours would" in reasons["cat"]
