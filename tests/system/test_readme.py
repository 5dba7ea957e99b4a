"""What a newcomer types first: the commands that the README shows for documents, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.job_handlers.reading import documents

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_commands_for_documents_work_as_they_stand_in_the_readme(tmp_path: Path) -> None:
    block = re.search(r"^## Documents\n\n```sh\n(.*?)```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "reports").mkdir()
    text = f"Each climate risk was reviewed.\n\n{documents.prose(1)}"
    documents.digital(tmp_path / "reports" / "annual.pdf", [text])
    documents.scan(tmp_path / "reports" / "scanned.pdf", [documents.picture(text)])
    (tmp_path / "terms.txt").write_text("climate risk\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "WORKER_DATABASE": str(tmp_path / "pagemill.db"),
    }

    script = f"pagemill init\npagemill run 2>/dev/null &\ntrap 'kill $!' EXIT\n{block[1]}"
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "2 read, 0 failed, 2 pages" in done.stdout
    assert done.stdout.count("[climate] [risk]") >= 2
    counted = re.findall(r"^\d,(annual|scanned)\.pdf,[1-9]\d*$", done.stdout, re.MULTILINE)
    assert sorted(counted) == ["annual", "scanned"]
    assert list((tmp_path / "out").glob("*.pdf"))
