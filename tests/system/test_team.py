from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.full_length import short
from tests.job_handlers.reading.documents import digital, prose, scan
from tests.kit.system import wait_until
from tests.system import faulty_readers as readers
from tests.system.test_reading import PATIENCE_SECONDS, ReadingSystem, small_page_image
from worker_service.jobs.batches import BatchState
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector

FILES = short(9, full=200)


@pytest.fixture
def own_reader(tmp_path: Path) -> Iterator[ReadingSystem]:
    made = ReadingSystem(tmp_path)
    yield made
    made.system.assert_sound()
    made.system.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadingSystem]:
    """One daemon for tests that kill nothing."""
    made = ReadingSystem(tmp_path_factory.mktemp("reader"))
    made.start()
    yield made
    made.system.assert_sound()
    made.system.close()


def newest_batch(reader: ReadingSystem) -> int:
    return int(reader.system.sqlite3("SELECT max(batch_id) FROM worker_job_queue").stdout)


def tables(reader: ReadingSystem, number: int, mark: str = "t") -> Path:
    folder = reader.papers / mark
    folder.mkdir()
    for n in range(number):
        if n % 8 == 0:
            digital(folder / f"{mark}{n:03}.pdf", [f"{mark} {n} {prose(n, 30)}"])
        else:
            (folder / f"{mark}{n:03}.csv").write_text(f"what,how much\n{mark}{n},{n}\n")
    return folder


def read(reader: ReadingSystem, batch_id: int) -> int:
    return reader.system.store.batches.facts(batch_id).documents.get(IndexStatus.SUCCESS, 0)


def wait_for_read(reader: ReadingSystem, batch_id: int, number: int) -> None:
    wait_until(lambda: read(reader, batch_id) >= number, f"{number} files are read", seconds=PATIENCE_SECONDS)


def wait_for_state(reader: ReadingSystem, batch_id: int, state: BatchState) -> None:
    batches = reader.system.store.batches
    wait_until(lambda: batches.get(batch_id).state is state, f"it is {state}", seconds=2 * PATIENCE_SECONDS)


def wait_for_rest(reader: ReadingSystem) -> None:
    running = Selector(statuses=(Status.RUNNING,))
    wait_until(lambda: not reader.system.store.job_queries.count(running), "nothing runs", seconds=PATIENCE_SECONDS)


def jobs_of(reader: ReadingSystem, batch_id: int) -> list[Job]:
    return [*reader.system.store.job_queries.list(Selector(batch_id=batch_id), most=10_000)]


def times(reader: ReadingSystem, batch_id: int) -> dict[tuple[str, str, str | None], int]:
    """Count the attempts by (job type, file, outcome)."""
    output = reader.system.sqlite3(
        "SELECT json_group_array(json_array(q.job_type, ifnull(d.source_key, q.source_key), a.outcome)) "
        "FROM worker_job_queue q JOIN worker_job_attempt a ON a.job_id = q.id "
        f"LEFT JOIN document d ON d.id = q.document_id WHERE q.batch_id = {batch_id}"
    )
    found: dict[tuple[str, str, str | None], int] = {}
    for step in map(tuple, json.loads(output.stdout)):
        found[step] = found.get(step, 0) + 1
    return found


def assert_each_was_read_once(reader: ReadingSystem, batch_id: int, files: int, *cut_short: str) -> None:
    done = times(reader, batch_id)
    assert {outcome for *_, outcome in done} <= {"completed", *cut_short}
    completed = {step: number for step, number in done.items() if step[2] == "completed"}
    assert set(completed.values()) == {1}
    assert len({key for job_type, key, _ in completed if job_type == "download"}) == files
    assert len({key for job_type, key, _ in completed if job_type == "ingest"}) == files
    output = reader.system.sqlite3("SELECT count(*), count(DISTINCT digest) FROM page_result").stdout.strip()
    assert output == f"{files}|{files}"


