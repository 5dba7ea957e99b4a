from __future__ import annotations

import random

from tests.full_length import short
from tests.kit.system import System
from tests.system.chaos import KINDS, Storm

SECONDS = short(1.5, full=10.0)
AT_LEAST = short(1, full=3)
SECONDS_MOST = 90.0
"""The limit on a busy machine; it ends when each kind has landed."""


def test_whatever_is_killed_each_acknowledged_job_takes_effect_once(system: System) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    storm = Storm(system, seed)

    storm.run(SECONDS, at_least=AT_LEAST, most_seconds=SECONDS_MOST)

    print(storm.summary())
    assert storm.faults == []
    assert [kind for kind in KINDS if storm.landed[kind] < AT_LEAST] == []
