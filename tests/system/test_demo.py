"""What the README shows first."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_reads_a_folder_of_drive_through_faults_and_a_killed_child() -> None:
    demo = subprocess.run(["sh", "run", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)

    assert demo.returncode == 0, demo.stderr
    lines = demo.stdout.splitlines()
    assert any("killed " in line for line in lines)
    assert any("job.retried" in line and "CRASHED" in line for line in lines)
    assert sum("success" in line and "alice" in line for line in lines) == 3
    assert any(re.match(r"\d+:\d+  ", line) and "[climate] [risk]" in line for line in lines)
    assert any("answered one with 503, reset one half way; 1 went on in the middle of a file" in line for line in lines)
    assert lines[-1].endswith("./run demo --page")


def test_the_demo_keeps_its_page_open_until_somebody_has_seen_enough() -> None:
    # A port of its own: somebody may be looking at a page of theirs.
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    environment = {**os.environ, "WORKER_WEB_LISTEN": address}
    demo = subprocess.Popen(
        ["sh", "run", "demo", "--page"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert demo.stdout is not None
        last = next(line for line in demo.stdout if address in line)

        assert last == f"Until Ctrl-C, in a browser: http://{address}\n"
        with urllib.request.urlopen(f"http://{address}/documents?q=climate", timeout=20) as answer:
            found = answer.read().decode()
        assert "Annual report 2025.pdf" in found
    finally:
        demo.terminate()
        demo.communicate(timeout=60)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
