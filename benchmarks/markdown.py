"""Markdown: headings, levels, lists, tables, order, running lines and cost, beside pymupdf4llm and markitdown.

Generated reports are drawn from seeds on which nothing was tuned. A directory with `tagged/` and `icdar2013/`, given on
the command line, adds tagged PDFs without their tags, the same with them, and the tables of ICDAR 2013. The peers run
in an environment of their own, as by default; OCR takes no part. The quick form measures pagemill alone.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import markdown_truth
from benchmarks.markdown_accuracy import score
from benchmarks.markdown_truth import Truth
from benchmarks.table import Fact, Row, at_least, at_most_above
from job_handlers.reading import pdf
from job_handlers.reading.ingest import examine_page
from worker_service.jobs.documents import PageResult
from worker_service.jobs.markdown import document_markdown
from worker_service.jobs.page_structure import structure_of

_SEEDS = ("measured a", "measured b", "measured c")
_REPORTS = 20
_HERE = Path(__file__).resolve().parent
_PEERS_PYTHON = _HERE.parent / ".venv-markdown/bin/python"
_PEERS = ("pymupdf4llm", "markitdown")
_MEASURES = {
    "headings": "headings not found, or found in addition (1 - F1)",
    "levels": "pairs of headings whose levels compare wrongly",
    "items": "items of lists (1 - F1)",
    "cells": "cells of tables (1 - F1)",
    "order": "blocks that do not follow the right one",
    "absent": "running heads, feet and page numbers left in",
}
_AHEAD = at_most_above(0, "points")

Markdown = Mapping[Path, str]


def measure(is_quick: bool, *, corpus: Path | None = None) -> Iterator[Row | Fact]:
    if not is_quick and not _PEERS_PYTHON.exists():
        raise SystemExit("benchmarks: the peers are not there: `./run bench markdown` installs them")
    with TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp") as name:
        place = Path(name)
        yield from _rows(
            "reports", "generated reports",
            [markdown_truth.reports(place / seed, seed, 2 if is_quick else _REPORTS) for seed in _SEEDS],
            place, are_peers_asked=not is_quick,
        )  # fmt: skip
        if corpus is not None:
            bare = markdown_truth.tagged(corpus, place / "tagged")
            with_tags = markdown_truth.tagged(corpus, place / "tagged")
            for one in with_tags:
                one.path = corpus / "tagged" / one.path.name
            tables = markdown_truth.competition_tables(corpus)
            for key, what, truths in (
                ("bare", "tagged PDFs without their tags", bare),
                ("tagged", "tagged PDFs", with_tags),
                ("icdar", "ICDAR 2013", tables),
            ):
                yield from _rows(key, what, [truths], place, are_peers_asked=not is_quick)
    yield Fact("pymupdf", pdf.LIBRARY)
    if not is_quick:
        for peer in _PEERS:
            yield Fact(peer, f"{peer} {_version_of(peer)}")


def _rows(key: str, what: str, runs: Sequence[Sequence[Truth]], place: Path, *, are_peers_asked: bool) -> Iterator[Row]:
    own = [_own_markdown(truths) for truths in runs]
    ours = [_shares_wrong(made, truths) for (made, _), truths in zip(own, runs, strict=True)]
    documents = sum(map(len, runs))
    pages = [sum(one.pages for one in truths) for truths in runs]
    for peer in _PEERS:
        theirs = [_peer_markdown(peer, truths, place) for truths in runs] if are_peers_asked else []
        wrong = [_shares_wrong(made, truths) for (made, _), truths in zip(theirs, runs, strict=False)]
        for name, about in _MEASURES.items():
            if key == "icdar" and name != "cells":
                # Its truth has tables alone.
                continue
            if all(name in one for one in ours):
                yield Row(
                    f"{key}_{name}_{peer}", f"{what} ({documents}): {about}", peer, "%", [one[name] for one in ours],
                    [one.get(name, 100.0) for one in wrong], _AHEAD,
                )  # fmt: skip
        rates = [count / seconds for count, (_, seconds) in zip(pages, own, strict=True)]
        yield Row(
            f"{key}_rate_{peer}", f"{what}: from the file to Markdown, CPU time", peer, "pages/s", rates,
            [count / seconds for count, (_, seconds) in zip(pages, theirs, strict=False)], at_least(1.0),
        )  # fmt: skip


def _shares_wrong(made: Markdown, truths: Sequence[Truth]) -> dict[str, float]:
    points: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for truth in truths:
        for name, (own, whole) in score(made[truth.path], truth).items():
            points[name] += own  # type: ignore[assignment]
            most[name] += whole  # type: ignore[assignment]
    return {name: 100 * (1 - points[name] / most[name]) for name in _MEASURES if most[name]}


def _own_markdown(truths: Sequence[Truth]) -> tuple[Markdown, float]:
    begin = time.process_time()
    made = {truth.path: _markdown_of(truth.path) for truth in truths}
    return made, time.process_time() - begin


def _markdown_of(path: Path) -> str:
    results: list[PageResult] = []
    with pdf.PagedFile(path) as book:
        for number in range(1, book.pages + 1):
            read = examine_page(book, number)
            results.append(PageResult(number, "", read.text, read.method, None, read.layout))
    return "".join(document_markdown(structure_of(iter(results))))


def _peer_markdown(peer: str, truths: Sequence[Truth], place: Path) -> tuple[Markdown, float]:
    result = place / f"{peer}.json"
    # Without -P, our own modules beside the script would hide Python's.
    command = [_PEERS_PYTHON, "-P", _HERE / "markdown_peers.py", peer, result, *(one.path for one in truths)]
    subprocess.run([str(one) for one in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(result.read_text())["files"]
    made = {Path(path): text for path, (text, _) in found.items()}
    return made, sum(seconds for _, seconds in found.values())


def _version_of(peer: str) -> str:
    code = f"from importlib.metadata import version; print(version({peer!r}))"
    done = subprocess.run([_PEERS_PYTHON, "-P", "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()
