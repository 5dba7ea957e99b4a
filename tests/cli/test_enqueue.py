"""`pagemill enqueue`: valid input becomes a row; other input is refused with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Daemon, Run, items
from worker_service.jobs.workers import HandlerFacts, Worker

pytestmark = pytest.mark.usefixtures("database")


def job(run: Run, job_id: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("show", job_id, "--json").stdout)
    return found


def test_every_option_reaches_its_column(run: Run) -> None:
    run("enqueue", "download")

    run(
        *("enqueue", "ocr_pages", "--platform", "gdrive", "--account", "a1", "--owner", "alice", "--source", "key-1"),
        *("--priority", 2, "--run-at", "2031-01-02 03:04", "--after", "1", "--unique", "u", "--key", "k"),
        *("--max-retries", 7, "--timeout", "1h30m", "--batch", 9, "--set", "n=1"),
    )

    row = job(run, 2)
    expected = {
        "job_type": "ocr_pages", "platform": "gdrive", "account": "a1", "owner": "alice", "source": "key-1",
        "priority": 2, "run_at": "2031-01-02T03:04:00.000Z", "unique_key": "u", "concurrency_key": "k",
        "max_retries": 7, "timeout_seconds": 5400, "batch_id": 9, "payload": {"n": 1},
        "waits_for": [{"id": 1, "status": "pending"}],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_the_settings_give_the_retries_of_a_type_unless_the_job_has_its_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text("[retries.ocr_pages]\nmax = 5\n")
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "own.toml"))

    run("enqueue", "ocr_pages")
    run("enqueue", "ocr_pages", "--max-retries", 1)
    run("enqueue", "download")

    assert [job(run, n)["max_retries"] for n in (1, 2, 3)] == [5, 1, 3]


def test_a_payload_comes_from_the_word_a_file_or_standard_input(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"from": "file"}\n')

    run("enqueue", "a", "--payload", '{"from":"word"}')
    run("enqueue", "a", "--payload", f"@{tmp_path / 'job.json'}")
    run("enqueue", "a", "--payload", "-", stdin='{"from": "stdin"}')

    assert [job(run, n)["payload"]["from"] for n in (1, 2, 3)] == ["word", "file", "stdin"]


def test_set_parses_json_and_keeps_other_values_as_text(run: Run) -> None:
    words = ["n=1", "f=true", "t=007", "l=[1,2]", 's="42"', "e=", "u=a=b", "deep.er=x", "nan=NaN"]

    run("enqueue", "a", "--payload", '{"kept":0,"n":9}', *(part for word in words for part in ("--set", word)))

    assert job(run)["payload"] == {
        "kept": 0, "n": 1, "f": True, "t": "007", "l": [1, 2], "s": "42", "e": "", "u": "a=b",
        "deep": {"er": "x"}, "nan": "NaN",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ("{'a': 1}", "not JSON"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ("", "the payload is empty"),
        ("@missing.json", "cannot be read"),
        ("[" * 100_000, "too deeply"),
    ],
)
def test_a_payload_that_is_not_json_is_refused(run: Run, payload: str, sentence: str) -> None:
    result = run("enqueue", "a", "--payload", payload, fails=65)

    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert items(run("ls", "--json")) == []


def test_a_payload_over_the_limit_is_refused_from_each_source(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_PAYLOAD_BYTES_MAX", "1024")
    fits, large = json.dumps("x" * 1022), json.dumps("x" * 1023)
    (tmp_path / "large.json").write_text(large)

    run("enqueue", "a", "--payload", fits)
    for words in (["--payload", large], ["--payload", "@large.json"], ["--set", f"k={large}"]):
        assert "payload_bytes_max" in run("enqueue", "a", *words, fails=65).stderr
    assert "payload_bytes_max" in run("enqueue", "a", "--payload", "-", stdin=large, fails=65).stderr

    assert len(items(run("ls", "--json"))) == 1


def test_a_payload_that_is_not_utf8_is_refused(run: Run) -> None:
    assert "not UTF-8" in run("enqueue", "a", "--payload", "-", stdin=b'{"a": "\xff"}', fails=65).stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--priority", "0"], "priority is 1 (highest) to 10 (lowest), not 0"),
        (["--priority", "11"], "priority is 1 (highest) to 10 (lowest), not 11"),
        (["--priority", "high"], "'high' is not a valid integer"),
        (["--run-at", "2026-02-30 10:00"], "is not a time"),
        (["--run-at", "tomorrow"], "is not a time"),
        (["--run-at", "+10"], "is not a length of time"),
        (["--run-at", "+99999999999d"], "longer than time is kept"),
        (["--run-at", "0001-01-01"], "before 1970"),
        (["--timeout", "0"], "1s or longer"),
        (["--timeout", "soon"], "is not a length of time"),
        (["--after", "1,x"], "is not a list of jobs"),
        (["--after", ""], "is not a list of jobs"),
        (["--unique", ""], "--unique is empty"),
        (["--max-retries", "-1"], "--max-retries is a number from 0"),
        (["--batch", "9" * 30], "--batch is a number from 0"),
        (["--set", "novalue"], "write it like file_id=abc"),
    ],
)
def test_an_invalid_option_is_a_usage_error_and_adds_no_job(run: Run, words: list[str], sentence: str) -> None:
    assert sentence in run("enqueue", "a", *words, fails=2).stderr
    assert items(run("ls", "--json")) == []


SCHEMA = """{"$ref": "#/$defs/Payload", "$defs": {"Payload": {
    "type": "object", "required": ["url"], "properties": {"url": {"type": "string"}, "pages": {"type": "integer"}}}}}"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], 'payload: "url" is a required property'),
        (["--set", "url=https://a", "--set", "pages=few"], 'payload.pages: the value is not of type "integer"'),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_the_name_of_the_field(
    run: Run, daemon: Daemon, words: list[str], sentence: str
) -> None:
    daemon.store.workers.register(worker("w1", SCHEMA))

    refused = run("enqueue", "ocr_pages", *words, fails=65)

    assert sentence in refused.stderr
    assert items(run("ls", "--json")) == []
    assert run("enqueue", "ocr_pages", *words, "--no-check").stdout == "1\n"


