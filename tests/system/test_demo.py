from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_reads_a_drive_folder_despite_faults_and_serves_its_page(
    tmp_path: Path,
) -> None:
    # A port of its own: somebody may be looking at a page of theirs.
    port = free_port()
    environment = {**os.environ, "WORKER_WEB_LISTEN": f"127.0.0.1:{port}", "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        ["sh", "run", "demo", "--page"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert demo.stdout is not None
        lines: list[str] = []
        for line in demo.stdout:
            lines.append(line.rstrip("\n"))
            if f":{port}" in line:
                break

        # Nothing in it has failed: it would have ended there.
        told, _, link = lines[-1].rpartition(" ")
        assert told == "Until Ctrl-C, in a browser:"
        assert link.startswith(f"http://127.0.0.1:{port}/session?link=")
        assert any("killed " in line for line in lines)
        assert any("job.retried" in line and "CRASHED" in line for line in lines)
        assert sum("success" in line and "alice" in line for line in lines) == 3
        assert any(re.match(r" +\d+:\d+  ", line) and "[climate] [risk]" in line for line in lines)
        told = "answered one with 503, reset one half way; 1 went on in the middle of a file"
        assert any(told in line for line in lines)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Accept": "text/html"}, timeout=60) as browser:
            token = re.search(r'name="token" value="(\S+)"', browser.get(link).text)
            assert token is not None
            assert browser.post("/session", data={"token": token[1], "link": "1"}).status_code == 303
            assert "Annual report 2025.pdf" in browser.get("/search?q=climate").text
    finally:
        demo.terminate()
        demo.communicate(timeout=60)
    # It has taken everything away with it.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert list(tmp_path.iterdir()) == []
