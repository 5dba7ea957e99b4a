"""What a daemon that was killed in the wrong moment has left in the workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.daemon.conftest import MakeAttempt
from tests.store.kit import ids
from worker_service.daemon.sweeping import SweepObjects
from worker_service.store.base import Store


def test_p5_files_of_an_attempt_that_did_not_complete_are_removed_and_no_others(
    store: Store, attempt: MakeAttempt, log: Any, tmp_path: Path
) -> None:
    def publish(name: str) -> Path:
        folder = tmp_path / "objects" / name
        folder.mkdir(parents=True)
        (folder / "page.txt").write_text("text")
        return folder

    completed, released, open_, gone = (attempt() for _ in range(4))
    store.complete(completed.lease)
    store.release(released.lease)
    store.complete(gone.lease)
    kept = [
        publish(f"{completed.job.id}-1"),
        publish(f"{open_.job.id}-1"),
        publish(f"{gone.job.id}-1"),
        publish("readme"),
    ]
    left = [publish(f"{released.job.id}-1")]
    store.prune(ids(gone.job.id))

    SweepObjects(store, tmp_path, log=log).run()

    assert [folder.exists() for folder in left] == [False]
    assert all((folder / "page.txt").exists() for folder in kept)
