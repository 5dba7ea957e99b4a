"""What the README shows first."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_reads_a_folder_of_drive_through_faults_and_a_killed_child() -> None:
    demo = subprocess.run(["sh", "run", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)

    assert demo.returncode == 0, demo.stderr
    lines = demo.stdout.splitlines()
    assert any("killed " in line for line in lines)
    assert any("job.retried" in line and "CRASHED" in line for line in lines)
    assert sum("success" in line and "alice" in line for line in lines) == 3
    assert any(re.match(r"\d+:\d+  ", line) and "[climate] [risk]" in line for line in lines)
    assert "answered one with 503, reset one half way; 1 went on in the middle of a file" in lines[-1]
