"""What a handler asks is answered, after what it said before; and whoever asks amiss hurts nobody."""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import Any

import pytest

from tests.runner.conftest import MakeClient, PoolClient
from worker_service.jobs.documents import IsCurrentAnswer, KnownDigests, PageResult, PagesAnswer, RepublishedFile
from worker_service.runner.messages import Asked, Checkpointed, How, Order, PagesRead
from worker_service.runner.questions import decode_question, empty_answer

OF_DOCUMENT: dict[str, Any] = {"document_id": 3, "generation": 2}
LARGE = PagesAnswer([PageResult(1, "d", "x" * (4 << 20))])


def asked(client: PoolClient, order: Order) -> Asked:
    """The next question that this test has not answered yet."""
    number = sum(isinstance(one, Asked) for one in client.of(order))
    client.until(lambda: sum(isinstance(one, Asked) for one in client.of(order)) > number)
    return [one for one in client.of(order) if isinstance(one, Asked)][number]


def test_what_a_handler_says_before_it_asks_is_heard_before_its_question(client: PoolClient) -> None:
    order = client.launch("reads_a_document", **OF_DOCUMENT)
    client.pool.answer(asked(client, order), KnownDigests(["d1"]))
    client.pool.answer(asked(client, order), PagesAnswer([PageResult(1, "d1", "one"), PageResult(2, "d2", "two")]))

    ended = client.ended(order)

    kinds = [type(one) for one in client.of(order) if isinstance(one, Asked | PagesRead | Checkpointed)]
    assert kinds == [Asked, PagesRead, Checkpointed, Asked]
    assert json.loads(ended.result or "") == {"known": 1, "text": "one two"}


def test_an_end_tells_all_that_a_handler_knows_of_its_files_and_its_document(client: PoolClient) -> None:
    order = client.launch("reads_a_document", **OF_DOCUMENT)
    for _ in range(2):
        question = asked(client, order)
        client.pool.answer(question, empty_answer(decode_question(question.kind, question.body)))

    ended = client.ended(order)

    [file] = ended.published
    assert (file.path.name, file.role, file.name, file.sha256) == ("all.txt", "text", "Report.txt", "ab" * 32)
    assert (ended.published_again, ended.publishes) == ([RepublishedFile(7, "original")], True)
    assert ended.document is not None
    assert ended.document.pages == 2


def test_a_childs_inputs_are_readable_and_nothing_beside_them(make_client: MakeClient, tmp_path: Path) -> None:
    for name in ("paper.pdf", "another"):
        (tmp_path / name).write_text(name)
    client = make_client(sandbox="strict")

    ended = client.run("reads_its_inputs", inputs={"original": tmp_path / "paper.pdf"}, **OF_DOCUMENT)

    assert json.loads(ended.result or ended.message) == {
        "document": [3, 2],
        "input": "paper.pdf",
        "write it": "PermissionError",
        "beside it": "PermissionError",
    }


@pytest.mark.parametrize(
    ("answer", "code", "how"), [(None, "ASK_FAILED", How.RETRYABLE), (LARGE, "", How.DONE)], ids=["none", "large"]
)
def test_where_there_is_no_answer_the_handler_is_told_so(
    client: PoolClient, answer: PagesAnswer | None, code: str, how: How
) -> None:
    order = client.launch("reads_a_document", **OF_DOCUMENT)
    client.pool.answer(asked(client, order), KnownDigests())

    client.pool.answer(asked(client, order), answer, code=code, message="the lease is lost" if code else "")

    ended = client.ended(order)
    assert (ended.how, ended.code, ended.message) == (how, code, "the lease is lost" if code else "")


def test_an_answer_that_does_not_fit_is_none(client: PoolClient) -> None:
    order = client.launch("reads_a_document", **OF_DOCUMENT)
    client.pool.answer(asked(client, order), KnownDigests())

    client.pool.answer(asked(client, order), PagesAnswer([*LARGE.pages] * 3))

    ended = client.ended(order)
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
    ended = client.run(job_type, **OF_DOCUMENT)

    assert (ended.how, ended.code) == (how, code)


def test_a_child_that_asks_for_ever_is_slowed_down_and_its_neighbours_are_served(client: PoolClient) -> None:
    order = client.launch("asks_for_ever")
    answered = 0

    def answer() -> int:
        nonlocal answered
        questions = [one for one in client.of(order) if isinstance(one, Asked)]
        for question in questions[answered:]:
            client.pool.answer(question, IsCurrentAnswer())
        answered = len(questions)
        return answered

    # Beyond the first hundred it waits in the fork server, longer than the pipes take to fall silent.
    client.until(lambda: answer() >= 100)
    for _ in range(5):
        neighbour = client.launch("silent")
        while not any(type(one).__name__ == "Ended" for one in client.of(neighbour)):
            select.select([client.pool], [], [], 10)
            client.heard += client.pool.take_events()
            answer()
    client.pool.stop(order.job_id, order.fence)

    assert client.ended(order).how is How.STOPPED


def test_an_answer_that_is_never_read_holds_up_nobody(client: PoolClient) -> None:
    deaf = client.launch("never_reads_its_answer")
    client.pool.answer(asked(client, deaf), LARGE)
    client.until_progress(deaf)

    for _ in range(5):
        assert client.run("silent").how is How.DONE

    client.pool.stop(deaf.job_id, deaf.fence)
    assert client.ended(deaf).how is How.STOPPED


def test_a_child_that_asks_on_without_reading_is_stopped(client: PoolClient) -> None:
    order = client.launch("asks_again_without_reading")

    client.pool.answer(asked(client, order), LARGE)

    ended = client.ended(order)
    assert (ended.how, ended.code) == (How.GARBLED, "GARBLED")


@pytest.mark.parametrize(("job_type", "pages"), [("saves_more_at_once_than_fits", 303), ("floods_pages", 2000)])
def test_many_pages_arrive_whole_and_in_order(client: PoolClient, job_type: str, pages: int) -> None:
    order = client.launch(job_type, **OF_DOCUMENT)

    assert client.ended(order).how is How.DONE
    read = [page.number for one in client.of(order) if isinstance(one, PagesRead) for page in one.pages]
    assert read == list(range(1, pages + 1))


def test_an_answer_to_what_nobody_asked_is_dropped(client: PoolClient) -> None:
    order = client.launch("waits")
    client.until_progress(order)
    client.pool.answer(Asked(order.job_id, order.fence, 1, "IsCurrent", "{}"), IsCurrentAnswer())
    client.pool.answer(Asked(99, 1, 1, "IsCurrent", "{}"), IsCurrentAnswer())

    assert client.run("silent").how is How.DONE


def test_a_stop_interrupts_the_wait_for_an_answer_and_what_comes_late_is_not_taken_for_another(
    make_client: MakeClient,
) -> None:
    client = make_client(grace_seconds=30.0)
    order = client.launch("waits_for_an_answer")
    first = asked(client, order)
    client.pool.stop(order.job_id, order.fence)
    client.pool.answer(first, IsCurrentAnswer())

    client.pool.answer(asked(client, order), KnownDigests(["d"]))

    assert client.ended(order).how is How.STOPPED
    assert client.lines(order) == ["1 known"]
