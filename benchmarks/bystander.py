"""Another program that inserts a row a hundred times a second: `python -m benchmarks.bystander DATABASE`.

It exits at the end of its input and prints, as JSON, how many milliseconds each INSERT took. The jobs start in the far
future.
"""

from __future__ import annotations

import json
import select
import sys
import time

import apsw

JOB_TYPE = "later"
_PAUSE_SECONDS = 0.01
_PATIENCE_MILLISECONDS = 30_000
_INSERT = "INSERT INTO worker_job_queue (job_type, platform, run_at) VALUES (?, 'local', '2999-01-01')"


def main() -> None:
    database = apsw.Connection(sys.argv[1])
    database.set_busy_timeout(_PATIENCE_MILLISECONDS)
    waits = []
    while not select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
        begin = time.perf_counter()
        database.execute(_INSERT, (JOB_TYPE,))
        waits.append(1000 * (time.perf_counter() - begin))
    database.close()
    json.dump(waits, sys.stdout)


if __name__ == "__main__":
    main()
