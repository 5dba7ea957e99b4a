from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.system import System, wait_until
from worker_service.jobs.job import Status

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError:
            return filler


def test_an_outcome_is_written_once_a_full_disk_has_room(small_disk: Path, tmp_path: Path) -> None:
    system = System(small_disk, logs=tmp_path)
    try:
        job = system.enqueue("sleep", seconds=2)
        daemon = system.start()
        system.pids_of(job)
        system.store.integrity.truncate_wal(even_if_small=True)

        filler = fill(small_disk)
        wait_until(lambda: daemon.events("store.unavailable") or system.status(job) is Status.COMPLETED, "an end")
        assert system.status(job) is Status.RUNNING
        filler.unlink()

        system.wait_for(job, Status.COMPLETED)
        assert daemon.process.poll() is None
        system.assert_sound()
    finally:
        system.close()
