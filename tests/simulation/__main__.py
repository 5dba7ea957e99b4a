"""Play random histories for some minutes, until a promise is broken: `python -m tests.simulation --minutes 10`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from tests.simulation.store_pool import StorePool
from tests.simulation.world import Plan, plan_of, play


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long; 1 unless given")
    parser.add_argument("--seed", type=int, default=None, help="play this one history only")
    given = parser.parse_args(words)
    with StorePool() as stores:
        if given.seed is not None:
            return _report(plan_of(given.seed), play(plan_of(given.seed), stores))
        first = seed = random.randrange(1 << 32)
        until = time.monotonic() + given.minutes * 60
        while time.monotonic() < until:
            if faults := play(plan_of(seed), stores):
                return _report(plan_of(seed), faults)
            seed += 1
    print(f"{seed - first} histories, from seed {first} on: no promise is broken")
    return 0


def _report(plan: Plan, faults: list[str]) -> int:
    for fault in faults:
        print(f"FAULT in the history of seed {plan.seed}: {fault}")
    if not faults:
        print(f"the history of seed {plan.seed}: no promise is broken")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
