"""The benchmarks run, and measure every row of their table. How fast is theirs to say, never a test's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = [
    "enqueue",
    "enqueue_many",
    "cycle",
    "cycle_10",
    "cycle_100",
    "claim_depth",
    "claim_raw",
    "claim_depth_raw",
    "behind_held",
    "behind_paused_type",
    "behind_full_type",
    "behind_busy_owner",
    "behind_busy_key",
    "behind_resting_source",
    "lanes",
    "due",
    "due_claims",
    "command_ls",
    "command_why",
    "command_enqueue",
]


def test_the_quick_form_measures_every_row(tmp_path: Path) -> None:
    results = tmp_path / "queue.json"

    done = run("queue", "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())["rows"]
    assert [row["key"] for row in rows] == ROWS
    for row in rows:
        assert min(row["ours"]) > 0, row
        assert min(row["peer"]) > 0, row
        assert row["what"] in done.stdout


def test_an_unknown_benchmark_is_answered_with_those_there_are() -> None:
    done = run("queues")

    assert done.returncode == 2
    assert "there is no benchmark 'queues': it is one of queue" in done.stderr


def test_quick_figures_are_not_for_the_record() -> None:
    done = run("queue", "--quick", "--write")

    assert done.returncode == 2
    assert "not for the record" in done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
