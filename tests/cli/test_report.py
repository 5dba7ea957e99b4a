"""`pagemill report`: its files, and that names, payloads and messages are not in it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Daemon, Run
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob

PARTS = (
    "versions config handlers doctor status workers counts errors failed events"
).split()  # fmt: skip

Bundle = Callable[..., dict[str, Any]]


@pytest.fixture
def bundle(run: Run, tmp_path: Path) -> Bundle:
    """Return a function that writes a report, and returns its files by name and all its text as "whole"."""

    def bundle(*words: str) -> dict[str, Any]:
        run("report", "-o", tmp_path / "bundle.tar.gz", "--force", *words)
        with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
            texts = {Path(file.name).stem: archive.extractfile(file).read().decode() for file in archive}  # type: ignore[union-attr]
        parts = {name: json.loads(text) for name, text in texts.items()}
        return {**parts, "whole": "\n".join(texts.values())}

    return bundle


def fail_one(daemon: Daemon) -> None:
    payload = {"source": "/srv/Clients/Siemens/Q1 figures.pdf", "headers": {"authorization": "Bearer s3cret-t0ken"}}
    job = NewJob(
        "download",
        owner="alice",
        account="alice.miller",
        name="Q1 figures.pdf",
        source_key="/srv/Clients/Siemens/Q1 figures.pdf",
        payload=json.dumps(payload),
        unique_key="only /srv/Clients/Siemens/Q1 figures.pdf",
    )
    daemon.store.intake.enqueue(job)
    sentence = (
        "/srv/Clients/Siemens/Q1 figures.pdf: alice.miller of alice@example.org may not (Bearer s3cret-t0ken); see "
        "https://example.org/siemens?key=1, /data/siemens/other.pdf and siemens.xlsx"
    )
    [claimed] = daemon.claim()
    daemon.store.leases.fail(claimed.lease, Failure("HTTP_403", sentence), retry_at=None)


@pytest.mark.usefixtures("all_handlers")
def test_a_report_has_versions_settings_findings_and_failures_and_lists_its_files(
    run: Run, bundle: Bundle, daemon: Daemon, tmp_path: Path
) -> None:
    fail_one(daemon)

    result, report = run("report", "-o", tmp_path / "one.tar.gz"), bundle()

    assert [line.split(".json")[0] for line in result.stdout.splitlines()[1:]] == PARTS
    assert sorted(report) == sorted([*PARTS, "whole"])
    versions = report["versions"]
    assert all(versions[name] for name in ("pagemill", "python", "kernel", "schema")), versions
    assert versions["library"].startswith("SQLite 3.")
    assert versions["schema"] == versions["schema_of_this_version"]
    [offers] = [handler["offers"] for handler in report["handlers"]["items"] if handler["job_type"] == "ocr_pages"]
    assert "for tesseract " in offers
    assert {"key": "sandbox", "value": "strict", "origin": "default"} in report["config"]["items"]
    assert "database" in [finding["name"] for finding in report["doctor"]["items"]]
    assert (report["status"]["level"], report["status"]["jobs"]["failed"]) == ("ok", 1)
    assert [worker["id"] for worker in report["workers"]["items"]] == ["w1"]
    assert [(item["code"], item["jobs"]) for item in report["errors"]["items"]] == [("HTTP_403", 1)]
    [failed] = report["failed"]["items"]
    assert (failed["error_code"], [attempt["outcome"] for attempt in failed["attempts"]]) == ("HTTP_403", ["failed"])
    assert [item["to_status"] for item in report["events"]["items"]] == ["failed", "running"]


def test_names_are_in_the_report_only_on_request_and_payloads_never(bundle: Bundle, daemon: Daemon) -> None:
    fail_one(daemon)

    without_names, with_names = bundle(), bundle("--with-names")

    for word in ("alice", "siemens", "figures", "s3cret", "Bearer", "example.org"):
        assert word.lower() not in without_names["whole"].lower(), word
    assert {"owner", "name", "error_message"}.isdisjoint(without_names["failed"]["items"][0])
    [named] = with_names["failed"]["items"]
    assert (named["owner"], named["name"]) == ("alice", "Q1 figures.pdf")
    assert "/srv/Clients/Siemens/Q1 figures.pdf: " in named["error_message"]
    assert {"payload", "result", "unique_key", "account", "source_key"}.isdisjoint(named)


def test_arguments_of_programs_and_names_of_owners_are_not_in_the_report(
    bundle: Bundle, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text(
        '[commands.scrape]\nargv = ["/bin/true", "--password", "hunter2"]\n[limits.owner]\nalice = 2\n'
    )
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "own.toml"))

    without_names, with_names = bundle(), bundle("--with-names")

    assert [word for word in ("hunter2", "alice", str(tmp_path)) if word in without_names["whole"]] == []
    settings = {item["key"]: item["value"] for item in with_names["config"]["items"]}
    assert (settings["commands.scrape"], settings["limits.owner.alice"]) == ("/bin/true", "2")
    assert "hunter2" not in with_names["whole"]


def test_a_report_is_private_and_replaces_a_file_only_with_force(run: Run, database: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("mine")

    refused = run("report", "-o", target, fails=1)

    assert (f"{target} exists already: --force replaces it" in refused.stderr, target.read_text()) == (True, "mine")
    answer = json.loads(run("report", "-o", target, "--force", "--json").stdout)
    assert (answer["report"], [item["name"] for item in answer["items"]]) == (
        str(target),
        [f"{item}.json" for item in PARTS],
    )
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob(".bundle*")] == []


def test_without_a_readable_database_the_report_has_the_error_and_the_rest(bundle: Bundle, no_database: Path) -> None:
    no_database.write_text("this is no database, but somebody's notes " * 100)

    report = bundle()

    assert report["versions"]["schema"] is None
    assert report["doctor"]["error"] == "database_unusable"
    assert [item["key"] for item in report["config"]["items"]][:1] == ["database"]
