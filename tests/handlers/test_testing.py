"""What a handler's author tests with, tested with a handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.saboteurs import steps
from worker_service.handlers import Context, Handler
from worker_service.testing import How, run_handler, run_stopped_and_again


def test_a_handler_runs_in_a_real_child(tmp_path: Path) -> None:
    run = run_handler(steps.resumes, steps.Pages(3), directory=tmp_path)

    assert run.how is How.DONE
    assert run.result == {"pages": [0, 1, 2], "begun_with": 0}
    assert run.state == "[0, 1, 2]"


def test_a_handler_in_a_list_is_found(tmp_path: Path) -> None:
    assert run_handler(steps.several[0], '{"pages": 1}', directory=tmp_path).how is How.DONE


def test_a_handler_that_is_stopped_at_a_step_goes_on_there(tmp_path: Path) -> None:
    first, second = run_stopped_and_again(steps.resumes, {"pages": 4}, directory=tmp_path, step=3)

    assert (first.how, first.ended.usage.signal) == (How.CRASHED, "SIGKILL")
    assert second.result == {"pages": [0, 1, 2, 3], "begun_with": 3}


def test_an_installed_handler_is_run_by_its_job_type(tmp_path: Path) -> None:
    commands = {"greet": {"argv": ["/bin/echo", "hello", "{account}"]}}

    run = run_handler("greet", directory=tmp_path, account="you", commands=commands)

    assert run.lines == ["hello you"]


def test_a_handler_without_a_name_cannot_be_found(tmp_path: Path) -> None:
    def nowhere(context: Context[steps.Pages]) -> None:
        return None

    with pytest.raises(LookupError, match="give it a name"):
        run_handler(Handler("nowhere", nowhere, steps.Pages), directory=tmp_path)
