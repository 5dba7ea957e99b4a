"""The time of commands: whole processes, from start to end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# What a command does, without the command: an interpreter, apsw and one statement.
_BARE = "import apsw, sys; apsw.Connection(sys.argv[1]).execute(sys.argv[2]).fetchall()"
BARE = {
    "ls": "SELECT * FROM worker_job_queue ORDER BY id DESC LIMIT 50",
    "why": "SELECT * FROM worker_job_queue WHERE id = 1",
    "enqueue": "INSERT INTO worker_job_queue (job_type, platform) VALUES ('ready', 'local')",
}
_NOT_YET = 3


def pagemill(database: Path, *arguments: str) -> float:
    """Milliseconds."""
    script = Path(sys.executable).with_name("pagemill")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "worker_service.cli"]
    return _run([*command, *arguments], {**os.environ, "WORKER_DATABASE": str(database)}, good=(0, _NOT_YET))


def bare(database: Path, name: str) -> float:
    """Milliseconds."""
    return _run([sys.executable, "-c", _BARE, str(database), BARE[name]], {**os.environ}, good=(0,))


def _run(command: Sequence[str], environment: dict[str, str], *, good: Sequence[int]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    took = time.perf_counter() - begin
    if done.returncode not in good:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return took * 1000
