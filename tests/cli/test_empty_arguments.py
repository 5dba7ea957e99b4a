"""An empty argument, such as an unset shell variable gives, is a usage error and does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.stored_documents import Shelf
from worker_service.jobs.selector import Selector


@pytest.mark.parametrize(
    "words",
    [
        ["add", ""],
        ["add", "a.txt", ""],
        ["add", "--wait", "--", ""],
        ["ingest", ""],
        ["documents", "adopt", ""],
        ["keywords", ""],
        ["db", "backup", ""],
        ["db", "restore", ""],
        ["enqueue", ""],
        ["search", ""],
        ["pause", ""],
        ["handlers", "show", ""],
        ["token", "make", ""],
        ["schedules", "run-now", ""],
        ["export", "1", "-o", ""],
        ["ls", "--database", ""],
        ["ls", "--database="],
        ["--database", "", "ls"],
    ],
    ids=" ".join,
)
def test_an_empty_path_or_name_is_a_usage_error(run: Run, shelf: Shelf, words: list[str]) -> None:
    Path("a.txt").write_text("a file of the current directory")

    refused = run(*words, fails=2)

    assert "is empty: is a variable of the shell unset?" in refused.stderr
    assert shelf.store.job_queries.count(Selector()) == 0


def test_an_empty_owner_is_allowed(run: Run, shelf: Shelf) -> None:
    Path("a.txt").write_text("a file of the current directory")

    run("add", "a.txt", "--owner", "")

    assert shelf.store.job_queries.count(Selector()) == 1
