"""File systems on which a database is refused, and settings with which it is opened."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.store.kit import AddWorker, MovableClock, claim
from worker_service.base.errors import StoreUnusable
from worker_service.jobs.attempts import Checkpoint, Completion
from worker_service.jobs.job import NewJob
from worker_service.jobs.retries import RetryRule
from worker_service.jobs.selector import Selector
from worker_service.store import opening
from worker_service.store.opening import file_system_of, initialise, open_store

MOUNTS = """\
21 1 253:0 / / rw,relatime - ext4 /dev/vda rw
30 21 0:40 / /srv rw,relatime shared:1 - nfs4 box:/srv rw
31 30 253:1 / /srv/local\\040disk rw - xfs /dev/vdb rw
32 21 0:41 / /mnt rw - cifs //box/mnt rw
33 32 253:2 / /mnt rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/deep/down", "nfs4"),
        ("/srv/local disk/x", "xfs"),
        ("/srvx", "ext4"),
        ("/mnt/x", "ext4"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_and_last_mount(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


def test_no_database_is_created_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the file system of the folder as a network one, because none can be mounted here."""
    kind = file_system_of(tmp_path.resolve(), Path("/proc/self/mountinfo").read_text())
    path = tmp_path / "queue.db"
    monkeypatch.setattr(opening, "NETWORK_FILE_SYSTEMS", (kind,))

    with pytest.raises(StoreUnusable, match="network file system"):
        initialise(path)
    with pytest.raises(StoreUnusable, match="WORKER_DATABASE"):
        open_store(path)

    assert not path.exists()


def test_each_insert_applies_the_retries_of_the_settings(path: Path, clock: MovableClock, worker: AddWorker) -> None:
    worker(types=["ingest"])
    rules = {"ingest": RetryRule(max_retries=9), "ocr_pages": RetryRule(max_retries=7)}

    with closing(open_store(path, clock=clock, retries=rules)) as store:
        store.intake.enqueue(NewJob("ingest"))
        ingest = claim(store)
        store.attempts.checkpoint(
            ingest.lease, Checkpoint("1", [NewJob("ocr_pages"), NewJob("ocr_pages", max_retries=3)])
        )
        store.leases.complete_many([Completion(ingest.lease, follow_ups=[NewJob("ocr_pages"), NewJob("assemble")])])
        jobs = sorted(store.job_queries.list(Selector()), key=lambda job: job.id)
        many = [
            store.job_queries.get(enqueued.job_id) for enqueued in store.intake.enqueue_many([NewJob("ocr_pages")] * 51)
        ]

    assert [job.max_retries for job in jobs] == [9, 7, 3, 7, 3]
    assert {job.max_retries for job in many} == {7}
