"""A child that serves several attempts, and all that ends it early. Real forks, a real sandbox."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runner.conftest import PATIENCE_SECONDS, MakeClient, PoolClient, opened_client
from tests.saboteurs.reused import LEFT, REUSE
from worker_service.handlers import Handler, Limits
from worker_service.jobs.documents import KnownDigests
from worker_service.runner import processes
from worker_service.runner.messages import Asked, Checkpointed, Ended, How, Progressed, Started

KEPT = ("tests.saboteurs.reused:handlers",)


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    place = tmp_path_factory.mktemp("fork-server")
    with opened_client(place, extra_handlers=KEPT, slots={"cpu": 1}, wait_seconds=PATIENCE_SECONDS) as made:
        yield made


@pytest.fixture
def client(client: PoolClient) -> Iterator[PoolClient]:
    """No test finds the child of another: it is replaced by one that nobody looks at."""
    yield client
    client.clear()
    run(client, "counts")


@pytest.fixture(scope="module")
def shared_impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    with opened_client(tmp_path_factory.mktemp("impatient"), extra_handlers=KEPT, slots={"cpu": 1}) as made:
        yield made


@pytest.fixture
def impatient(shared_impatient: PoolClient) -> Iterator[PoolClient]:
    """An order that waits goes back as soon as under a daemon."""
    yield shared_impatient
    shared_impatient.clear()


@pytest.fixture(scope="module")
def two_slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolClient]:
    place = tmp_path_factory.mktemp("two-slots")
    with opened_client(place, extra_handlers=KEPT, slots={"cpu": 2}, wait_seconds=PATIENCE_SECONDS) as made:
        yield made


def request(how: str) -> str:
    return json.dumps({"how": how})


def run(client: PoolClient, job_type: str, how: str = "", **more: Any) -> Ended:
    return client.run(job_type, request(how), **more)


def results(client: PoolClient, job_type: str, hows: Sequence[str]) -> list[Any]:
    orders = [client.launch(job_type, request(how)) for how in hows]
    return [json.loads(client.ended(order).result or "null") for order in orders]


def is_there(pid: int) -> bool:
    return processes.started_at(pid) != 0


def until_gone(pid: int) -> None:
    """Nothing is said of it: it was nobody's attempt."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_there(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.005)


def test_one_child_serves_several_attempts_each_with_its_own_name_and_an_empty_staging(client: PoolClient) -> None:
    orders = [client.launch("tells", request("")) for _ in range(2 * REUSE)]
    ends = [client.ended(order) for order in orders]

    told = [json.loads(ended.result or "") for ended in ends]
    pids = [one["pid"] for one in told]
    assert [len(set(pids[:REUSE])), len(set(pids[REUSE:])), len(set(pids))] == [1, 1, 2]
    assert all((one["found"], one["home"]) == ([], True) for one in told)
    for order, ended, one in zip(orders, ends, told, strict=True):
        assert (one["attempt"], one["key"]) == (f"{order.job_id}-1", f"{order.job_id}")
        [started] = [event for event in client.of(order) if isinstance(event, Started)]
        assert (started.pid, started.sandbox) == (one["pid"], "landlock+seccomp")
        assert [event.message for event in client.of(order) if isinstance(event, Progressed)] == ["half"]
        assert client.of(order)[-1] == ended


def test_two_slots_have_two_children(two_slots: PoolClient) -> None:
    client = two_slots
    waiting = [client.launch("waits", request("yes")) for _ in range(2)]
    for order in waiting:
        client.until_progress(order)
    behind = [client.launch("waits", request("")) for _ in range(4)]
    for order in waiting:
        client.pool.stop(order.job_id, order.fence)

    pids = {one.pid for order in waiting for one in client.of(order) if isinstance(one, Started)}
    assert len(pids) == 2
    assert {client.ended(order).how for order in behind} == {How.DONE}
    assert len({client.ended(order).result for order in behind}) <= 2


def test_where_the_jail_is_not_whole_each_attempt_has_a_child_of_its_own(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=KEPT, slots={"cpu": 1}, wait_seconds=PATIENCE_SECONDS, sandbox="off")

    assert len(set(results(client, "quick", ["", "", ""]))) == 3


@pytest.mark.parametrize("how", ["", "retryable", "permanent", "snooze", "file"])
def test_after_an_end_that_a_handler_may_choose_the_child_stays(client: PoolClient, how: str) -> None:
    before, _, after = (run(client, "says_how", one) for one in ("", how, ""))

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
def test_after_any_other_end_it_is_replaced(client: PoolClient, how: str, code: str) -> None:
    orders = [client.launch("says_how", request(one)) for one in ("", how, "")]
    before, ended, after = (client.ended(order) for order in orders)

    assert ended.code == code
    assert (before.how, after.how) == (How.DONE, How.DONE)
    assert before.result != after.result
    assert not is_there(int(before.result or 0))


