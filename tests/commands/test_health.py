"""`pagemill doctor`: what it asks of the settings and of the history. Beside a real daemon: tests/system."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.commands.conftest import Daemon, Run, items


def test_the_audit_names_each_broken_promise_by_its_number(run: Run, database: Path) -> None:
    run("enqueue", "ocr_pages")
    assert run("doctor", "--audit").stdout == "✓ promises: no row, and nothing in the history, breaks one\n"
    subprocess.run(
        ["sqlite3", database, "DROP TRIGGER job_guard; UPDATE worker_job_queue SET fence = 7 WHERE id = 1"], check=True
    )

    told, as_json = run("doctor", "--audit", fails=1), run("doctor", "--audit", "--json", fails=1)

    assert told.stdout.startswith("✗ P4: job 1 is pending with fence 7, and nothing tells how\n")
    assert [(item["level"], item["name"]) for item in items(as_json)] == [("critical", "P4")]


def test_the_doctor_says_where_the_limits_of_the_daemons_are_not_those_of_these_settings(
    run: Run, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text("[limits.type]\nocr_pages = 2\ndownload = 3\n")
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "own.toml"))
    daemon.store.set_limits("type", {"ocr_pages": 2, "assemble": 1})

    found = json.loads(run("doctor", "--json").stdout)["items"]

    assert [(item["level"], item["detail"]) for item in found if item["name"] == "limits"] == [
        ("warning", "type assemble: 1 in the database, no limit in these settings"),
        ("warning", "type download: no limit in the database, 3 in these settings"),
    ]
