"""Files and rows that an interrupted daemon has left in the workspace."""

from __future__ import annotations

import fcntl
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, context_in
from tests.store.kit import (
    START,
    ByHand,
    MovableClock,
    RefusedByHand,
    jobs_with_ids,
    request_document,
    save,
    start_reading,
    work_as,
)
from worker_service.daemon.chores import KEEP_AGE, delete_removed_files, sweep_kept, sweep_objects
from worker_service.jobs.attempts import Completion
from worker_service.jobs.documents import NewFile, RepublishedFile
from worker_service.store.store import Store
from worker_service.workspace import FORGOTTEN_AT_ONCE


def test_p5_only_files_of_attempts_that_did_not_complete_are_deleted(
    store: Store, make_attempt: MakeAttempt, log: Any, tmp_path: Path
) -> None:
    def publish(name: str) -> Path:
        folder = tmp_path / "objects" / name
        folder.mkdir(parents=True)
        (folder / "page.txt").write_text("text")
        return folder

    completed, released, open_, gone = (make_attempt() for _ in range(4))
    store.leases.complete(completed.lease)
    store.leases.release(released.lease)
    store.leases.complete(gone.lease)
    used = [
        publish(f"{completed.job.id}-1"),
        publish(f"{open_.job.id}-1"),
        publish(f"{gone.job.id}-1"),
        publish("readme"),
    ]
    left = [publish(f"{released.job.id}-1")]
    store.pruning.prune(jobs_with_ids(gone.job.id))

    sweep_objects(context_in(tmp_path, store, log, workspace=tmp_path))

    assert [folder.exists() for folder in left] == [False]
    assert all((folder / "page.txt").exists() for folder in used)


def test_files_of_a_removed_document_are_deleted_unless_another_document_shares_them(
    store: Store, log: Any, tmp_path: Path
) -> None:
    work_as(store)
    request_document(store, "a.pdf"), request_document(store, "b.pdf")
    first, second = sorted(store.leases.claim("w1", 2), key=lambda job: job.document_id or 0)
    folder = tmp_path / "objects" / f"{first.id}-{first.fence}"
    folder.mkdir(parents=True)
    for name in ("own.txt", "shared.txt"):
        (folder / name).write_text("text")
    files = [NewFile(name, f"objects/{folder.name}/{name}", "text") for name in ("own.txt", "shared.txt")]
    store.leases.complete_many([Completion(first.lease, files=files, publishes=True)])
    [shared] = [file for file in store.library.files(1) if file.name == "shared.txt"]
    store.leases.complete_many([Completion(second.lease, files=[RepublishedFile(shared.id)], publishes=True)])

    store.removal.remove_documents([1], actor="ann")
    delete_removed_files(context_in(tmp_path, store, log, workspace=tmp_path))
    assert [file.name for file in folder.iterdir()] == ["shared.txt"]

    store.removal.remove_documents([2], actor="ann")
    delete_removed_files(context_in(tmp_path, store, log, workspace=tmp_path))
    assert not folder.exists()


def test_an_interrupted_removal_is_completed_in_small_steps(
    store: Store, database: Path, log: Any, tmp_path: Path
) -> None:
    by_hand = ByHand(database)
    work_as(store)
    texts = [f"page {number}" for number in range(FORGOTTEN_AT_ONCE + 1)]
    job = start_reading(store, "a.pdf")
    save(store, job.lease, *texts)
    file = tmp_path / f"objects/{job.id}-1/text/all.txt"
    file.parent.mkdir(parents=True)
    file.write_text("text")
    files = [NewFile("a.txt", str(file.relative_to(tmp_path)), "text")]
    store.leases.complete_many([Completion(job.lease, files=files, publishes=True)])
    store.removal.remove_documents([1], actor="ann")
    context = context_in(tmp_path, store, log, workspace=tmp_path)

    waits = [delete_removed_files(context) for _ in range(4)]

    assert waits == [0.1, 0.1, 5.0, 5.0]
    assert by_hand("SELECT * FROM page") == by_hand("SELECT * FROM page_result") == []
    assert by_hand("SELECT * FROM document_gone") == []
    assert list((tmp_path / "objects").iterdir()) == []


def test_rows_of_gone_files_inserted_by_hand_delete_only_published_files(
    store: Store, database: Path, log: Any, tmp_path: Path
) -> None:
    by_hand = ByHand(database)
    published = tmp_path / "objects" / "1-1"
    published.mkdir(parents=True)
    odd = os.fsdecode(b"a\xffb.txt")
    for file in (tmp_path / "settings.toml", published / "page.txt", published / odd):
        file.touch()
    for path in (
        "'settings.toml'",
        "'objects/1-1'",
        "'objects/1-1/page.txt/x'",
        "CAST(x'6f626a656374732f312d312f61ff622e747874' AS TEXT)",
    ):
        by_hand(f"INSERT INTO file_gone (path) VALUES ({path})")
    for path in ("'../x'", "'/etc/x'", "'objects/../../x'", "''", "'objects/' || char(0)"):
        with pytest.raises(RefusedByHand, match="path leads below the workspace"):
            by_hand(f"INSERT INTO file_gone (path) VALUES ({path})")

    request_document(store, "a.pdf")
    by_hand("INSERT INTO document_gone (document_id) VALUES (1), (77)")

    delete_removed_files(context_in(tmp_path, store, log, workspace=tmp_path))

    assert (tmp_path / "settings.toml").exists()
    assert [file.name for file in published.iterdir()] == ["page.txt"]
    assert store.removal.files_to_delete() == []
    assert by_hand("SELECT * FROM document_gone") == []
    assert store.library.document(1).source_key == "a.pdf"


def test_unused_keep_directories_are_deleted_after_a_month_unless_locked(
    store: Store, tmp_path: Path, clock: MovableClock, log: Any
) -> None:
    def keep(name: str, age: timedelta) -> Path:
        folder = tmp_path / "keep" / name
        folder.mkdir(parents=True)
        (folder / "file.part").write_text("half")
        touched = (START - age).timestamp()
        os.utime(folder, (touched, touched))
        return folder

    young = keep("young", KEEP_AGE - timedelta(minutes=1))
    old, cut_off = keep("old", KEEP_AGE * 2), keep(".swept-before", KEEP_AGE * 2)
    held = keep("held", KEEP_AGE * 2)
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    sweep_kept(context_in(tmp_path, store, log, clock, workspace=tmp_path))

    os.close(lock)
    assert sorted(path.name for path in (tmp_path / "keep").iterdir()) == ["held", "young"]
    assert (young / "file.part").read_text() == (held / "file.part").read_text() == "half"
    assert not old.exists()
    assert not cut_off.exists()
    assert log.events == ["kept.swept"]