@pytest.mark.parametrize("other", [None, '{"type": "object"}'])
def test_a_payload_that_fits_one_worker_is_accepted(run: Run, daemon: Daemon, other: str | None) -> None:
    daemon.store.workers.register(worker("w1", SCHEMA))
    daemon.store.workers.register(worker("w2", other))

    assert run("enqueue", "ocr_pages").stdout == "1\n"


def test_a_payload_of_a_type_without_a_live_worker_is_accepted(run: Run, daemon: Daemon) -> None:
    daemon.store.workers.register(worker("w1", SCHEMA))

    assert run("enqueue", "download").stdout == "1\n"


def worker(name: str, schema: str | None) -> Worker:
    return Worker(name, "here", "boot", 1, "0", 1, 1, [HandlerFacts("ocr_pages", payload_schema=schema)])


def test_a_live_job_with_the_unique_key_is_returned_instead(run: Run) -> None:
    run("enqueue", "a", "--unique", "nightly")

    result = run("enqueue", "a", "--unique", "nightly")
    as_json = run("enqueue", "a", "--unique", "nightly", "--json")

    assert result.stdout == "1\n"
    assert "nothing was added" in result.stderr
    assert json.loads(as_json.stdout).items() >= {"id": 1, "existing": True}.items()


def test_after_any_runs_once_the_other_has_failed(run: Run, daemon: Daemon) -> None:
    assert "there is no job 99" in run("enqueue", "a", "--after", "99", fails=66).stderr
    run("enqueue", "ocr_pages")
    run("enqueue", "assemble", "--after", "1", "--after-any")
    run("enqueue", "assemble", "--after", "1")

    daemon.fail()
    daemon.claim()

    assert [job(run, n)["state"] for n in (2, 3)] == ["running", "failed"]
    assert job(run, 3)["error_code"] == "DEPENDENCY_FAILED"


def test_once_per_month_adds_no_second_job_even_after_the_first_is_deleted(run: Run, daemon: Daemon) -> None:
    once = ("enqueue", "ocr_pages", "--unique", "nightly", "--once-per")
    run(*once, "month")
    daemon.fail()
    run("delete", "1", "--yes")

    result = run(*once, "month")

    assert result.stdout == "1\n"
    assert "nothing was added: job 1 with this unique key is live or was added this month" in result.stderr
    # Each period has its own record, and the key alone applies to live jobs only.
    assert run(*once, "week").stdout == "2\n"
    assert run(*once[:-1]).stdout == "2\n"


def test_once_per_requires_a_unique_key_and_a_known_period(run: Run, database: Path) -> None:
    assert "needs a --unique KEY" in run("enqueue", "a", "--once-per", "day", fails=2).stderr
    assert "'year' is not one of" in run("enqueue", "a", "--unique", "k", "--once-per", "year", fails=2).stderr
