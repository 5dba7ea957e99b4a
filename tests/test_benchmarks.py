"""The benchmarks run, and measure every row of their table. How fast is theirs to say, never a test's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from job_handlers.reading import ocr

ROOT = Path(__file__).resolve().parent.parent
QUEUE_ROWS = [
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
DAEMON_ROWS = [
    "fresh",
    "fresh_all",
    "reused",
    "reused_celery",
    "reused_redis_huey",
    "claimed_p50",
    "claimed_p99",
    "begun_p50",
    "begun_p99",
    "idle_cpu",
    "idle_memory",
    "requeued",
    "recovery",
    "fairness",
]
DOWNLOAD_ROWS = [
    "plain",
    "flowing",
    "cpu",
    "cpu_both",
    "once",
    "once_cpu",
    "memory",
    "tls",
    "four",
    "four_both",
    "late_drip",
    "late_stall",
    "late_header_drip",
]
OCR_ROWS = [
    "engine",
    "engine_cpu",
    "ocrmypdf_clean",
    "cpu_clean",
    "errors_clean",
    "words_clean",
    "pytesseract",
    "ocrmypdf_noisy_150",
    "cpu_noisy_150",
    "errors_noisy_150",
    "words_noisy_150",
    "ocrmypdf_noisy_200",
    "cpu_noisy_200",
    "errors_noisy_200",
    "words_noisy_200",
    "ocrmypdf_real",
    "cpu_real",
    "errors_real",
    "words_real",
    "errors_skewed",
    "memory",
    "digital",
    "digital_cpu",
    "beside_inserts",
    "again",
    "latency_12",
    "latency_1",
    "search",
]


def test_the_quick_form_measures_every_row(tmp_path: Path) -> None:
    results = tmp_path / "queue.json"

    done = run("queue", "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())["rows"]
    assert [row["key"] for row in rows] == QUEUE_ROWS
    for row in rows:
        assert min(row["ours"]) > 0, row
        assert min(row["peer"]) > 0, row
        assert row["what"] in done.stdout


def test_the_quick_form_measures_a_real_daemon_without_its_peers(tmp_path: Path) -> None:
    results = tmp_path / "daemon.json"

    done = run("daemon", "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    rows = {row["key"]: row for row in json.loads(results.read_text())["rows"]}
    assert list(rows) == DAEMON_ROWS
    for row in rows.values():
        assert row["ours"], row
        assert row["peer"] == [], row
        assert row["ratio"] is None, row
        assert row["what"] in done.stdout
    # Not how fast, but in which order: a handler's first line comes after the claim of its job.
    assert rows["begun_p50"]["ours"] > rows["claimed_p50"]["ours"]
    assert rows["fairness"]["met"] is True


# Seconds; but pages are read, and machines differ.
@pytest.mark.timeout(300)
def test_the_quick_form_fetches_from_a_drive_of_its_own(tmp_path: Path) -> None:
    results = tmp_path / "download.json"

    done = run("download", "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    rows = {row["key"]: row for row in json.loads(results.read_text())["rows"]}
    assert list(rows) == DOWNLOAD_ROWS
    for row in rows.values():
        assert row["ours"], row
        assert row["what"] in done.stdout
    assert rows["memory"]["met"] is True


@pytest.mark.skipif(ocr.missing() is not None, reason=f"{ocr.missing()}")
def test_the_quick_form_reads_generated_pages_without_the_peers(tmp_path: Path) -> None:
    results = tmp_path / "ocr.json"

    done = run("ocr", "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    rows = {row["key"]: row for row in found["rows"]}
    assert list(rows) == OCR_ROWS
    for row in rows.values():
        assert row["ours"], row
        assert row["what"] in done.stdout
    # Not how fast, but that what was read is what stands there.
    for look in ("clean", "noisy_150", "skewed"):
        assert max(rows[f"errors_{look}"]["ours"]) < 5, rows[f"errors_{look}"]
    assert rows["again"]["ratio"] > 1
    assert "tesseract" in found["machine"]["engine"]
    assert found["machine"]["sandbox"].startswith("sandbox ")


def test_the_quick_form_counts_what_a_crawl_asks(tmp_path: Path) -> None:
    results = tmp_path / "crawl.json"

    done = run("crawl", "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    rows = {row["key"]: row for row in json.loads(results.read_text())["rows"]}
    assert list(rows) == ["first_calls", "idle_calls", "whole_calls", "first_rate", "idle_time", "whole_rate"]
    # Counts hang on no clock, so that they can be promised.
    assert all(rows[key]["met"] for key in ("first_calls", "idle_calls", "whole_calls"))


def test_an_unknown_benchmark_is_answered_with_those_there_are() -> None:
    done = run("queues")

    assert done.returncode == 2
    assert "there is no benchmark 'queues': it is one of queue, daemon, download, crawl, ocr" in done.stderr


def test_quick_figures_are_not_for_the_record() -> None:
    done = run("queue", "--quick", "--write")

    assert done.returncode == 2
    assert "not for the record" in done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
