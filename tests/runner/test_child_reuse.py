"""Children that run several attempts, and what ends them early."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.system import is_running, wait_until
from tests.runner.conftest import PATIENCE_SECONDS, MakeClient, PoolClient, opened_client
from tests.saboteurs.reused import LEFT, REUSE
from worker_service.handlers import Handler, Limits
from worker_service.jobs.documents import KnownDigests
from worker_service.runner.messages import Asked, Checkpointed, Ended, How, Progressed, Started

REUSED = ("tests.saboteurs.reused:handlers",)


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    place = tmp_path_factory.mktemp("fork-server")
    with opened_client(place, extra_handlers=REUSED, slots={"cpu": 1}, wait_seconds=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture
def client(client: PoolClient) -> Iterator[PoolClient]:
    """Replace the child after each test, so that no test finds the child of another."""
    yield client
    client.stop_all()
    run(client, "counts")


@pytest.fixture(scope="module")
def shared_returning_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    with opened_client(tmp_path_factory.mktemp("returning"), extra_handlers=REUSED, slots={"cpu": 1}) as client:
        yield client


@pytest.fixture
def returning_client(shared_returning_client: PoolClient) -> Iterator[PoolClient]:
    """A queued order is returned as soon as under a daemon."""
    yield shared_returning_client
    shared_returning_client.stop_all()


@pytest.fixture(scope="module")
def two_slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    place = tmp_path_factory.mktemp("two-slots")
    with opened_client(place, extra_handlers=REUSED, slots={"cpu": 2}, wait_seconds=PATIENCE_SECONDS) as client:
        yield client


def request(how: str) -> str:
    return json.dumps({"how": how})


def run(client: PoolClient, job_type: str, how: str = "", **more: Any) -> Ended:
    return client.run(job_type, request(how), **more)


def results(client: PoolClient, job_type: str, hows: Sequence[str]) -> list[Any]:
    orders = [client.launch(job_type, request(how)) for how in hows]
    return [json.loads(client.wait_for_end(order).result or "null") for order in orders]


def test_a_child_runs_several_attempts_each_with_an_empty_staging(client: PoolClient) -> None:
    orders = [client.launch("tells", request("")) for _ in range(2 * REUSE)]
    ends = [client.wait_for_end(order) for order in orders]

    reports = [json.loads(ended.result or "") for ended in ends]
    pids = [report["pid"] for report in reports]
    assert [len(set(pids[:REUSE])), len(set(pids[REUSE:])), len(set(pids))] == [1, 1, 2]
    assert all((report["found"], report["home"]) == ([], True) for report in reports)
    for order, ended, report in zip(orders, ends, reports, strict=True):
        assert (report["attempt"], report["key"]) == (f"{order.job_id}-1", f"{order.job_id}")
        [started] = client.events_of_kind(order, Started)
        assert (started.pid, started.sandbox) == (report["pid"], "landlock+seccomp")
        assert [event.message for event in client.events_of_kind(order, Progressed)] == ["half"]
        assert client.events_of(order)[-1] == ended


def test_two_slots_have_two_children(two_slots: PoolClient) -> None:
    client = two_slots
    waiting = [client.launch("waits", request("yes")) for _ in range(2)]
    for order in waiting:
        client.wait_for_progress(order)
    behind = [client.launch("waits", request("")) for _ in range(4)]
    for order in waiting:
        client.pool.stop(order.job_id, order.fence)

    pids = {event.pid for order in waiting for event in client.events_of_kind(order, Started)}
    assert len(pids) == 2
    assert {client.wait_for_end(order).how for order in behind} == {How.DONE}
    assert len({client.wait_for_end(order).result for order in behind}) <= 2


def test_without_a_full_sandbox_each_attempt_has_its_own_child(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=REUSED, slots={"cpu": 1}, wait_seconds=PATIENCE_SECONDS, sandbox="off")

    assert len(set(results(client, "quick", ["", "", ""]))) == 3


@pytest.mark.parametrize("how", ["", "retryable", "permanent", "snooze", "file"])
def test_a_child_is_reused_after_any_end_that_its_handler_chose(client: PoolClient, how: str) -> None:
    before, _, after = (run(client, "says_how", requested) for requested in ("", how, ""))

    assert before.result == after.result


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("error", "HANDLER_ERROR"),
        ("memory", "OUT_OF_MEMORY"),
        ("signal", "CRASHED"),
        ("exit", "NO_RESULT"),
    ],
)
def test_a_child_is_replaced_after_any_other_end(client: PoolClient, how: str, code: str) -> None:
    orders = [client.launch("says_how", request(requested)) for requested in ("", how, "")]
    before, ended, after = (client.wait_for_end(order) for order in orders)

    assert ended.code == code
    assert (before.how, after.how) == (How.DONE, How.DONE)
    assert before.result != after.result
    assert not is_running(int(before.result or 0))


def test_published_files_are_moved_before_the_next_attempt(client: PoolClient) -> None:
    first, second = (run(client, "says_how", "file") for _ in range(2))
    [report] = results(client, "tells", [""])

    for ended in (first, second):
        [published] = ended.published
        assert published.path.parts[-3:] == ("staging", f"{ended.job_id}-1", "file.txt")
        assert (published.name, published.path.read_text()) == ("file.txt", "text")
    assert first.result == second.result
    assert report["found"] == []


@pytest.mark.parametrize("what", LEFT)
def test_a_child_is_replaced_if_an_attempt_left_something_behind(client: PoolClient, what: str) -> None:
    before, during, after, last = results(client, "leaves", ["", what, "", ""])

    assert before == during
    assert during != after
    assert after == last


def test_a_reused_child_writes_only_below_its_staging_directory(client: PoolClient) -> None:
    [tried] = results(client, "writes_beside_its_staging", [""])

    assert set(tried.values()) == {"PermissionError"}


def test_a_reused_child_can_start_threads_but_no_processes(client: PoolClient) -> None:
    first, second = results(client, "starts_a_program", ["", ""])

    assert first == second == {"program": "PermissionError", "fork": "PermissionError", "thread": "allowed"}


def test_the_context_of_an_ended_attempt_is_refused(client: PoolClient) -> None:
    first, second = (client.launch("keeps_its_context", request("")) for _ in range(2))

    assert client.wait_for_end(first).how is How.DONE
    assert (client.wait_for_end(second).code, "has ended" in client.wait_for_end(second).message) == (
        "HANDLER_ERROR",
        True,
    )
    assert not client.events_of_kind(second, Progressed)


def test_an_end_for_an_earlier_attempt_is_garbled(client: PoolClient) -> None:
    orders = [client.launch("answers_for_the_one_before", request("")) for _ in range(3)]
    first, second, third = (client.wait_for_end(order) for order in orders)

    assert (first.how, second.how, third.how) == (How.DONE, How.GARBLED, How.DONE)
    assert first.result != third.result


def test_a_child_that_publishes_foreign_files_is_not_reused(client: PoolClient) -> None:
    orders = [client.launch("publishes_what_is_not_its_own", request(how)) for how in ("", "yes", "")]
    before, lied, after = (client.wait_for_end(order) for order in orders)

    assert (before.how, lied.how, after.how) == (How.DONE, How.GARBLED, How.DONE)
    assert before.result != after.result


def test_a_child_that_hangs_after_its_handler_is_timed_out(returning_client: PoolClient) -> None:
    run(returning_client, "hangs_after_its_end")
    hanging = returning_client.launch("hangs_after_its_end", request("yes"), timeout_seconds=1)
    next_one = returning_client.launch("hangs_after_its_end", request(""), timeout_seconds=20)

    assert returning_client.wait_for_end(hanging).how is How.TIMED_OUT
    # It has waited behind the other for too long, and goes back.
    assert (returning_client.wait_for_end(next_one).how, returning_client.wait_for_end(next_one).code) == (
        How.STOPPED,
        "NOT_BEGUN",
    )
    assert run(returning_client, "hangs_after_its_end").how is How.DONE


def test_orders_behind_a_long_attempt_are_returned(returning_client: PoolClient, tmp_path: Path) -> None:
    long = returning_client.launch("waits", request("yes"))
    others = [returning_client.launch("waits", request("")) for _ in range(2)]
    # An order with inputs will get a child of its own, and waits for its slot as well.
    others.append(returning_client.launch("waits", request(""), inputs={"original": tmp_path}, document_id=1))
    ends = [returning_client.wait_for_end(other) for other in others]

    assert {(ended.how, ended.code) for ended in ends} == {(How.STOPPED, "NOT_BEGUN")}
    assert not any(returning_client.events_of_kind(other, Started) for other in others)
    returning_client.pool.stop(long.job_id, long.fence)
    assert returning_client.wait_for_end(long).how is How.STOPPED


@pytest.mark.parametrize("job_type", ["waits", "never_asks"])
def test_p7_a_stop_ends_only_its_own_attempt(client: PoolClient, job_type: str) -> None:
    before = run(client, job_type)
    order = client.launch(job_type, request("yes"))
    client.wait_for_progress(order)
    client.pool.stop(order.job_id, order.fence)
    ended = client.wait_for_end(order)

    assert ended.how is How.STOPPED
    assert not is_running(int(before.result or 0))
    assert run(client, job_type).how is How.DONE


def test_a_queued_order_that_is_stopped_never_starts(client: PoolClient) -> None:
    first = client.launch("waits", request("yes"))
    second = client.launch("waits", request("yes"))
    client.pool.stop(second.job_id, second.fence, now=True)

    assert (client.wait_for_end(second).how, client.wait_for_end(second).code) == (How.STOPPED, "NOT_BEGUN")
    assert not client.events_of_kind(second, Started)
    client.pool.stop(first.job_id, first.fence, now=True)
    assert client.wait_for_end(first).how is How.STOPPED


def test_a_time_limit_counts_from_the_start_of_its_own_attempt(two_slots: PoolClient) -> None:
    client = two_slots
    orders = [client.launch("takes", request("time"), timeout_seconds=5)]
    orders.append(client.launch("never_asks", request("yes"), timeout_seconds=1))
    done, late = (client.wait_for_end(order) for order in orders)

    assert (done.how, late.how, late.code) == (How.DONE, How.TIMED_OUT, "TIMED_OUT")


def test_cpu_time_and_memory_are_measured_per_attempt(client: PoolClient) -> None:
    small, memory, after, busy, idle = (run(client, "takes", how).usage for how in ("", "memory", "", "time", ""))

    assert (memory.memory_peak_bytes or 0) > (small.memory_peak_bytes or 0) + (60 << 20)
    assert (after.memory_peak_bytes or 0) < (memory.memory_peak_bytes or 0) - (50 << 20)
    assert (busy.cpu_seconds or 0) >= 0.19
    assert (idle.cpu_seconds or 0) < 0.1


def test_the_cpu_limit_is_renewed_for_each_attempt(client: PoolClient) -> None:
    first, beyond = (run(client, "takes_its_time", how) for how in ("", "too long"))

    # The child has used more than half of the second attempt's limit before.
    assert first.how is How.DONE
    assert (beyond.how, beyond.code) == (How.TIMED_OUT, "CPU_TIME_USED_UP")
    assert (beyond.usage.cpu_seconds or 0) > 0.9


def test_a_reused_child_can_ask_and_checkpoint(client: PoolClient) -> None:
    orders = [client.launch("asks", request("")) for _ in range(2)]
    for order in orders:
        client.wait_until(lambda: bool(client.events_of_kind(order, Asked)))  # noqa: B023  called here
        client.pool.answer(client.events_of_kind(order, Asked)[0], KnownDigests(["d1"]))
    ends = [client.wait_for_end(order) for order in orders]

    assert ends[0].result == ends[1].result
    states = [[event.state for event in client.events_of_kind(order, Checkpointed)] for order in orders]
    assert states == [['{"known": ["d1"]}']] * 2


def test_an_order_with_inputs_has_its_own_child(client: PoolClient, tmp_path: Path) -> None:
    first, large, with_input, last = (
        run(client, "quick"),
        client.run("quick", request("") + " " * (1 << 20)),
        client.run("quick", request(""), inputs={"original": tmp_path}, document_id=1),
        run(client, "quick"),
    )

    assert {ended.how for ended in (first, large, with_input, last)} == {How.DONE}
    assert first.result == large.result
    assert with_input.result not in (first.result, last.result)


def test_an_idle_child_is_ended(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=REUSED, idle_seconds=0.2)
    pid = int(run(client, "quick").result or 0)

    wait_until(lambda: not is_running(pid))

    assert run(client, "quick").how is How.DONE


def test_another_type_in_its_slot_replaces_an_idle_child(client: PoolClient) -> None:
    pid = int(run(client, "quick").result or 0)
    run(client, "counts")

    client.wait_until(lambda: not is_running(pid))


def test_children_and_attempts_end_with_their_fork_server(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=REUSED, slots={"cpu": 2}, wait_seconds=PATIENCE_SECONDS)
    idle = int(run(client, "quick").result or 0)
    order = client.launch("waits", request("yes"))
    client.wait_for_progress(order)
    fork_server = client.pool.pid
    assert fork_server is not None
    os.kill(fork_server, signal.SIGKILL)

    assert client.wait_for_end(order).code == "FORK_SERVER_DIED"
    wait_until(lambda: not is_running(idle))


def test_closing_the_pool_ends_idle_children_and_deletes_their_homes(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(extra_handlers=REUSED)
    pid = int(run(client, "quick").result or 0)

    client.pool.close()

    assert not is_running(pid)
    assert list((tmp_path / "staging").glob("child-*")) == []


@pytest.mark.parametrize(
    "declared",
    [
        {"reads_payload": lambda payload: []},
        {"at_most_once": True},
        {"sandbox": "off"},
    ],
    ids=lambda declared: next(iter(declared)),
)
def test_handlers_that_cannot_be_reused_are_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"x: reuse does not go with {next(iter(declared))}"):
        Handler("x", lambda context: None, dict, reuse=2, limits=Limits(), **declared)
