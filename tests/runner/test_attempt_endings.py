"""Each way in which an attempt can end, each with a real child."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from tests.runner.conftest import MakeClient, PoolClient
from worker_service.runner.messages import Checkpointed, Ended, How, Order, Progressed, Started


def test_a_completed_attempt_returns_result_files_and_follow_ups(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client()
    order = client.launch("clean", "{}")

    ended = client.wait_for_end(order)

    assert ended.how is How.DONE
    assert json.loads(ended.result or "") == {"pages": 1}
    assert [(job.job_type, job.payload) for job in ended.follow_ups] == [("assemble", "{}")]
    assert list(ended.files) == [tmp_path / "staging" / "1-1" / "pages" / "1.txt"]
    assert ended.files[0].read_text() == "text"
    assert ended.usage.cpu_seconds is not None
    assert (ended.usage.memory_peak_bytes or 0) > 1 << 20


def test_messages_of_an_attempt_arrive_in_order(client: PoolClient) -> None:
    order = client.launch("clean", "{}")

    client.wait_for_end(order)

    assert isinstance(client.events_of(order)[0], Started)
    assert client.lines(order) == ["first line", "second line"]
    assert [event.state for event in client.events_of_kind(order, Checkpointed)] == ['{"page": 1}']
    progress = client.events_of_kind(order, Progressed)
    assert (progress[0].percent, progress[0].message) == (10, "begun")
    assert (progress[-1].percent, progress[-1].message) == (100, "done")


def test_only_published_files_stay_in_staging(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client()
    client.run("raises")
    [published] = client.run("clean").published

    files = [path for path in (tmp_path / "staging").rglob("*") if not path.is_dir()]
    assert files == [published.path]
    assert published.path.is_relative_to(tmp_path / "staging" / "2-1")


def test_an_empty_home_is_reused_if_it_still_exists(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client()

    def homes() -> list[str]:
        return sorted(path.name for path in (tmp_path / "staging").iterdir())

    client.run("silent")
    client.run("silent")
    assert homes() == ["child-1"]

    shutil.rmtree(tmp_path / "staging" / "child-1")
    assert client.run("silent").how is How.DONE

    client.run("writes_too_much")
    client.run("silent")
    # A process of its own removes the home that is not empty.
    while "child-3" in homes():
        client.run("silent")
    assert homes() == ["child-5"]


@pytest.mark.parametrize(
    ("job_type", "how", "code", "word"),
    [
        ("silent", How.DONE, "", ""),
        ("raises", How.RETRYABLE, "HANDLER_ERROR", "RuntimeError: the paper is jammed"),
        ("leaves", How.RETRYABLE, "HANDLER_ERROR", "SystemExit: on its own"),
        ("retryable", How.RETRYABLE, "RETRYABLE", "busy"),
        ("permanent", How.PERMANENT, "NOT_A_PDF", "it is a picture"),
        ("snoozes", How.SNOOZED, "SNOOZED", "not before noon"),
        ("asks_for_rest", How.SNOOZED, "RESTING", "the quota is used up"),
        ("returns_nonsense", How.RETRYABLE, "HANDLER_ERROR", "a handler returns Done or None"),
        ("exits", How.GARBLED, "NO_RESULT", "exit code 3"),
        ("segfaults", How.CRASHED, "CRASHED", "SIGSEGV\nabout to touch what is not there"),
        ("eats_memory", How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "more memory"),
        ("burns", How.TIMED_OUT, "CPU_TIME_USED_UP", "CPU time"),
        ("writes_too_much", How.RETRYABLE, "HANDLER_ERROR", "File too large"),
        ("loops", How.TIMED_OUT, "TIMED_OUT", "after 1 s"),
        ("talks_nonsense", How.GARBLED, "GARBLED", "invalid data"),
        ("claims_a_huge_message", How.GARBLED, "GARBLED", "invalid data"),
        ("says_what_only_we_say", How.GARBLED, "GARBLED", "cannot say"),
        ("asks_nonsense", How.GARBLED, "GARBLED", "no question 'Everything'"),
        ("asks_for_too_much", How.GARBLED, "GARBLED", "at most 1000 pages"),
        ("asks_after_its_end", How.GARBLED, "GARBLED", "after it had ended"),
        ("asks_twice_at_once", How.GARBLED, "GARBLED", "before it had taken its answer"),
        ("asks_what_is_no_question", How.RETRYABLE, "HANDLER_ERROR", "NewJob is not a question"),
        ("saves_what_does_not_fit", How.PERMANENT, "NO_DOCUMENT", "without a document"),
        ("saves_a_page_of_nothing", How.GARBLED, "GARBLED", "no document"),
        ("nobody_knows_it", How.PERMANENT, "UNKNOWN_TYPE", "nobody_knows_it"),
    ],
)
def test_each_end_has_its_code(client: PoolClient, job_type: str, how: How, code: str, word: str) -> None:
    ended = client.run(job_type)

    assert (ended.how, ended.code) == (how, code)
    assert word in ended.message


def test_a_signal_is_named_in_the_usage(client: PoolClient) -> None:
    assert client.run("segfaults").usage.signal == "SIGSEGV"


def test_a_handler_can_set_the_delay(client: PoolClient) -> None:
    assert client.run("retryable").after_seconds == 42.0
    assert client.run("snoozes").after_seconds == pytest.approx(3600, abs=30)


@pytest.mark.parametrize("payload", ['{"port": "eighty"}', "[1]", "not json", '{"path": 7}'])
def test_an_invalid_payload_is_a_permanent_failure(client: PoolClient, payload: str) -> None:
    ended = client.run("clean", payload)

    assert (ended.how, ended.code) == (How.PERMANENT, "PAYLOAD_INVALID")


def test_a_link_is_not_published(client: PoolClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")

    ended = client.run("publishes_what_is_not_its_own", json.dumps({"path": str(tmp_path / "secret")}))

    assert (ended.how, list(ended.files)) == (How.RETRYABLE, [])


def test_the_timeout_of_the_job_ends_native_code_that_ignores_sigterm(client: PoolClient) -> None:
    began = time.monotonic()

    ended = client.run("ignores_sigterm", timeout_seconds=1)

    assert ended.how is How.TIMED_OUT
    assert ended.usage.signal == "SIGKILL"
    assert time.monotonic() - began < 10


def test_a_stop_lets_a_handler_clean_up(client: PoolClient) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)

    client.pool.stop(order.job_id, order.fence)

    assert client.wait_for_end(order).how is How.STOPPED
    assert client.lines(order) == ["cleaned up"]


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("job_type", ["stops_when_asked", "ignores_sigterm"])
def test_a_stop_ends_handlers_that_do_not_react(client: PoolClient, job_type: str, now: bool) -> None:
    order = client.launch(job_type)
    client.wait_for_progress(order)

    client.pool.stop(order.job_id, order.fence, now=now)

    assert client.wait_for_end(order).how is How.STOPPED


def test_a_stop_now_shortens_the_grace_of_a_stop(make_client: MakeClient) -> None:
    client = make_client(grace_seconds=600.0)
    order = client.launch("ignores_sigterm")
    client.wait_for_progress(order)
    client.pool.stop(order.job_id, order.fence)

    client.pool.stop(order.job_id, order.fence, now=True)

    assert client.wait_for_end(order).how is How.STOPPED


def test_a_stop_after_the_end_is_ignored(client: PoolClient) -> None:
    order = client.launch("silent")
    client.wait_for_end(order)

    client.pool.stop(order.job_id, order.fence, now=True)

    assert client.run("silent").how is How.DONE
    assert len(client.events_of_kind(order, Ended)) == 1


def test_an_attempt_is_launched_once(client: PoolClient) -> None:
    order = client.launch("waits")

    with pytest.raises(ValueError, match="launched already"):
        client.pool.launch(order)


def test_a_flood_on_stdout_delays_no_other_attempt(client: PoolClient) -> None:
    flood = client.launch("floods_stdout")
    client.wait_for_progress(flood)

    for _ in range(5):
        assert client.run("silent").how is How.DONE

    client.pool.stop(flood.job_id, flood.fence, now=True)
    assert client.wait_for_end(flood).how is How.STOPPED


def test_a_flood_of_progress_is_thinned_out_and_keeps_the_last_message(client: PoolClient) -> None:
    order = client.launch("floods_progress")

    client.wait_for_end(order)

    progress = client.events_of_kind(order, Progressed)
    assert len(progress) <= 100
    assert progress[-1].message == "last"


def test_started_names_pid_and_start_time(client: PoolClient) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)

    started = client.events_of(order)[0]

    assert isinstance(started, Started)
    assert started.pid_started > 0
    assert os.getsid(started.pid) == started.pid


@pytest.mark.parametrize("seconds", [30 * 86_400, 10**18])
def test_a_huge_time_limit_does_not_crash_the_fork_server(client: PoolClient, seconds: int) -> None:
    fork_server = client.pool.pid

    endless = client.launch("waits", timeout_seconds=seconds)
    client.wait_for_progress(endless)

    assert client.run("silent").how is How.DONE
    client.pool.stop(endless.job_id, endless.fence, now=True)
    assert client.wait_for_end(endless).how is How.STOPPED
    assert client.pool.pid == fork_server


def test_an_order_that_is_too_large_fails_alone(client: PoolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_server = client.pool.pid
    beside = client.launch("waits")
    monkeypatch.setattr("worker_service.runner.pool.RELAY_BYTES_MAX", 1 << 20)
    order = Order(99, 1, "silent", "local", "x" * (1 << 20), None, None)
    client.pool.launch(order)

    ended = client.wait_for_end(order)

    assert (ended.how, ended.code) == (How.PERMANENT, "TOO_LARGE")
    assert client.run("silent").how is How.DONE
    client.pool.stop(beside.job_id, beside.fence, now=True)
    assert client.wait_for_end(beside).how is How.STOPPED
    assert client.pool.pid == fork_server


def test_without_free_descriptors_an_attempt_fails_and_no_pipe_leaks(client: PoolClient) -> None:
    fork_server = client.pool.pid
    assert fork_server is not None
    client.wait_for_end(client.launch("clean", "{}"))

    def open_descriptors() -> set[int]:
        return {int(path.name) for path in Path(f"/proc/{fork_server}/fd").iterdir()}

    before, limit = open_descriptors(), resource.prlimit(fork_server, resource.RLIMIT_NOFILE)
    free = [number for number in range(limit[0]) if number not in before]
    resource.prlimit(fork_server, resource.RLIMIT_NOFILE, (free[4] + 1, limit[1]))

    refused = client.wait_for_end(client.launch("clean", "{}"))

    assert (refused.how, refused.code) == (How.RETRYABLE, "LAUNCH_FAILED")
    assert open_descriptors() == before
    resource.prlimit(fork_server, resource.RLIMIT_NOFILE, limit)
    assert client.wait_for_end(client.launch("clean", "{}")).how is How.DONE
