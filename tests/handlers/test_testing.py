from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.saboteurs import steps
from tests.saboteurs.handlers import handlers
from worker_service.handlers import Context, Handler
from worker_service.jobs.documents import KnownDigests, KnownPages
from worker_service.testing import Answers, How, run_handler, run_stopped_and_again


def test_a_handler_runs_in_a_real_child(tmp_path: Path) -> None:
    run = run_handler(steps.resumes, steps.PagesToRead(3), directory=tmp_path)

    assert run.how is How.DONE
    assert run.result == {"pages": [0, 1, 2], "begun_with": 0}
    assert run.state == "[0, 1, 2]"


def test_a_handler_in_a_list_is_found(tmp_path: Path) -> None:
    assert run_handler(steps.several[0], '{"pages": 1}', directory=tmp_path).how is How.DONE


def test_a_handler_that_is_killed_at_a_step_resumes_there(tmp_path: Path) -> None:
    first, second = run_stopped_and_again(steps.resumes, {"pages": 4}, directory=tmp_path, step=3)

    assert (first.how, first.ended.usage.signal) == (How.CRASHED, "SIGKILL")
    assert second.result == {"pages": [0, 1, 2, 3], "begun_with": 3}


def test_an_installed_handler_is_run_by_its_job_type(tmp_path: Path) -> None:
    commands = {"greet": {"argv": ["/bin/echo", "hello", "{account}"]}}

    run = run_handler("greet", directory=tmp_path, account="you", commands=commands)

    assert run.lines == ["hello you"]


def test_lines_are_logged_and_printed_lines_and_the_traceback(tmp_path: Path) -> None:
    def named(name: str) -> Handler[Any]:
        return next(handler for handler in handlers if handler.job_type == name)

    assert run_handler(named("prints"), directory=tmp_path).lines[:3] == ["logged", "printed", "wrong"]
    lines = run_handler(named("divides"), directory=tmp_path).lines
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")


def test_a_handler_without_a_name_cannot_be_found(tmp_path: Path) -> None:
    def nowhere(context: Context[steps.PagesToRead]) -> None:
        return None

    with pytest.raises(LookupError, match="give it a name"):
        run_handler(Handler("nowhere", nowhere, steps.PagesToRead), directory=tmp_path)


@pytest.mark.parametrize("step", [1, 3, 6, 7])
def test_after_a_kill_at_any_step_the_second_run_has_the_same_result(tmp_path: Path, step: int) -> None:
    first, second = run_stopped_and_again(steps.reads, {"pages": 3}, directory=tmp_path, step=step, document_id=7)

    # After the last word it is not stopped any more.
    assert first.how is (How.CRASHED if step <= 6 else How.DONE)
    assert second.result == ["page 1", "page 2", "page 3"]
    assert sorted({page.number for page in [*first.pages, *second.pages]}) == [1, 2, 3]
    assert len(first.pages) + len(second.pages) == 3


def test_answers_come_from_a_mapping_or_a_function(tmp_path: Path) -> None:
    def answer(question: object) -> KnownDigests | None:
        return KnownDigests(["d1", "d2"]) if isinstance(question, KnownPages) else None

    ways: list[Answers] = [answer, {KnownPages: answer}, {KnownPages: KnownDigests(["d1", "d2"])}]
    for answers in ways:
        run = run_handler(steps.reads, {"pages": 3}, directory=tmp_path, document_id=7, answers=answers)

        assert [page.number for page in run.pages] == [3]
        assert [type(question).__name__ for question in run.questions] == ["KnownPages", "DocumentPages"]
        assert run.result == ["page 3"]


def test_a_run_has_the_files_follow_ups_and_crawl_items(tmp_path: Path) -> None:
    reads_a_document = next(handler for handler in handlers if handler.job_type == "reads_a_document")

    run = run_handler(reads_a_document, directory=tmp_path, document_id=7)

    assert [(file.role, file.name) for file in run.published] == [("text", "Report.txt")]
    assert [file.file_id for file in run.published_again] == [7]
    assert [job.job_type for job in run.follow_ups] == ["leaf"]
    assert [item.id for page in run.crawl_pages for item in page.items] == ["a"]
    assert run.ended.document is not None


def test_a_job_without_a_document_saves_no_page(tmp_path: Path) -> None:
    run = run_handler(steps.reads, {"pages": 1}, directory=tmp_path)

    assert (run.how, run.ended.code) == (How.PERMANENT, "NO_DOCUMENT")
