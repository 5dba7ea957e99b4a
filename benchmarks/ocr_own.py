"""The pipeline under measurement: a daemon, and files from `ingest` to `success`, including the searchable PDF.

It has its own database and workspace, and reads each page once unless the second time is measured. Times come from the
rows: from the first file's INSERT to the end of the last job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from benchmarks.bystander import JOB_TYPE
from benchmarks.corpus import Book
from benchmarks.ocr_peers import Reading
from benchmarks.own import Own
from benchmarks.running import Failed, memory_megabytes, wait_until, with_all_below
from job_handlers.reading.reading_settings import Quality
from job_handlers.reading.requests import ReadOptions, download_job
from worker_service.base.clock import from_text
from worker_service.store.opening import open_store

_SAMPLE_SECONDS = 0.1
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_DEADLINE_SECONDS = 3600.0


class Pipeline:
    """A running daemon that knows no page yet."""

    def __init__(self, own: Own, daemon_pid: int) -> None:
        self._store = open_store(own.database)
        self._eyes = apsw.Connection(str(own.database))
        self._eyes.set_busy_timeout(5_000)
        self._pid = daemon_pid

    def close(self) -> None:
        self._eyes.close()
        self._store.close()

    def read(self, books: Sequence[Book], quality: Quality = "fast") -> Reading:
        """Ingest the files and wait until each is a success. A known file may cost no job."""
        before = self._number("SELECT ifnull(max(id), 0) FROM worker_job_queue")
        cpu_begin, begin = _cpu_seconds(self._pid), time.perf_counter()
        wished = [download_job(book.path, ReadOptions(quality=quality), owner="") for book in books]
        enqueued = self._store.intake.enqueue_many(wished)
        seconds = time.perf_counter() - begin
        if not any(one.job_id for one in enqueued):
            return Reading.of(books, self._all_texts(books), seconds, _cpu_seconds(self._pid) - cpu_begin)
        self._wait_until_ended(before)
        cpu_seconds = _cpu_seconds(self._pid) - cpu_begin
        [(first, last)] = self._ask(
            "SELECT min(created_at), max(completed_at) FROM worker_job_queue WHERE id > ?", before
        )
        seconds = (from_text(str(last)) - from_text(str(first))).total_seconds()
        return Reading.of(books, self._all_texts(books), seconds, cpu_seconds)

    def sandbox(self) -> str:
        """Return what confined the children."""
        rows = self._ask("SELECT DISTINCT sandbox FROM worker_job_attempt WHERE sandbox IS NOT NULL")
        return ", ".join(str(row[0]) for row in rows)

    def peak_of_attempts(self) -> float:
        """Peak memory in MB of the largest process of an OCR child, counted by the kernel."""
        peak = self._number(
            "SELECT ifnull(max(a.memory_peak_bytes), 0) FROM worker_job_attempt a"
            " JOIN worker_job_queue q ON q.id = a.job_id WHERE q.job_type = 'ocr_pages'"
        )
        return peak / 1e6

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Watch the memory (PSS, in MB) of each OCR child and its children."""
        seen: list[float] = [0.0]
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(seen, is_over))
        watcher.start()
        try:
            yield seen
        finally:
            is_over.set()
            watcher.join()

    @contextmanager
    def beside_inserts(self) -> Iterator[list[float]]:
        """Watch how many milliseconds each INSERT of another program takes."""
        waits: list[float] = []
        command = [sys.executable, "-m", "benchmarks.bystander", self._eyes.filename]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as somebody:
            yield waits
            said, _ = somebody.communicate()
        waits += json.loads(said)

    def _watch(self, seen: list[float], is_over: threading.Event) -> None:
        eyes = apsw.Connection(self._eyes.filename, flags=apsw.SQLITE_OPEN_READONLY)
        running = (
            "SELECT a.pid FROM worker_job_attempt a JOIN worker_job_queue q ON q.id = a.job_id AND q.fence = a.fence"
            " WHERE q.status = 'running' AND q.job_type = 'ocr_pages' AND a.pid IS NOT NULL"
        )
        while not is_over.wait(_SAMPLE_SECONDS):
            for (pid,) in eyes.execute(running).fetchall():
                # It may end while it is looked at.
                with suppress(OSError):
                    seen.append(memory_megabytes(with_all_below(int(str(pid)))))
        eyes.close()

    def _wait_until_ended(self, before: int) -> None:
        left = (
            "SELECT EXISTS (SELECT 1 FROM worker_job_queue"
            f"               WHERE id > ? AND status IN ('pending', 'running') AND job_type <> '{JOB_TYPE}')"
            " OR NOT EXISTS (SELECT 1 FROM worker_job_queue WHERE id > ?)"
        )
        lost = (
            "SELECT job_type, status, error_code, error_message FROM worker_job_queue"
            " WHERE id > ? AND status IN ('failed', 'cancelled') LIMIT 1"
        )

        def is_over() -> bool:
            for job_type, status, code, message in self._ask(lost, before):
                raise Failed(f"{job_type} {status}: {code} {message}")
            return self._ask(left, before, before) == [(0,)]

        wait_until(is_over, "all documents read", seconds=_DEADLINE_SECONDS, pause_seconds=0.05)

    def _all_texts(self, books: Sequence[Book]) -> list[str]:
        return [text for book in books for text in self._texts(book)]

    def _texts(self, book: Book) -> list[str]:
        rows = self._ask("SELECT id, index_status FROM document WHERE source_key = ?", str(book.path.resolve()))
        if not rows or rows[0][1] != "success":
            raise Failed(f"{book.path.name} was not read: {rows}")
        texts = [page.text or "" for page in self._store.library.page_texts(int(str(rows[0][0])))]
        if len(texts) != book.pages:
            raise Failed(f"{book.path.name}: {len(texts)} pages of {book.pages}")
        return texts

    def _number(self, statement: str) -> int:
        [(number,)] = self._ask(statement)
        return int(str(number))

    def _ask(self, statement: str, *values: int | str) -> list[tuple[object, ...]]:
        return self._eyes.execute(statement, values).fetchall()


@contextmanager
def pipeline(place: Path) -> Iterator[Pipeline]:
    """A daemon that has started and is idle; stopped at the end."""
    own = Own(place)
    try:
        with own.daemon() as daemon:
            running = Pipeline(own, daemon.pid)
            try:
                yield running
            finally:
                running.close()
    finally:
        own.close()


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of the daemon and all its children, including those that have ended."""
    seconds = 0.0
    for one in with_all_below(pid):
        with suppress(OSError):
            # Behind the name, which may hold anything: user and system, its own and of the children it has waited for.
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) * _TICK_SECONDS
    return seconds