def test_a_published_file_lies_in_a_place_of_its_own_and_the_next_attempt_finds_nothing(client: PoolClient) -> None:
    first, second = (run(client, "says_how", "file") for _ in range(2))
    [told] = results(client, "tells", [""])

    for ended in (first, second):
        [published] = ended.published
        assert published.path.parts[-3:] == ("staging", f"{ended.job_id}-1", "file.txt")
        assert (published.name, published.path.read_text()) == ("file.txt", "text")
    assert first.result == second.result
    assert told["found"] == []


@pytest.mark.parametrize("what", LEFT)
def test_a_child_in_which_something_is_left_is_replaced_and_its_attempt_stands(client: PoolClient, what: str) -> None:
    before, during, after, last = results(client, "leaves", ["", what, "", ""])

    assert before == during
    assert during != after
    assert after == last


def test_it_writes_nothing_beside_its_staging_directory(client: PoolClient) -> None:
    """Not even a link in its place, through which the daemon would publish another's files."""
    [tried] = results(client, "writes_beside_its_staging", [""])

    assert set(tried.values()) == {"PermissionError"}


def test_it_starts_no_program_and_no_other_process_but_threads_that_end(client: PoolClient) -> None:
    first, second = results(client, "starts_a_program", ["", ""])

    assert first == second == {"program": "PermissionError", "fork": "PermissionError", "thread": "allowed"}


def test_a_context_that_was_kept_speaks_for_no_other_attempt(client: PoolClient) -> None:
    first, second = (client.launch("keeps_its_context", request("")) for _ in range(2))

    assert client.ended(first).how is How.DONE
    assert (client.ended(second).code, "has ended" in client.ended(second).message) == ("HANDLER_ERROR", True)
    assert not [one for one in client.of(second) if isinstance(one, Progressed)]


def test_an_end_with_the_number_of_the_attempt_before_is_garbled(client: PoolClient) -> None:
    orders = [client.launch("answers_for_the_one_before", request("")) for _ in range(3)]
    first, second, third = (client.ended(order) for order in orders)

    assert (first.how, second.how, third.how) == (How.DONE, How.GARBLED, How.DONE)
    assert first.result != third.result


def test_a_child_that_publishes_what_is_not_its_own_serves_no_other_attempt(client: PoolClient) -> None:
    orders = [client.launch("publishes_what_is_not_its_own", request(how)) for how in ("", "yes", "")]
    before, lied, after = (client.ended(order) for order in orders)

    assert (before.how, lied.how, after.how) == (How.DONE, How.GARBLED, How.DONE)
    assert before.result != after.result


def test_a_child_that_hangs_after_an_attempt_is_stopped_at_the_end_of_its_time(impatient: PoolClient) -> None:
    run(impatient, "hangs_after_its_end")
    hanging = impatient.launch("hangs_after_its_end", request("yes"), timeout_seconds=1)
    next_one = impatient.launch("hangs_after_its_end", request(""), timeout_seconds=20)

    assert impatient.ended(hanging).how is How.TIMED_OUT
    # It has waited behind the other for too long, and goes back.
    assert (impatient.ended(next_one).how, impatient.ended(next_one).code) == (How.STOPPED, "NOT_BEGUN")
    assert run(impatient, "hangs_after_its_end").how is How.DONE


def test_what_waits_behind_a_long_attempt_goes_back_not_begun(impatient: PoolClient, tmp_path: Path) -> None:
    long = impatient.launch("waits", request("yes"))
    others = [impatient.launch("waits", request("")) for _ in range(2)]
    # An order with inputs will get a child of its own, and waits for its slot as well.
    others.append(impatient.launch("waits", request(""), inputs={"original": tmp_path}, document_id=1))
    ends = [impatient.ended(other) for other in others]

    assert {(one.how, one.code) for one in ends} == {(How.STOPPED, "NOT_BEGUN")}
    assert not any(isinstance(one, Started) for other in others for one in impatient.of(other))
    impatient.pool.stop(long.job_id, long.fence)
    assert impatient.ended(long).how is How.STOPPED


@pytest.mark.parametrize("job_type", ["waits", "never_asks"])
def test_p7_the_attempt_that_is_asked_to_stop_is_stopped_and_no_other(client: PoolClient, job_type: str) -> None:
    before = run(client, job_type)
    one = client.launch(job_type, request("yes"))
    client.until_progress(one)
    client.pool.stop(one.job_id, one.fence)
    ended = client.ended(one)

    assert ended.how is How.STOPPED
    assert not is_there(int(before.result or 0))
    assert run(client, job_type).how is How.DONE


