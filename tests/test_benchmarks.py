from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import table
from job_handlers.reading import ocr
from tests.cluster.ray_lab import needs_ray
from tests.full_length import only_in_full

ROOT = Path(__file__).resolve().parent.parent
needs_engine = pytest.mark.skipif(ocr.missing() is not None, reason=f"{ocr.missing()}")


Rows = Mapping[str, Any]
ABSENT = ("questions_", "bare_", "tagged_", "icdar_")
"""Prefixes of rows whose test data is not part of the repository."""


def check_search(rows: Rows, measured: Any) -> None:
    assert min(rows["question_p95"]["peer"]) > 0


def check_queue(rows: Rows, measured: Any) -> None:
    for row in rows.values():
        assert min(row["ours"]) > 0, row
        assert min(row["peer"]) > 0, row


def check_daemon(rows: Rows, measured: Any) -> None:
    assert [row for row in rows.values() if row["peer"] or row["ratio"] is not None] == []
    # Not how fast, but in which order: a handler's first line comes after the claim of its job.
    assert rows["begun_p50"]["ours"] > rows["claimed_p50"]["ours"]
    assert rows["fairness"]["met"] is True


def check_download(rows: Rows, measured: Any) -> None:
    assert rows["memory"]["met"] is True


def check_cluster(rows: Rows, measured: Any) -> None:
    # All of the document has gone to the nodes.
    assert min(rows["sent"]["ours"]) >= 1
    assert min(rows["reading"]["ours"]) > 0


def check_crawl(rows: Rows, measured: Any) -> None:
    # Counts hang on no clock, so that they can be promised.
    assert all(rows[key]["met"] for key in ("first_calls", "idle_calls", "whole_calls"))


def check_ocr(rows: Rows, measured: Any) -> None:
    # Not how fast, but that what was read is what stands there.
    for look in ("clean", "noisy_150", "skewed"):
        assert max(rows[f"errors_{look}"]["ours"]) < 5, rows[f"errors_{look}"]
    assert rows["again"]["ratio"] > 1
    assert "tesseract" in measured["machine"]["engine"]
    assert measured["machine"]["sandbox"].startswith("sandbox ")


def check_web(rows: Rows, measured: Any) -> None:
    for key, row in rows.items():
        assert key == "streams" or min(row["ours"]) > 0, row


def check_tables(rows: Rows, measured: Any) -> None:
    assert [row for row in rows.values() if row["peer"] and row["beside"] != "PyMuPDF's get_text"] == []
    for key in ("cells_plumber", "cells_ruled_plumber", "cells_real_plumber", "order"):
        assert rows[key]["ours"][0] < 10, rows[key]


def check_markdown(rows: Rows, measured: Any) -> None:
    for key, row in rows.items():
        assert "rate" in key or "absent" in key or max(row["ours"]) < 15, row


@only_in_full
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("search", check_search),
        ("queue", check_queue),
        ("daemon", check_daemon),
        ("download", check_download),
        pytest.param("cluster", check_cluster, marks=needs_ray),
        ("crawl", check_crawl),
        pytest.param("ocr", check_ocr, marks=needs_engine),
        ("web", check_web),
        pytest.param("tables", check_tables, marks=needs_engine),
        ("markdown", check_markdown),
    ],
)
def test_the_quick_form_measures_every_published_row(
    name: str, check: Callable[[Rows, Any], None], tmp_path: Path
) -> None:
    results = tmp_path / "results.json"

    done = run(name, "--quick", "--json", str(results))

    assert done.returncode == 0, done.stderr
    measured, published = (json.loads(path.read_text()) for path in (results, ROOT / f"benchmarks/{name}.json"))
    rows = {row["key"]: row for row in measured["rows"]}
    assert list(rows) == [row["key"] for row in published["rows"] if not row["key"].startswith(ABSENT)]
    for row in rows.values():
        assert row["ours"], row
        assert row["what"] in done.stdout
    check(rows, measured)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["queues"],
            "there is no benchmark 'queues': it is one of queue, daemon, download, crawl, ocr, search, web, tables, ",
        ),
        (["queue", "--quick", "--write"], "cannot be published"),
        (["ocr", "--parts", "clean", "dirty"], "ocr has no part 'dirty': there are clean, noisy, real, "),
        (["queue", "--parts", "clean"], "queue has no part 'clean': there are none"),
    ],
)
def test_invalid_arguments_are_refused(words: list[str], sentence: str) -> None:
    done = run(*words)

    assert done.returncode == 2
    assert sentence in done.stderr


def test_new_rows_are_merged_into_the_published_ones() -> None:
    goals = [
        table.at_least(1.9),
        table.at_most_above(0.1, "points"),
        table.at_most(450, "MB"),
        table.Goal(),
        table.at_most_above(-5, "points"),
    ]
    old = [
        table.Row(key, f"what {key}", "a peer", "s", [1.0], [2.0], goal)
        for key, goal in zip("abcde", goals, strict=True)
    ]
    published = table.as_json(old, {"date": "2026-11-18"}, is_quick=False)

    measured = [table.Row("b", "b", "", "s", [3.0], []), table.Row("new", "new", "", "s", [4.0], [])]
    rows = table.among(published, measured, "2026-11-20")

    assert [row.key for row in rows] == ["a", "b", "new", "c", "d", "e"]
    assert [row.goal for row in rows if row.on] == [goals[0], *goals[2:]]
    assert [row.cells()[-1] for row in rows[:3]] == ["NO (2026-11-18)", "", ""]
    written = table.as_json(rows, {"date": "2026-11-20"}, is_quick=False)
    assert [row.on[-2:] for row in table.among(written, [], "2026-11-21")] == ["18", "20", "20", "18", "18", "18"]
    assert [row.on[-2:] for row in table.among(written, [], "2026-11-20")] == ["18", "", "", "18", "18", "18"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
