"""Questions of handlers, their answers, and handlers that ask amiss."""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import Any

import pytest

from tests.runner.conftest import MakeClient, PoolClient
from worker_service.jobs.documents import IsCurrentAnswer, KnownDigests, PageResult, PagesAnswer, RepublishedFile
from worker_service.runner.messages import Asked, Checkpointed, Ended, How, Order, PagesRead
from worker_service.runner.questions import decode_question, empty_answer

DOCUMENT: dict[str, Any] = {"document_id": 3, "generation": 2}
LARGE = PagesAnswer([PageResult(1, "d", "x" * (4 << 20))])


def next_question(client: PoolClient, order: Order) -> Asked:
    number = len(client.events_of_kind(order, Asked))
    client.wait_until(lambda: len(client.events_of_kind(order, Asked)) > number)
    return client.events_of_kind(order, Asked)[number]


def test_pages_and_checkpoints_arrive_before_a_later_question(client: PoolClient) -> None:
    order = client.launch("reads_a_document", **DOCUMENT)
    client.pool.answer(next_question(client, order), KnownDigests(["d1"]))
    client.pool.answer(
        next_question(client, order), PagesAnswer([PageResult(1, "d1", "one"), PageResult(2, "d2", "two")])
    )

    ended = client.wait_for_end(order)

    kinds = [type(event) for event in client.events_of(order) if isinstance(event, Asked | PagesRead | Checkpointed)]
    assert kinds == [Asked, PagesRead, Checkpointed, Asked]
    assert json.loads(ended.result or "") == {"known": 1, "text": "one two"}


def test_an_end_has_all_facts_about_files_and_document(client: PoolClient) -> None:
    order = client.launch("reads_a_document", **DOCUMENT)
    for _ in range(2):
        question = next_question(client, order)
        client.pool.answer(question, empty_answer(decode_question(question.kind, question.body)))

    ended = client.wait_for_end(order)

    [file] = ended.published
    assert (file.path.name, file.role, file.name, file.sha256) == ("all.txt", "text", "Report.txt", "ab" * 32)
    assert (ended.published_again, ended.publishes) == ([RepublishedFile(7, "original")], True)
    assert ended.document is not None
    assert ended.document.pages == 2


def test_only_the_inputs_of_an_attempt_are_readable(make_client: MakeClient, tmp_path: Path) -> None:
    for name in ("paper.pdf", "another"):
        (tmp_path / name).write_text(name)
    client = make_client(sandbox="strict")

    ended = client.run("reads_its_inputs", inputs={"original": tmp_path / "paper.pdf"}, **DOCUMENT)

    assert json.loads(ended.result or ended.message) == {
        "document": [3, 2],
        "input": "paper.pdf",
        "write it": "PermissionError",
        "beside it": "PermissionError",
    }


@pytest.mark.parametrize(
    ("answer", "code", "how"), [(None, "ASK_FAILED", How.RETRYABLE), (LARGE, "", How.DONE)], ids=["none", "large"]
)
def test_a_refused_question_fails_the_attempt_and_a_large_answer_does_not(
    client: PoolClient, answer: PagesAnswer | None, code: str, how: How
) -> None:
    order = client.launch("reads_a_document", **DOCUMENT)
    client.pool.answer(next_question(client, order), KnownDigests())

    client.pool.answer(next_question(client, order), answer, code=code, message="the lease is lost" if code else "")

    ended = client.wait_for_end(order)
    assert (ended.how, ended.code, ended.message) == (how, code, "the lease is lost" if code else "")


def test_an_answer_that_is_too_large_fails_the_attempt(client: PoolClient) -> None:
    order = client.launch("reads_a_document", **DOCUMENT)
    client.pool.answer(next_question(client, order), KnownDigests())

    client.pool.answer(next_question(client, order), PagesAnswer([*LARGE.pages] * 3))

    ended = client.wait_for_end(order)
    assert (ended.how, ended.code) == (How.PERMANENT, "TOO_LARGE")
    assert "ask for less" in ended.message


@pytest.mark.parametrize(
    ("job_type", "how", "code"),
    [
        ("saves_what_does_not_fit", How.PERMANENT, "TOO_LARGE"),
        ("saves_a_page_of_nothing", How.GARBLED, "GARBLED"),
    ],
)
def test_a_page_that_cannot_be_saved_ends_the_attempt(client: PoolClient, job_type: str, how: How, code: str) -> None:
    ended = client.run(job_type, **DOCUMENT)

    assert (ended.how, ended.code) == (how, code)


def test_a_child_that_asks_for_ever_is_slowed_down_and_delays_no_other(client: PoolClient) -> None:
    order = client.launch("asks_for_ever")
    answered = 0

    def answer() -> int:
        nonlocal answered
        questions = client.events_of_kind(order, Asked)
        for question in questions[answered:]:
            client.pool.answer(question, IsCurrentAnswer())
        answered = len(questions)
        return answered

    # Beyond the first hundred it waits in the fork server, longer than the pipes take to fall silent.
    client.wait_until(lambda: answer() >= 100)
    for _ in range(5):
        neighbour = client.launch("silent")
        while not client.events_of_kind(neighbour, Ended):
            select.select([client.pool], [], [], 10)
            client.events += client.pool.take_events()
            answer()
    client.pool.stop(order.job_id, order.fence)

    assert client.wait_for_end(order).how is How.STOPPED


def test_an_answer_that_is_never_read_delays_no_other_attempt(client: PoolClient) -> None:
    deaf = client.launch("never_reads_its_answer")
    client.pool.answer(next_question(client, deaf), LARGE)
    client.wait_for_progress(deaf)

    for _ in range(5):
        assert client.run("silent").how is How.DONE

    client.pool.stop(deaf.job_id, deaf.fence)
    assert client.wait_for_end(deaf).how is How.STOPPED


def test_a_child_that_asks_again_without_reading_is_garbled(client: PoolClient) -> None:
    order = client.launch("asks_again_without_reading")

    client.pool.answer(next_question(client, order), LARGE)

    ended = client.wait_for_end(order)
    assert (ended.how, ended.code) == (How.GARBLED, "GARBLED")


@pytest.mark.parametrize(("job_type", "pages"), [("saves_more_at_once_than_fits", 303), ("floods_pages", 2000)])
def test_many_pages_arrive_complete_and_in_order(client: PoolClient, job_type: str, pages: int) -> None:
    order = client.launch(job_type, **DOCUMENT)

    assert client.wait_for_end(order).how is How.DONE
    read = [page.number for event in client.events_of_kind(order, PagesRead) for page in event.pages]
    assert read == list(range(1, pages + 1))


def test_an_answer_without_a_question_is_dropped(client: PoolClient) -> None:
    order = client.launch("waits")
    client.wait_for_progress(order)
    client.pool.answer(Asked(order.job_id, order.fence, 1, "IsCurrent", "{}"), IsCurrentAnswer())
    client.pool.answer(Asked(99, 1, 1, "IsCurrent", "{}"), IsCurrentAnswer())

    assert client.run("silent").how is How.DONE


def test_a_late_answer_is_not_taken_for_the_answer_to_another_question(
    make_client: MakeClient,
) -> None:
    client = make_client(grace_seconds=30.0)
    order = client.launch("waits_for_an_answer")
    first = next_question(client, order)
    client.pool.stop(order.job_id, order.fence)
    client.pool.answer(first, IsCurrentAnswer())

    client.pool.answer(next_question(client, order), KnownDigests(["d"]))

    assert client.wait_for_end(order).how is How.STOPPED
    assert client.lines(order) == ["1 known"]
