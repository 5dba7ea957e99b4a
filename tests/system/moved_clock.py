"""A daemon whose wall clock is moved: `python -m tests.system.moved_clock`, in the place of `worker_service`.

The clock goes wrong by as many seconds as stand in the file that PAGEMILL_CLOCK names; it is read at each look at the
clock, so that a test can step it while the daemon runs. Monotonic time is the kernel's own. The database's own clock,
which triggers write into rows that people changed, stays right.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path

from worker_service.base import clock


def main() -> int:
    said = Path(os.environ["PAGEMILL_CLOCK"])
    right = clock.wall_clock

    def wrong() -> datetime:
        return right() + timedelta(seconds=float(said.read_text() or "0"))

    # Before anybody has taken it from there.
    clock.wall_clock = wrong

    from worker_service.daemon.start import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
