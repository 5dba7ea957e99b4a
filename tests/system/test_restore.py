from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.system import System, is_running, wait_until
from worker_service.jobs.job import Status


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[System]:
    (tmp_path / "elsewhere").mkdir()
    made = System(tmp_path / "elsewhere")
    made.store.close()
    made.database.unlink()
    yield made
    made.close()


def test_a_daemon_continues_elsewhere_from_a_backup_and_the_workspace(
    system: System, elsewhere: System, tmp_path: Path
) -> None:
    backup = tmp_path / "copy.db"
    done = [system.enqueue("chaos") for _ in range(3)]
    running = system.enqueue("sleep")
    daemon = system.start()
    # Each has a follow-up job, which must not be running in the backup.
    system.wait_for_all(Status.COMPLETED, 2 * len(done))
    pids = system.pids_of(running)

    assert system.run("db", "backup", str(backup)).returncode == 0
    lost = system.enqueue("chaos")
    system.wait_for(lost, Status.COMPLETED)
    fork_server = daemon.fork_server_pids()
    daemon.signal(signal.SIGKILL)
    daemon.wait_for_exit()
    # Which tidies up behind its children.
    wait_until(lambda: not any(map(is_running, fork_server)), "the fork server has ended")
    shutil.copytree(system.workspace, elsewhere.workspace, symlinks=True)
    restored = elsewhere.run("db", "restore", str(backup), "--yes", "--json")

    assert restored.returncode == 0, restored.stderr
    answer = json.loads(restored.stdout)
    assert (answer["restored"]["requeued"], answer["missing"]) == (1, [])
    elsewhere.start()
    assert elsewhere.pids_of(running, 2) != pids
    assert elsewhere.job(running).fence > system.job(running).fence + 1
    new = elsewhere.enqueue("chaos")
    assert new > lost + 1, "no number is given twice"
    elsewhere.wait_for(new, Status.COMPLETED)
    for job in done:
        assert (elsewhere.workspace / "objects" / f"{job}-{elsewhere.job(job).fence}" / "page.txt").exists()
    elsewhere.assert_sound()


def test_a_restore_reports_missing_files(system: System, elsewhere: System, tmp_path: Path) -> None:
    job = system.enqueue("chaos")
    system.start()
    system.wait_for(job, Status.COMPLETED)
    assert system.run("db", "backup", str(tmp_path / "copy.db")).returncode == 0

    result = elsewhere.run("db", "restore", str(tmp_path / "copy.db"), "--yes")

    assert result.returncode == 1
    assert f"1 file that it names is missing or changed in {elsewhere.workspace}" in result.stderr
    assert f"objects/{job}-1/page.txt" in result.stderr


def test_a_restore_refuses_the_workspace_of_another_database(system: System, elsewhere: System, tmp_path: Path) -> None:
    assert system.run("db", "backup", str(tmp_path / "copy.db")).returncode == 0
    elsewhere.workspace.mkdir()
    (elsewhere.workspace / ".database").write_text("2020-01-01 00:00:00.000\n")

    refused = elsewhere.run("db", "restore", str(tmp_path / "copy.db"), "--yes")

    assert refused.returncode == 78
    assert "belongs to another database" in refused.stderr
    assert not elsewhere.database.exists()


def test_a_restore_needs_yes_and_a_dry_run_changes_nothing(system: System, tmp_path: Path) -> None:
    system.enqueue("noop")
    assert system.run("db", "backup", str(tmp_path / "copy.db")).returncode == 0
    there = system.database.stat().st_ino

    dry, unasked = (system.run("db", "restore", str(tmp_path / "copy.db"), *more) for more in (["--dry-run"], []))

    assert (dry.returncode, unasked.returncode) == (0, 1)
    assert "1 job, 0 running" in dry.stdout
    assert "--yes" in unasked.stderr
    assert system.database.stat().st_ino == there
