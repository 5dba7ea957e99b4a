"""Ray Data that reads: a row is a range of pages, and two of them are mapped at once.

`python -m benchmarks.peers.ray_reading PLACE`: see `driver`. Ray begins with it, and ends with it.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import ray
import ray.data

from benchmarks.peers import WORKERS, driver
from benchmarks.peers.reading import read_range


def _read(row: dict[str, Any]) -> dict[str, Any]:
    pages = read_range(row["path"], [int(one) for one in row["numbers"]])
    return {"at": row["at"], "pages": json.dumps(pages)}


def read_all(ranges: list[driver.Range]) -> list[driver.Pages]:
    items = [{"at": at, "path": path, "numbers": numbers} for at, (path, numbers) in enumerate(ranges)]
    rows = ray.data.from_items(items, override_num_blocks=len(items)).map(_read).take_all()
    return [json.loads(row["pages"]) for row in sorted(rows, key=lambda row: int(row["at"]))]


if __name__ == "__main__":
    ray.init(
        num_cpus=int(WORKERS),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=sys.argv[1],
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    driver.serve(read_all)
    ray.shutdown()
