"""Run one benchmark: `python -m benchmarks queue`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import headline, table
from benchmarks.table import Fact

# Imported on demand, because processes that a benchmark starts import this module again.
BENCHMARKS = ("queue", "daemon", "download", "crawl", "ocr", "search", "web", "tables", "markdown", "cluster")
HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure; print a table.")
    parser.add_argument("name", nargs="?", default="queue", help=f"what to measure: {', '.join(BENCHMARKS)}")
    parser.add_argument("corpus", nargs="?", type=Path, help="of search and markdown: a directory with test data")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast it is")
    parser.add_argument(
        "--parts", nargs="+", default=[], metavar="PART", help="measure only these parts, of ocr or cluster"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    parser.add_argument("--write", action="store_true", help="publish the results in benchmarks/NAME.md and NAME.json")
    chosen = parser.parse_args(arguments)
    if chosen.name not in BENCHMARKS:
        return _refuse(f"there is no benchmark {chosen.name!r}: it is one of {', '.join(BENCHMARKS)}")
    if chosen.quick and chosen.write:
        return _refuse("quick results cannot be published: leave out --quick or --write")

    benchmark = import_module(f"benchmarks.{chosen.name}")
    parts = getattr(benchmark, "PARTS", ())
    if unknown := sorted(set(chosen.parts).difference(parts)):
        return _refuse(f"{chosen.name} has no part {unknown[0]!r}: there are {', '.join(parts) or 'none'}")

    rows, facts = [], {}
    more = {"corpus": chosen.corpus} if chosen.corpus else {}
    for found in benchmark.measure(chosen.quick, *([chosen.parts] if chosen.parts else []), **more):
        if isinstance(found, Fact):
            facts[found.name] = found.text
            continue
        print(found.as_line(), file=sys.stderr, flush=True)
        rows.append(found)

    machine = table.machine(import_module("benchmarks.queue").disk()) | facts
    print(table.as_text(rows))
    if chosen.parts and chosen.write:
        rows = table.among((HERE / f"{chosen.name}.json").read_text(), rows, machine["date"])
    results = table.as_json(rows, machine, is_quick=chosen.quick)
    if chosen.json:
        chosen.json.write_text(results)
    if chosen.write:
        (HERE / f"{chosen.name}.json").write_text(results)
        table.put_into(HERE / f"{chosen.name}.md", chosen.name, table.as_markdown(rows, machine))
        headline.write_headlines(HERE)
    return 0


def _refuse(sentence: str) -> int:
    print(f"benchmarks: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
