"""`pagemill crawl ls`, `now` and `stop`: folders that are looked at again and again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items, states
from tests.cli.stored_documents import Shelf
from worker_service.base.clock import wall_clock
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import WATCHING


@pytest.fixture
def watched(run: Run, shelf: Shelf, tmp_path: Path) -> Path:
    """A folder that is watched as job 1, and was looked at; job 2 crawls another one once."""
    folder, other = tmp_path / "reports", tmp_path / "other"
    for one in (folder, other):
        one.mkdir()
    run("crawl", folder, "--watch", "2h", "--owner", "ann")
    [job] = shelf.store.leases.claim("w1", 1, "io") or shelf.store.leases.claim("w1", 1)
    shelf.store.leases.snooze(job.lease, wall_clock() + timedelta(hours=2), Failure(WATCHING, "3 enqueued"))
    run("crawl", other)
    return folder


def test_the_list_says_what_is_watched_how_often_when_next_and_what_was_found(run: Run, watched: Path) -> None:
    first, second = items(run("crawl", "ls", "--json"))

    assert (first["job_id"], first["folder"], first["owner"]) == (1, str(watched), "ann")
    assert (first["every_seconds"], first["state"], first["found"]) == (7200, "scheduled", "3 enqueued")
    assert first["next_at"] is not None
    assert (second["job_id"], second["every_seconds"], second["next_at"]) == (2, None, None)
    assert "NEXT RUN (UTC)" in run("crawl", "ls").stdout
    assert [one["job_id"] for one in items(run("crawl", "ls", "--owner", "ann", "--json"))] == [1]


@pytest.mark.parametrize("which", ["{folder}", "reports", "./reports/", "1", "--all", "--owner=ann"])
def test_a_watched_folder_is_looked_at_now_by_its_name_its_number_or_with_all_others(
    run: Run, watched: Path, which: str
) -> None:
    result = run("crawl", "now", which.format(folder=watched))

    assert (result.stdout, states(run)[1]) == ("1\n", "pending")
    assert "is running, or starts" in run("crawl", "now", "1").stderr


def test_one_that_is_watched_no_more_is_cancelled_and_undo_has_it_watched_again(run: Run, watched: Path) -> None:
    run("crawl", "stop", watched, "--dry-run")
    assert states(run)[1] == "scheduled"

    assert run("crawl", "stop", watched).stdout == f"{watched}: no longer watched\n"
    assert states(run) == {1: "cancelled", 2: "pending"}

    run("undo", "--yes")
    assert [one["every_seconds"] for one in items(run("crawl", "ls", "--json"))] == [7200, None]


@pytest.mark.usefixtures("watched")
def test_what_is_not_watched_is_told(run: Run) -> None:
    assert "name the folders: give a folder or its job id" in run("crawl", "now", fails=2).stderr
    assert "'other' is not a watched folder: pagemill crawl ls lists" in run("crawl", "stop", "other", fails=2).stderr
    assert "no folder is watched" in run("crawl", "now", "--owner", "bob", fails=2).stderr


def test_several_are_stopped_only_when_somebody_says_yes(run: Run, watched: Path, tmp_path: Path) -> None:
    run("crawl", tmp_path / "other", "--watch", "1d", "--owner", "bob")

    assert "Stop watching 2 folders?" in run("crawl", "stop", "--all", fails=1).stderr
    run("crawl", "stop", "--all", "--yes")

    assert states(run) == {1: "cancelled", 2: "pending", 3: "cancelled"}


@pytest.mark.usefixtures("database")
def test_a_folder_is_crawled_as_before_and_one_with_the_name_of_a_word_by_its_path(run: Run, tmp_path: Path) -> None:
    for name in ("reports", "ls"):
        (tmp_path / name).mkdir()

    assert run("crawl", "reports", "--owner", "ann").stdout == "1\n"
    assert run("crawl", "--owner", "ann", "./ls").stdout == "2\n"
    assert "no folder" not in run("crawl", "ls").stderr
    assert "missing argument" in run("crawl", fails=2).stderr
    assert "[OPTIONS] FOLDER" in run("crawl", "--help").stdout
    assert "pagemill crawl now --all" in run("crawl", "now", "--help").stdout
