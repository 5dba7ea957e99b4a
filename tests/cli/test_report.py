"""`pagemill report`: what somebody who helps wants to see, and nothing of what people have given."""

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
    """What a report has, by part; under "whole" all of its text."""

    def bundle(*words: str) -> dict[str, Any]:
        run("report", "-o", tmp_path / "bundle.tar.gz", "--force", *words)
        with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
            texts = {Path(one.name).stem: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
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

    told, found = run("report", "-o", tmp_path / "one.tar.gz"), bundle()

    assert [line.split(".json")[0] for line in told.stdout.splitlines()[1:]] == PARTS
    assert sorted(found) == sorted([*PARTS, "whole"])
    versions = found["versions"]
    assert all(versions[name] for name in ("pagemill", "python", "kernel", "schema")), versions
    assert versions["library"].startswith("SQLite 3.")
    assert versions["schema"] == versions["schema_of_this_version"]
    [offers] = [one["offers"] for one in found["handlers"]["items"] if one["job_type"] == "ocr_pages"]
    assert "for tesseract " in offers
    assert {"key": "sandbox", "value": "strict", "origin": "default"} in found["config"]["items"]
    assert "database" in [one["name"] for one in found["doctor"]["items"]]
    assert (found["status"]["level"], found["status"]["jobs"]["failed"]) == ("ok", 1)
    assert [one["id"] for one in found["workers"]["items"]] == ["w1"]
    assert [(one["code"], one["jobs"]) for one in found["errors"]["items"]] == [("HTTP_403", 1)]
    [failed] = found["failed"]["items"]
    assert (failed["error_code"], [one["outcome"] for one in failed["attempts"]]) == ("HTTP_403", ["failed"])
    assert [one["to_status"] for one in found["events"]["items"]] == ["failed", "running"]


def test_names_are_in_the_report_only_on_request_and_payloads_never(bundle: Bundle, daemon: Daemon) -> None:
    fail_one(daemon)

    without, whole = bundle(), bundle("--with-names")

    for word in ("alice", "siemens", "figures", "s3cret", "Bearer", "example.org"):
        assert word.lower() not in without["whole"].lower(), word
    assert {"owner", "name", "error_message"}.isdisjoint(without["failed"]["items"][0])
    [named] = whole["failed"]["items"]
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

    found, whole = bundle(), bundle("--with-names")

    assert [word for word in ("hunter2", "alice", str(tmp_path)) if word in found["whole"]] == []
    settings = {one["key"]: one["value"] for one in whole["config"]["items"]}
    assert (settings["commands.scrape"], settings["limits.owner.alice"]) == ("/bin/true", "2")
    assert "hunter2" not in whole["whole"]


def test_a_report_is_private_and_replaces_a_file_only_with_force(run: Run, database: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("mine")

    refused = run("report", "-o", target, fails=1)

    assert (f"{target} exists already: --force replaces it" in refused.stderr, target.read_text()) == (True, "mine")
    answer = json.loads(run("report", "-o", target, "--force", "--json").stdout)
    assert (answer["report"], [one["name"] for one in answer["items"]]) == (
        str(target),
        [f"{one}.json" for one in PARTS],
    )
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob(".bundle*")] == []


def test_without_a_readable_database_the_report_has_the_error_and_the_rest(bundle: Bundle, no_database: Path) -> None:
    no_database.write_text("this is no database, but somebody's notes " * 100)

    found = bundle()

    assert found["versions"]["schema"] is None
    assert found["doctor"]["error"] == "database_unusable"
    assert [one["key"] for one in found["config"]["items"]][:1] == ["database"]
