"""Looking after the database: checks, backup, checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from worker_service.clock import as_text
from worker_service.errors import Refused, StoreDamaged
from worker_service.jobs.model import Check
from worker_service.store import history
from worker_service.store.holding import lasting_holder_of
from worker_service.store.sqlite_connection import SQLITE_VERSION, connect_to_read, create, spoken_errors
from worker_service.store.sqlite_steering import Steering

_WAL_BYTES_WARN = 64 * 1024 * 1024
_HELD_SECONDS = 1.0
"""Ours hold the write lock for milliseconds."""
_FREE_BYTES_WARN = 256 * 1024 * 1024
_WITHOUT_WAL_RESET_BUG = ((3, 51, 3), (3, 50, 7), (3, 44, 6))


class Upkeep(Steering):
    def unknown_types(self) -> Sequence[str]:
        return [job_type for (job_type,) in self._read("unknown_types", stale_before=self._stale_before())]

    def fail_unknown(self, job_type: str, *, since: datetime, most: int = 1000) -> Sequence[int]:
        values = {"now": self._now(), "since": as_text(since), "stale_before": self._stale_before(), "most": most}
        with self._transaction():
            failed = [job_id for (job_id,) in self._write("fail_unknown", job_type=job_type, **values)]
            self._settle()
        return failed

    def check(self) -> Sequence[Check]:
        return list(self._checks())

    def _checks(self) -> Iterator[Check]:
        faults = self._faults()
        yield Check(
            "integrity", not faults, faults or "every page is sound", "stop the daemon and restore the newest backup"
        )
        if not faults:
            broken = "; ".join(self.audit())
            yield Check("promises", not broken, broken or "no row breaks a promise", "report it with this output")
        if holder := lasting_holder_of(self._path, seconds=_HELD_SECONDS):
            end = f"end its transaction (COMMIT or ROLLBACK where it was begun), or stop it: kill {holder.pid}"
            yield Check("write lock", False, f"{holder} keeps it, so nobody else can write", end)
        else:
            yield Check("write lock", True, "nobody keeps it")
        yield Check("library", has_no_wal_reset_bug(SQLITE_VERSION), f"pagemill uses SQLite {SQLITE_VERSION}")
        yield from _check_of_program()
        wal = Path(f"{self._path}-wal")
        wal_bytes = wal.stat().st_size if wal.exists() else 0
        yield Check(
            "write-ahead log",
            wal_bytes < _WAL_BYTES_WARN,
            f"{wal_bytes / 1e6:.1f} MB",
            "a reader has been open for long: close forgotten sqlite3 sessions",
        )
        free = shutil.disk_usage(self._path.parent).free
        yield Check(
            "disk",
            free > _FREE_BYTES_WARN,
            f"{free / 1e9:.1f} GB free",
            "`pagemill stats` tells who keeps how much: pagemill documents rm, and pagemill prune",
        )
        mode = self._path.stat().st_mode & 0o777
        yield Check("permissions", not mode & 0o002, f"mode {mode:04o}", f"chmod o-w {self._path}")

    def _faults(self) -> str:
        try:
            rows = self._read_sql("PRAGMA integrity_check(5)", [])
        except StoreDamaged as error:
            return str(error)
        return "" if rows == [("ok",)] else "; ".join(row[0] for row in rows)

    def audit(self) -> Sequence[str]:
        of_rows = [line for (line,) in self._read("audit")]
        return [*of_rows, *history.broken(lambda name, values: self._read(name, **values))]

    def backup(self, target: Path) -> None:
        if target.exists():
            raise Refused(f"{target} is already there: name a file that is not")
        unfinished = target.with_name(f".{target.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        try:
            with spoken_errors(target):
                # Not the reader: a connection that only queries may not write the copy either.
                self._writer.execute("VACUUM INTO ?", (str(unfinished),))
            create(unfinished).close()  # brings the copy into WAL mode
            _assert_sound(unfinished)
            with unfinished.open("rb+") as copy:
                os.fsync(copy.fileno())
            os.link(unfinished, target)  # unlike a rename, this refuses a target that came meanwhile
        finally:
            unfinished.unlink(missing_ok=True)

    def shorten_log(self) -> None:
        with spoken_errors(self._path):
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def has_no_wal_reset_bug(version: str) -> bool:
    parts = tuple(int(part) for part in version.split(".")[:3])
    return parts >= (3, 51, 3) or any(parts[:2] == fixed[:2] and parts >= fixed for fixed in _WITHOUT_WAL_RESET_BUG)


def _check_of_program() -> Iterator[Check]:
    """The sqlite3 program that people and cron use on the same file."""
    program = shutil.which("sqlite3")
    if program is None:
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()[:1]
    if version:
        detail = f"sqlite3 {version[0]} is on the PATH"
        if not has_no_wal_reset_bug(version[0]):
            detail += "; its checkpoints can, rarely, lose commits of others (fixed in 3.51.3): keep its sessions short"
        yield Check("sqlite3 program", True, detail)


def _assert_sound(path: Path) -> None:
    copy = connect_to_read(path)
    try:
        if copy.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
            raise StoreDamaged(f"the copy at {path} is not sound, and was removed: run `pagemill db check`")
    finally:
        copy.close()