def test_one_that_is_asked_to_stop_before_it_was_begun_does_not_begin(client: PoolClient) -> None:
    first = client.launch("waits", request("yes"))
    second = client.launch("waits", request("yes"))
    client.pool.stop(second.job_id, second.fence, now=True)

    assert (client.ended(second).how, client.ended(second).code) == (How.STOPPED, "NOT_BEGUN")
    assert not [one for one in client.of(second) if isinstance(one, Started)]
    client.pool.stop(first.job_id, first.fence, now=True)
    assert client.ended(first).how is How.STOPPED


def test_a_time_limit_counts_from_the_start_of_its_own_attempt(two_slots: PoolClient) -> None:
    client = two_slots
    orders = [client.launch("takes", request("time"), timeout_seconds=5)]
    orders.append(client.launch("never_asks", request("yes"), timeout_seconds=1))
    done, late = (client.ended(order) for order in orders)

    assert (done.how, late.how, late.code) == (How.DONE, How.TIMED_OUT, "TIMED_OUT")


def test_time_and_memory_are_those_of_the_attempt(client: PoolClient) -> None:
    small, memory, after, busy, idle = (run(client, "takes", how).usage for how in ("", "memory", "", "time", ""))

    assert (memory.memory_peak_bytes or 0) > (small.memory_peak_bytes or 0) + (60 << 20)
    assert (after.memory_peak_bytes or 0) < (memory.memory_peak_bytes or 0) - (50 << 20)
    assert (busy.cpu_seconds or 0) >= 0.19
    assert (idle.cpu_seconds or 0) < 0.1


def test_the_processor_time_of_one_attempt_is_not_taken_from_the_next(client: PoolClient) -> None:
    first, beyond = (run(client, "takes_its_time", how) for how in ("", "too long"))

    # The child has used more than half of the second attempt's limit before.
    assert first.how is How.DONE
    assert (beyond.how, beyond.code) == (How.TIMED_OUT, "CPU_TIME_USED_UP")
    assert (beyond.usage.cpu_seconds or 0) > 0.9


def test_it_asks_and_keeps_checkpoints_like_any_other(client: PoolClient) -> None:
    orders = [client.launch("asks", request("")) for _ in range(2)]
    for number in (1, 2):
        client.until(lambda: sum(isinstance(one, Asked) for one in client.heard) == number)  # noqa: B023  called here
        asked = [one for one in client.heard if isinstance(one, Asked)][-1]
        client.pool.answer(asked, KnownDigests(["d1"]))
    ends = [client.ended(order) for order in orders]

    assert ends[0].result == ends[1].result
    states = [[one.state for one in client.of(order) if isinstance(one, Checkpointed)] for order in orders]
    assert states == [['{"known": ["d1"]}']] * 2


def test_an_order_with_files_of_a_document_has_a_child_of_its_own(client: PoolClient, tmp_path: Path) -> None:
    first, large, with_input, last = (
        run(client, "quick"),
        client.run("quick", request("") + " " * (1 << 20)),
        client.run("quick", request(""), inputs={"original": tmp_path}, document_id=1),
        run(client, "quick"),
    )

    assert {one.how for one in (first, large, with_input, last)} == {How.DONE}
    assert first.result == large.result
    assert with_input.result not in (first.result, last.result)


def test_one_that_has_nothing_to_do_is_stopped_after_a_while(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=KEPT, idle_seconds=0.2)
    pid = int(run(client, "quick").result or 0)

    until_gone(pid)

    assert run(client, "quick").how is How.DONE


def test_another_type_in_its_slot_replaces_an_idle_child(client: PoolClient) -> None:
    pid = int(run(client, "quick").result or 0)
    run(client, "counts")

    client.until(lambda: not is_there(pid))


def test_when_the_fork_server_dies_its_children_die_and_their_attempts_end(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=KEPT, slots={"cpu": 2}, wait_seconds=PATIENCE_SECONDS)
    idle = int(run(client, "quick").result or 0)
    order = client.launch("waits", request("yes"))
    client.until_progress(order)
    fork_server = client.pool.pid
    assert fork_server is not None
    os.kill(fork_server, signal.SIGKILL)

    assert client.ended(order).code == "FORK_SERVER_DIED"
    until_gone(idle)


def test_an_idle_child_ends_with_its_fork_server_and_leaves_nothing(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(extra_handlers=KEPT)
    pid = int(run(client, "quick").result or 0)

    client.pool.close()

    assert not is_there(pid)
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
def test_what_does_not_go_with_reuse_is_refused_by_name(declared: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"x: reuse does not go with {next(iter(declared))}"):
        Handler("x", lambda context: None, dict, reuse=2, limits=Limits(), **declared)
