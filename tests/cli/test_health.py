"""`pagemill doctor`: its findings about settings and rows. tests/system has those with a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.conftest import Daemon, Process, Run, items
from tests.cli.stored_documents import Shelf
from tests.store.kit import claim, new_worker, request_document
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import NewJob

Findings = Callable[..., dict[str, Any]]


@pytest.fixture
def findings(run: Run) -> Findings:
    """Return a function that runs the doctor and returns its findings by name."""
    return lambda *words, fails=0: {item["name"]: item for item in items(run("doctor", "--json", *words, fails=fails))}


def test_the_audit_names_each_broken_promise_by_its_number(run: Run, database: Path) -> None:
    run("enqueue", "ocr_pages")
    assert run("doctor", "--audit").stdout == "✓ consistency: rows, history and published files agree\n"
    subprocess.run(
        ["sqlite3", database, "DROP TRIGGER job_guard; UPDATE worker_job_queue SET fence = 7 WHERE id = 1"], check=True
    )

    as_text, as_json = run("doctor", "--audit", fails=1), run("doctor", "--audit", "--json", fails=1)

    assert as_text.stdout.startswith("✗ P4: job 1 is pending with fence 7, and nothing tells how\n")
    assert [(item["level"], item["name"]) for item in items(as_json)] == [("critical", "P4")]


def test_the_doctor_finds_published_files_that_changed(run: Run, findings: Findings, shelf: Shelf) -> None:
    missing, short, other = (shelf.read(f"{name}.pdf", "climate") for name in "abc")
    assert run("doctor", "--audit").stdout.startswith("✓")
    assert "files" not in findings()
    files = {
        document: shelf.workspace / shelf.store.library.files(document)[0].path for document in (missing, short, other)
    }
    files[missing].unlink()
    files[short].write_bytes(b"cli")
    files[other].write_bytes(b"CLIMATE")

    by_size, by_digest = findings(fails=1)["files"], items(run("doctor", "--audit", "--json", fails=1))

    assert by_size["level"] == "critical"
    assert by_size["detail"].startswith("2 published files not as published: ")
    assert [(item["name"], item["detail"].partition("/")[2].split(" ", 1)[1]) for item in by_digest] == [
        ("P5", "is missing"),
        ("P5", "has 3 bytes, and 7 were published"),
        ("P5", "has other bytes than were published"),
    ]
    assert f"pagemill reindex {missing} --force" in by_digest[0]["fix"]


def test_the_doctor_warns_about_limits_that_differ_from_the_settings(
    run: Run, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text("[limits.type]\nocr_pages = 2\ndownload = 3\n")
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "own.toml"))
    daemon.store.workers.set_limits("type", {"ocr_pages": 2, "assemble": 1})

    findings = json.loads(run("doctor", "--json").stdout)["items"]

    assert [(item["level"], item["detail"]) for item in findings if item["name"] == "limits"] == [
        ("warning", "type assemble: 1 in the database, no limit in these settings"),
        ("warning", "type download: no limit in the database, 3 in these settings"),
    ]


@pytest.mark.usefixtures("all_handlers")
def test_without_a_daemon_the_doctor_examines_the_handlers(
    findings: Findings, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[commands.scrape]\nargv = ["/opt/none/scrape"]\n')
    monkeypatch.setenv("WORKER_CONFIG", str(file))

    finding_by_name = findings(fails=1)

    assert (finding_by_name["settings"]["level"], finding_by_name["settings"]["detail"]) == ("ok", str(file))
    scrape, read = finding_by_name["handler scrape"], finding_by_name["handler ocr_pages"]
    assert (scrape["level"], scrape["detail"]) == (
        "warning", "it starts no jobs: /opt/none/scrape is not a program that can be run",
    )  # fmt: skip
    assert scrape["fix"] == "when it is installed: pagemill run"
    assert (read["level"], read["detail"].startswith("trained data for ")) == ("ok", True)


def test_the_doctor_reports_a_workspace_of_another_database(
    run: Run, process: Process, findings: Findings, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    for database in (first, second):
        run("init", "--database", database)
    process("run", "--drain", "--database", first)

    finding = findings("--database", second, fails=1)["workspace"]
    refused = process("run", "--drain", "--database", second, fails=78).stderr

    assert (finding["level"], finding["detail"].startswith("no daemon starts: the workspace ")) == ("critical", True)
    assert finding["detail"].removeprefix("no daemon starts: ") in refused
    assert "WORKER_WORKSPACE" in finding["fix"]
    assert findings("--database", first, fails=1)["workspace"]["level"] == "ok"


def test_the_doctor_drops_a_failure_that_a_newer_job_replaces(run: Run, findings: Findings, shelf: Shelf) -> None:
    no_secret = Failure("SECRET_ABSENT", "there is no credential password-a", remedy="give it")
    for key in ("a.pdf", "b.pdf"):
        request_document(shelf.store, key)
        shelf.store.leases.fail(claim(shelf.store).lease, no_secret, retry_at=None)
    request_document(shelf.store, "a.pdf", is_forced=True)

    finding = findings()["1 job ingest"]
    assert finding["fix"] == "give it, then: stop and start pagemill run, pagemill retry --error SECRET_ABSENT"
    result = run(*finding["fix"].rpartition("pagemill ")[2].split(), "--yes", fails=1)

    assert result.stdout == "retried 1 job\n"
    assert not [name for name in findings() if name.endswith("ingest")]


def test_the_doctor_drops_an_absent_credential_after_a_daemon_has_started(findings: Findings, daemon: Daemon) -> None:
    daemon.store.intake.enqueue(NewJob("download"))
    daemon.fail("SECRET_ABSENT", "there is no credential webhook", "give the service LoadCredential=webhook:/path")

    finding = findings()["1 job download"]
    daemon.store.workers.register(replace(new_worker("w2", types=["download"]), pid=os.getpid()))

    assert finding["detail"] == "SECRET_ABSENT: there is no credential webhook"
    assert finding["fix"].endswith("then: stop and start pagemill run, pagemill retry --error SECRET_ABSENT")
    assert "1 job download" not in findings()


def test_a_job_whose_worker_has_no_row_is_reported_everywhere(
    run: Run, findings: Findings, daemon: Daemon, database: Path
) -> None:
    run("enqueue", "ocr_pages")
    daemon.claim()
    remove = "DROP TRIGGER worker_delete_guard; DELETE FROM worker"
    subprocess.run(["sqlite3", "-cmd", ".timeout 5000", database, remove], check=True)

    asked = run("cancel", 1).stdout, run("why", 1).stdout

    assert asked[0] == "asked 1 job to stop\n"
    assert "on w1, which is unknown; it was asked to stop\n    next: start a daemon, which puts it back" in asked[1]
    assert findings(fails=1)["worker w1"]["detail"] == "it has no row, and held 1 job"
    assert [worker["state"] for worker in items(run("workers", "--json"))] == ["no row"]
    assert "no worker is alive (1 no row)" in run("status", fails=2).stdout
    assert "P13: job 1 is running on worker w1, which has no row" in findings(fails=1)["consistency"]["detail"]


def test_the_doctor_says_how_the_daemon_connects_to_ray(
    findings: Findings, database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert database.exists()
    monkeypatch.setattr("worker_service.cli.doctor.find_spec", lambda name: None)
    monkeypatch.setattr("worker_service.cluster.ray_settings.SERVICE_TOKEN", tmp_path / "ray.token")
    assert "Ray" not in findings(fails=1)
    monkeypatch.setenv("WORKER_CLUSTER", "ray:10.1.2.3:6379")
    assert findings(fails=1)["Ray"]["detail"] == "it is not installed"

    monkeypatch.setattr("worker_service.cli.doctor.find_spec", lambda name: object())
    exposed = findings(fails=1)["Ray"]
    assert (exposed["level"], "no token" in exposed["detail"]) == ("critical", True)
    assert "pagemill cluster init" in exposed["fix"]

    directory = tmp_path / "credentials"
    directory.mkdir()
    (directory / "ray.token").write_text("secret")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(directory))
    assert (findings(fails=1)["Ray"]["level"], findings(fails=1)["Ray"]["detail"]) == ("ok", "a token, without TLS")


def test_the_doctor_names_the_missing_ocr_data_of_a_script(run: Run, shelf: Shelf) -> None:
    install = "apt-get install tesseract-ocr-script-arab"
    unread = {"script": "Arabic", "language": "script/Arabic", "install": install}
    shelf.read("a.pdf", "one", "two", layout=json.dumps({"size": [1, 1], "unread": unread}), confidence=0.0)

    finding_by_name = {item["name"]: item for item in items(run("doctor", "--json"))}

    assert finding_by_name["recognised scripts"]["level"] == "warning"
    assert finding_by_name["recognised scripts"]["detail"].startswith("2 pages of the newest documents: Arabic letters")
    assert finding_by_name["recognised scripts"]["fix"] == f"{install}, then: pagemill reindex 1 --lang script/Arabic"