def test_a_resumed_batch_reads_only_the_remaining_files(
    own_reader: ReadingSystem,
) -> None:
    folder = tables(own_reader, FILES)
    own_reader.start()
    batch_id = own_reader.run_json("add", folder, "--owner", "ann", "--name", "reports")["batch"]["id"]
    wait_for_read(own_reader, batch_id, FILES // 3)

    own_reader.run("batch", "stop", batch_id)
    wait_for_rest(own_reader)
    done = {job.id: job for job in jobs_of(own_reader, batch_id) if job.status is Status.COMPLETED}
    there = read(own_reader, batch_id)
    other = own_reader.run("add", own_reader.papers / "t" / "t001.csv", "--owner", "bob", "--wait", "--timeout", "60s")
    assert "done · 1 file" in other.stdout
    assert (read(own_reader, batch_id), there < FILES) == (there, True)

    own_reader.run("batch", "resume", batch_id)
    waited = own_reader.run("wait", f"batch:{batch_id}", "--progress", "--timeout", "120s")

    assert waited.stdout == f"batch {batch_id} (reports): done · {FILES} files · {FILES} pages\n"
    assert re.match(rf"\d+ of {FILES} files · ", waited.stderr)
    assert {job.id: job for job in jobs_of(own_reader, batch_id) if job.id in done} == done
    # Bob's copy is the same pages.
    assert_each_was_read_once(own_reader, batch_id, FILES, "released")


def test_a_batch_retry_reads_only_the_repaired_file(
    reader: ReadingSystem,
) -> None:
    folder = tables(reader, 4, "mended")
    broken = folder / "broken.pdf"
    broken.write_text("<!DOCTYPE html><html>404</html>")
    reader.run("add", folder, "--wait", "--timeout", "60s", fails=1)
    batch_id = newest_batch(reader)
    assert "NOT_WHAT_IT_SAYS" in reader.run("documents", "--batch", batch_id, "--csv").stdout
    before = times(reader, batch_id)

    digital(broken, [prose(99, 30)])
    retried = reader.run("batch", "retry", batch_id)
    waited = reader.run("wait", f"batch:{batch_id}", "--timeout", "60s")

    assert retried.stdout == f"batch {batch_id} ({folder.name}) retries 1 job\n"
    assert waited.stdout == f"batch {batch_id} ({folder.name}): done · 5 files · 5 pages\n"
    now = times(reader, batch_id)
    assert {step: number for step, number in now.items() if "broken" not in step[1]} == {
        step: number for step, number in before.items() if "broken" not in step[1]
    }
    assert reader.system.store.batches.get(batch_id).round == 2


def test_a_batch_of_a_known_folder_reads_only_new_files(
    reader: ReadingSystem,
) -> None:
    folder = tables(reader, 3, "whole")
    reader.run("add", folder, "--owner", "ann", "--wait", "--timeout", "60s")
    pages = int(reader.system.sqlite3("SELECT count(*) FROM page_result").stdout)
    (folder / "new.csv").write_text("a,b\nnew,1\n")

    batch_id = reader.run_json("add", folder, "--depth", 9, "--owner", "ann", "--name", "whole")["batch"]["id"]
    waited = reader.run("wait", f"batch:{batch_id}", "--timeout", "60s")

    assert waited.stdout == f"batch {batch_id} (whole): done · 4 files · 4 pages\n"
    assert int(reader.system.sqlite3("SELECT count(*) FROM page_result").stdout) == pages + 1
    ingested = [job for job in jobs_of(reader, batch_id) if job.job_type == "ingest"]
    assert [job.name for job in ingested] == ["new.csv"]


def test_a_failure_action_runs_for_a_crawled_file_without_a_document(
    reader: ReadingSystem,
) -> None:
    folder = reader.papers / "broken"
    folder.mkdir()
    (folder / "broken.pdf").write_text("<!DOCTYPE html><html>404</html>")

    batch_id = reader.run_json("add", folder, "--depth", 0, "--on-failure", "noop")["batch"]["id"]
    reader.run("wait", f"batch:{batch_id}", "--timeout", "60s", fails=1)

    jobs = jobs_of(reader, batch_id)
    failed, after = (job for job_type in ("download", "noop") for job in jobs if job.job_type == job_type)
    assert (failed.error_code, after.parent_id, after.status) == ("NOT_WHAT_IT_SAYS", failed.id, Status.COMPLETED)


def test_a_priority_applies_to_all_remaining_jobs_of_a_document(reader: ReadingSystem) -> None:
    slow = scan(reader.papers / "slow.pdf", [small_page_image("One page of water")], dpi=150)
    batch_id = reader.run_json("add", slow, "--then", "noop", "--priority", 6)["batch"]["id"]
    recognising = Selector(job_types=("ocr_pages",), statuses=(Status.RUNNING,))
    store = reader.system.store
    wait_until(lambda: reader.recognitions(), "a page is being read", seconds=PATIENCE_SECONDS)
    assert {job.priority for job in jobs_of(reader, batch_id)} == {6}

    document = reader.document(slow)
    assert document is not None
    reader.run("priority", 1, f"document:{document.id}", "--yes")
    [running] = store.job_queries.list(recognising)
    readers.go_on(reader.system.workspace)
    wait_for_state(reader, batch_id, BatchState.DONE)

    by_type: dict[str, Any] = {job.job_type: job.priority for job in jobs_of(reader, batch_id)}
    assert running.priority == 1
    assert by_type == {"download": 6, "ingest": 6, "ocr_pages": 1, "assemble": 1, "noop": 1}
