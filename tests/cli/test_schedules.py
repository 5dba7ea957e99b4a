"""`pagemill schedules`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Daemon, Run, items
from tests.store.kit import ByHand
from worker_service.jobs.attempts import Report

MINUTELY = '[[schedule]]\nname = "minutely"\ncron = "* * * * *"\nowner = "ann"\njob = { type = "ocr_pages" }\n'


@pytest.fixture
def minutely(database: Path, monkeypatch: pytest.MonkeyPatch) -> ByHand:
    Path("own.toml").write_text(MINUTELY)
    monkeypatch.setenv("WORKER_CONFIG", "own.toml")
    by_hand = ByHand(database)
    by_hand("INSERT INTO schedule_plan VALUES ('minutely', '* * * * * UTC', strftime('%Y-%m-%d %H:%M:00.000', 'now',"
            " '-1 minute'))")  # fmt: skip
    return by_hand


@pytest.mark.usefixtures("minutely")
def test_tick_prints_each_slot_and_the_list_shows_the_state_of_its_job(run: Run) -> None:
    ticked = run("schedules", "tick").stdout.splitlines()

    assert ticked[0].startswith("minutely: 20")
    assert ticked[0].endswith(" UTC: job 1")
    [listed] = items(run("schedules", "ls", "--json"))
    assert (listed["name"], listed["what"], listed["zone"]) == ("minutely", "ocr_pages", "UTC")
    assert (listed["job"]["status"], listed["job"]["owner"], listed["is_waiting"]) == ("pending", "ann", False)
    table = run("schedules", "ls").stdout
    assert "NEXT (UTC)" in table
    assert "pending" in table


@pytest.mark.usefixtures("minutely")
def test_the_list_shows_the_message_of_the_last_run(run: Run, daemon: Daemon) -> None:
    run("schedules", "run-now", "minutely")
    [job] = daemon.claim()
    daemon.store.leases.report([Report(job.lease, percent=0, message="1 folder · 3 enqueued")])
    daemon.store.leases.complete(job.lease)

    assert "1 folder · 3 enqueued" in run("schedules").stdout


def test_a_list_shows_that_the_job_is_gone_and_that_no_timer_runs(run: Run, minutely: ByHand) -> None:
    run("schedules", "run-now", "minutely")
    run("delete", "1", "--yes")
    minutely("UPDATE schedule_plan SET until = strftime('%Y-%m-%d %H:%M:00.000', 'now', '-10 minutes')")

    result = run("schedules", "ls")

    assert "gone" in result.stdout
    assert "no timer runs the schedules: systemctl enable --now pagemill-schedule.timer" in result.stderr


@pytest.mark.usefixtures("minutely")
def test_run_now_starts_a_schedule_by_its_name(run: Run) -> None:
    assert run("schedules", "run-now", "minutely").stdout == "1\n"
    assert json.loads(run("schedules", "run-now", "minutely", "--json").stdout)["job_id"] == 2
    assert "did you mean minutely?" in run("schedules", "run-now", "minutly", fails=2).stderr


def test_a_tick_that_could_not_start_everything_ends_with_1(run: Run, minutely: ByHand) -> None:
    Path("own.toml").write_text(MINUTELY.replace('job = { type = "ocr_pages" }', 'crawl = "/nowhere"'))

    assert "there is no directory /nowhere" in run("schedules", "tick", fails=1).stderr
    assert minutely("SELECT count(*) AS jobs FROM worker_job_queue") == [{"jobs": 0}]


@pytest.mark.usefixtures("database")
def test_without_schedules_the_list_says_how_to_add_one(run: Run) -> None:
    assert "pagemill schedules add" in run("schedules", "ls").stderr
    assert "[[schedule]]" in run("schedules", "example").stdout


def test_a_scheduled_crawl_enqueues_the_same_job_as_add(
    run: Run, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = database.parent / "reports"
    folder.mkdir()
    crawl = f'{{ folder = "{folder}", lang = ["deu"], mime = ["application/pdf"], max_size = 5, force-ocr = true }}'
    Path("own.toml").write_text(f'[[schedule]]\nname = "n"\ncron = "@daily"\nowner = "ann"\ncrawl = {crawl}\n')
    monkeypatch.setenv("WORKER_CONFIG", "own.toml")

    run("schedules", "run-now", "n")
    run("cancel", "1")
    run("add", folder, "--owner", "ann", "--lang", "deu", "--mime", "application/pdf", "--max-size", "5", "--force-ocr")

    scheduled, typed = (
        row | {"id": 0, "priority": 0, "created_at": ""}
        for row in ByHand(database)(
            "SELECT id, priority, job_type, platform, owner, source, name, payload, unique_key, concurrency_key,"
            " created_at FROM worker_job_queue ORDER BY id"
        )
    )
    # The crawl of a batch lists the whole folder, even while another crawl of it is live.
    payload = json.loads(str(typed["payload"]))
    assert payload.pop("afresh")
    assert payload == json.loads(str(scheduled["payload"]))
    differing = {"payload", "unique_key", "concurrency_key"}
    assert {key for key in typed if typed[key] != scheduled[key]} == differing


@pytest.mark.parametrize(
    ("crawl", "sentence"),
    [
        (
            '{ folder = "/srv", watch = "1h" }',
            "there is no option 'watch': there are as-usual, lang",
        ),
        ('{ folder = "/srv", depth = "deep" }', "depth cannot be 'deep'"),
        ('{ folder = "/srv", mime = [1.5] }', "mime cannot be [1.5]"),
        ('{ mime = "x" }', "say which folder, such as /srv/reports or {'folder'"),
        ('"./reports"', "say which folder, such as /srv/reports"),
        ('"not-an-address!"', "there is no directory 'not-an-address!'"),
    ],
)
@pytest.mark.usefixtures("database")
def test_an_invalid_crawl_of_a_schedule_is_refused(
    run: Run, crawl: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.toml").write_text(f'[[schedule]]\nname = "n"\ncron = "@daily"\ncrawl = {crawl}\n')
    monkeypatch.setenv("WORKER_CONFIG", "own.toml")

    stderr = run("schedules", "run-now", "n", fails=2).stderr

    assert stderr.startswith("pagemill: schedule n: crawl: ")
    assert sentence in stderr


def test_doctor_reports_overdue_and_invalid_schedules(run: Run, minutely: ByHand) -> None:
    def levels_and_details() -> list[tuple[str, str]]:
        findings = json.loads(run("doctor", "--json", fails=1).stdout)["items"]
        return [(item["level"], item["detail"]) for item in findings if item["name"] == "schedules"]

    assert levels_and_details() == [("ok", "1 schedule, started in time")]
    minutely("DELETE FROM schedule_plan")
    assert levels_and_details() == [("warning", "overdue: minutely")]

    Path("own.toml").write_text(MINUTELY.replace('job = { type = "ocr_pages" }', 'crawl = "/nowhere"'))
    assert ("warning", "schedule minutely: crawl: there is no directory /nowhere") in levels_and_details()


def test_a_scheduled_batch_belongs_to_its_owner_and_replaces_no_other(
    run: Run, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = database.parent / "reports"
    folder.mkdir()
    (folder / "a.pdf").write_text("%PDF-")
    sources = f'["{folder}", "{folder}/a.pdf", "https://example.org/b.pdf", {{ folder = "{folder}", lang = ["deu"] }}]'
    Path("own.toml").write_text(f'[[schedule]]\nname = "n"\ncron = "@daily"\nowner = "ann"\nbatch = {sources}\n')
    monkeypatch.setenv("WORKER_CONFIG", "own.toml")

    assert run("schedules", "run-now", "n").stdout == "batch:1\n"
    assert run("schedules", "run-now", "n").stdout == "batch:2\n"

    rows = ByHand(database)(
        "SELECT job_type, platform, owner, priority, source_key FROM worker_job_queue WHERE batch_id = 1 ORDER BY id"
    )
    assert [(row["job_type"], row["platform"]) for row in rows] == [
        ("download", "local"), ("download", "https"), ("crawl", "local"),
    ]  # fmt: skip
    assert {(row["owner"], row["priority"]) for row in rows} == {("ann", 7)}
    batches = ByHand(database)("SELECT name, owner, state, json_extract(asked, '$.schedule') AS of FROM batch")
    assert [tuple(row.values()) for row in batches] == [("n", "ann", "active", "n"), ("n", "ann", "waiting", "n")]
    stdout = run("schedules", "ls").stdout
    assert "batch 2" in stdout
    assert "waiting" in stdout


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [("[]", "say which sources"), ('["/nowhere"]', "there is no file /nowhere"), ('["ftp://x"]', "a source is")],
)
@pytest.mark.usefixtures("database")
def test_an_invalid_batch_of_a_schedule_is_refused(
    run: Run, batch: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.toml").write_text(f'[[schedule]]\nname = "n"\ncron = "@daily"\nbatch = {batch}\n')
    monkeypatch.setenv("WORKER_CONFIG", "own.toml")

    assert sentence in run("schedules", "run-now", "n", fails=2).stderr


def test_a_scheduled_batch_enqueues_the_same_jobs_as_add(
    run: Run, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = database.parent / "reports"
    (folder / "below").mkdir(parents=True)
    for name in ("a.pdf", "below/b.pdf", ".hidden.pdf"):
        (folder / name).write_bytes(b"%PDF")
    address = "https://example.org/c.pdf"
    Path("own.toml").write_text(
        f'[[schedule]]\nname = "n"\ncron = "@daily"\nowner = "ann"\nbatch = ["{folder}", "{address}"]\n'
    )
    monkeypatch.setenv("WORKER_CONFIG", "own.toml")

    def jobs() -> list[tuple[object, ...]]:
        return [
            tuple(row.values())
            for row in ByHand(database)(
                "SELECT job_type, platform, owner, source, source_key, name, payload FROM worker_job_queue ORDER BY id"
            )
        ]

    run("schedules", "run-now", "n")
    scheduled = jobs()
    run("batch", "cancel", "1", "--yes")
    run("delete", "batch:1", "--yes")
    run("add", folder, address, "--owner", "ann")

    assert len(scheduled) == 3
    assert scheduled == jobs()


@pytest.mark.usefixtures("database")
def test_a_schedule_is_made_changed_paused_and_removed_by_commands(run: Run, tmp_path: Path) -> None:
    assert (
        "every 15 minutes (UTC), crawl" in run("schedules", "add", "mine", "--crawl", tmp_path, "--every", "15m").stdout
    )
    assert "at 06:00 on Monday" in run("schedules", "change", "mine", "--cron", "0 6 * * MON").stdout
    run("schedules", "change", "mine", "--cron", "30 2 * * *", "--zone", "Europe/Berlin")
    run("schedules", "pause", "mine")

    [listed] = items(run("schedules", "--json"))
    assert (listed["when"], listed["zone"], listed["definition"]["crawl"]) == (
        "At 02:30 every day", "Europe/Berlin", str(tmp_path),
    )  # fmt: skip
    assert "paused" in run("schedules").stdout
    run("schedules", "resume", "mine")
    run("schedules", "rm", "mine")
    assert items(run("schedules", "--json")) == []
    assert "undid the removal of schedule mine" in run("undo", "--yes").stdout
    assert len(items(run("schedules", "--json"))) == 1
    assert "say when" in run("schedules", "add", "other", "--job", "report", fails=2).stderr
