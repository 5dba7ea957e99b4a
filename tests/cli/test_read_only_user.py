"""A user who may only read the database can run every command that changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.stored_documents import Shelf

# Root may write everywhere, so drop this capability.
READER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

READ_COMMANDS = [
    "", "status", "ls", "show 1", "why 2", "logs 1", "wait 1", "top --once", "workers", "stats", "failures",
    "documents", "show document:1", "text 1", "search climate", "undo --list", "doctor", "doctor --audit", "db check",
    "config show",
]  # fmt: skip

# Run all commands in one process; each opens the database.
RUN_EACH = """
import json, sys
from click.testing import CliRunner
from worker_service.cli import pagemill
results = {}
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(pagemill, words.split())
    results[words] = (result.exit_code, result.stdout, result.stderr)
print(json.dumps(results))
"""

Results = dict[str, tuple[int, str, str]]
RunReadOnly = Callable[..., Results]


@pytest.fixture
def run_read_only(database: Path) -> Iterator[RunReadOnly]:
    """Return a function that runs commands as a user who can read the database, but not write it or its directory."""

    def run_read_only(*lines: str) -> Results:
        _allow(database, 0o444, 0o555)
        words = [*READER, sys.executable, "-c", RUN_EACH, json.dumps(lines)]
        results: Results = json.loads(
            subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        )
        return results

    yield run_read_only
    _allow(database, 0o644, 0o755)


def _allow(database: Path, of_files: int, of_folder: int) -> None:
    database.parent.chmod(0o755)
    for file in database.parent.glob("pagemill.db*"):
        file.chmod(of_files)
    database.parent.chmod(of_folder)


def _expect_good(results: Results, lines: Sequence[str]) -> None:
    codes = {words: code for words, (code, _, _) in results.items()}
    # No daemon runs, so `status` is critical, and a job waits.
    special = {"status": 2, "why 2": 3, "doctor": 1}
    assert codes == {words: special.get(words, 0) for words in lines}, results
    assert "may not" not in json.dumps(results)


@pytest.mark.parametrize("way", ["at rest", "in use", "cut off"])
def test_a_user_who_may_only_read_can_run_every_command_that_changes_nothing(
    way: str, run: Run, shelf: Shelf, run_read_only: RunReadOnly, database: Path
) -> None:
    shelf.read("Report.pdf", "the climate report")
    run("pause", "ocr_pages")
    run("enqueue", "ocr_pages")
    shelf.store.workers.deregister("w1")
    if way != "in use":
        shelf.store.close()
    if way == "cut off":
        # A killed daemon leaves the -wal and -shm files without a connection.
        leave = "import apsw, os, sys; c = apsw.Connection(sys.argv[1]); c.execute('UPDATE pause SET reason = 1')"
        subprocess.run([sys.executable, "-c", f"{leave}; os._exit(0)", str(database)], check=True)
        assert Path(f"{database}-wal").exists()

    results = run_read_only(*READ_COMMANDS)

    _expect_good(results, READ_COMMANDS)
    assert "Report.pdf" in results["documents"][1]
    assert "1 pending" in results[""][1]


def test_a_user_who_may_only_read_cannot_change_anything(run: Run, run_read_only: RunReadOnly) -> None:
    run("enqueue", "ocr_pages")

    results = run_read_only("enqueue ocr_pages", "cancel 1 --yes", "pause --all")

    assert {code for code, _, _ in results.values()} == {77}
    assert all("pagemill.db may not be written by you: " in said for _, _, said in results.values())


def test_an_idle_connection_sees_later_writes(run: Run, run_read_only: RunReadOnly, database: Path) -> None:
    run("enqueue", "ocr_pages")
    waits = "import sys\nfrom pathlib import Path\nfrom worker_service.store.opening import open_store\n"
    waits += "store = open_store(Path(sys.argv[1]))\nprint(store.overview.counts().by_status, flush=True)\n"
    waits += "sys.stdin.readline()\nprint(store.overview.counts().by_status, flush=True)\n"
    _allow(database, 0o444, 0o555)
    reader = subprocess.Popen(
        [*READER, sys.executable, "-c", waits, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert "1" in reader.stdout.readline()

    _allow(database, 0o644, 0o755)
    writer = subprocess.Popen(["sqlite3", str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write("INSERT INTO worker_job_queue (job_type, platform) VALUES ('x', 'local') RETURNING 'done';\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "done\n"
    _allow(database, 0o444, 0o555)

    assert "2" in reader.communicate("\n", timeout=60)[0]
    writer.communicate(timeout=60)


def test_a_database_with_an_unreadable_log_is_refused_with_the_reason(
    run: Run, run_read_only: RunReadOnly, database: Path
) -> None:
    run("enqueue", "ocr_pages")
    Path(f"{database}-wal").write_bytes(b"")

    assert run_read_only("ls")["ls"][0] == 77
    assert "its last changes are in pagemill.db-wal" in run_read_only("ls")["ls"][2]


@pytest.mark.skipif(not READER, reason="only root can put a database into the hands of a group")
def test_a_user_outside_the_group_is_told_how_to_join(run: Run, database: Path, tmp_path: Path) -> None:
    for path, mode in ((database, 0o660), (tmp_path, 0o2770)):
        os.chown(path, 2, 2)
        path.chmod(mode)

    words = [*READER, sys.executable, "-m", "worker_service.cli", "status"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")

    assert result.returncode == 3
    assert result.stdout == (
        f"UNKNOWN: {database} may not be read by you: join the group bin by `sudo usermod -aG bin root`, then log in "
        "again\n"
    )
