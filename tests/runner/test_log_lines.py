"""Logged and printed lines, tracebacks and floods."""

from __future__ import annotations

import random

import pytest

from tests.runner.conftest import MakeClient, PoolClient
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.runner.log_lines import GAP
from worker_service.runner.messages import How, Logged


def test_printed_and_logged_lines_arrive_in_one_order(client: PoolClient) -> None:
    order = client.launch("prints")

    assert client.wait_for_end(order).how is How.DONE
    *before, long, red, empty, again, unfinished = client.lines(order)
    assert before == [
        "logged", "printed", "wrong", "warned", "put by C", "written in two", "echoed", "100 %",
        "not UTF-8: \\udcff",
    ]  # fmt: skip
    assert (len(long), long[-2:]) == (2000, "z…")
    assert (red, empty, again, unfinished) == ("�[31mred�", "", "logged again", "unfinished")


@pytest.mark.parametrize(
    ("job_type", "sentence", "traceback"),
    [
        ("divides", "ZeroDivisionError: division by zero (handlers.py:LINE in _first_of_none)", ["len(several)"]),
        ("trusts_a_library", "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 "
         "column 2 (char 1) (handlers.py:LINE in trusts_a_library)", ["raw_decode", 'json.loads("{")']),
        ("fails_at_length", "ValueError: nothing to share (handlers.py:LINE in fails_at_length)\nask again later",
         ["ZeroDivisionError: division by zero", "The above exception was the direct cause"]),
        ("leaves", "SystemExit: on its own (handlers.py:LINE in leaves)", []),
        ("returns_nonsense", "TypeError: returns_nonsense returned int: a handler returns Done or None", []),
    ],
)  # fmt: skip
def test_an_exception_is_reported_in_one_line_with_its_traceback_in_the_log(
    client: PoolClient, job_type: str, sentence: str, traceback: list[str]
) -> None:
    order = client.launch(job_type)

    message = client.wait_for_end(order).message

    before, _, after = sentence.partition("LINE")
    assert message.startswith(before)
    assert message.endswith(after)
    log = "\n".join(client.lines(order))
    assert all(line in log for line in traceback), log
    assert sentence.splitlines()[0].partition(" (handlers")[0] in log
    assert "child.py" not in log


def test_the_last_lines_of_a_crashed_child_are_reported(client: PoolClient) -> None:
    order = client.launch("prints_and_crashes")

    ended = client.wait_for_end(order)

    assert (ended.code, ended.message) == ("CRASHED", "it was ended by SIGABRT\nthe last thing that it did")
    assert client.lines(order) == ["the last thing that it did"]


def test_the_newest_lines_of_a_flood_arrive_without_a_gap(client: PoolClient) -> None:
    order = client.launch("floods_log")

    client.wait_for_end(order)

    numbers = [int(line.split()[1]) for line in client.lines(order) if line != GAP]
    assert numbers[-LOG_LINES_MOST:] == [*range(5000 - LOG_LINES_MOST, 5000)]


def test_an_endless_flood_is_slowed_down(client: PoolClient) -> None:
    order = client.launch("floods_log_for_ever")
    client.wait_until(lambda: len(client.lines(order)) > 2 * LOG_LINES_MOST)

    client.pool.stop(order.job_id, order.fence)

    assert client.wait_for_end(order).how is How.STOPPED
    line_counts = [len(event.lines) for event in client.events_of_kind(order, Logged)]
    assert max(line_counts) <= LOG_LINES_MOST + 1
    numbers = [int(line.split()[1]) for line in client.lines(order) if line != GAP]
    assert numbers == sorted(numbers)
    assert numbers[-LOG_LINES_MOST:] == [*range(numbers[-1] - LOG_LINES_MOST + 1, numbers[-1] + 1)]


def test_each_attempt_of_a_reused_child_prints_into_its_own_log(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=["tests.saboteurs.reused:handlers"], slots={"cpu": 1}, wait_seconds=30.0)
    lengths = [random.choice([0, 0, 1, 3, 2500]) for _ in range(15)]
    orders = [client.launch("prints", f'{{"how": "{lines}"}}') for lines in lengths]

    for order, lines in zip(orders, lengths, strict=True):
        assert client.wait_for_end(order).how is How.DONE
        own = order.job_id
        assert client.lines(order) == [f"line of {own}"] * lines + [f"end of {own}"]
