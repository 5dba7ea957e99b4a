"""A daemon whose wall clock is wrong by the seconds in the file that PAGEMILL_CLOCK names.

The file is read each time, so that a test can step the clock. Monotonic time and the clock of triggers stay right.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path

from worker_service.base import clock


def main() -> int:
    offset_file = Path(os.environ["PAGEMILL_CLOCK"])
    true_clock = clock.wall_clock

    def wrong_clock() -> datetime:
        return true_clock() + timedelta(seconds=float(offset_file.read_text() or "0"))

    # Before anybody has taken it from there.
    clock.wall_clock = wrong_clock

    from worker_service.daemon.start import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
