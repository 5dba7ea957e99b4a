"""Checks of the database file and the search index, and the audit: rows that break a promise (P1 to P13)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from worker_service.base.errors import StoreDamaged
from worker_service.base.humanize import counted
from worker_service.jobs.counts import BrokenPromise, Check
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.store.connection import SQLITE_VERSION, is_in_wal_mode, set_wal_mode
from worker_service.store.database import Row, StorePart, Transaction, WritePauses
from worker_service.store.errors import SqlError, translate_errors
from worker_service.store.lock_owner import lasting_lock_owner_of

_WAL_BYTES_MAX = 64 * 1024 * 1024
_LOCK_HELD_SECONDS = 1.0
_FREE_BYTES_MIN = 256 * 1024 * 1024
# The newest release, and two older series that have the fix, too.
_FIRST_WITHOUT_WAL_RESET_BUG = ((3, 51, 3), (3, 50, 7), (3, 44, 6))
# A transaction of these pages takes about 0.25 s.
_INDEXED_AT_ONCE = 200

FINDINGS_PER_STATEMENT_MAX = 20
FAULTS_MAX = 5


class Integrity(StorePart):
    def check(self) -> Sequence[Check]:
        return list(self._checks())

    def _checks(self) -> Iterator[Check]:
        faults = self._faults()
        yield Check(
            "integrity",
            not faults.tables,
            "; ".join(faults.tables) or "every page is sound",
            "stop the daemon and restore the newest backup",
        )
        if not faults.tables:
            problems = "; ".join([*faults.search_index, *self._differences_of_index()])
            detail = problems or "it has every stored page"
            yield Check("search index", not problems, detail, "pagemill db rebuild-search")
            broken = "; ".join(map(str, self.audit()))
            yield Check("consistency", not broken, broken or "all rows agree", "report it with this output")
        if holder := lasting_lock_owner_of(self._db.path, seconds=_LOCK_HELD_SECONDS):
            end = f"end its transaction (COMMIT or ROLLBACK where it was begun), or stop it: kill {holder.pid}"
            yield Check("write lock", False, f"{holder} holds it, so no other program can write", end)
        else:
            yield Check("write lock", True, "free")
        yield Check("SQLite", has_no_wal_reset_bug(SQLITE_VERSION), f"pagemill uses {SQLITE_VERSION}")
        yield from _check_sqlite3_program()
        is_wal_mode = is_in_wal_mode(self._db.reader, self._db.path)
        yield Check(
            "journal mode",
            is_wal_mode,
            "wal mode" if is_wal_mode else "delete mode, in which readers and writers wait for each other",
            "restart the daemon, which puts it into WAL mode",
        )
        wal_bytes = self._wal_bytes()
        yield Check(
            "write-ahead log",
            wal_bytes < _WAL_BYTES_MAX,
            f"{wal_bytes / 1e6:.1f} MB",
            "a reader has been open for long: close forgotten sqlite3 sessions",
        )
        free = shutil.disk_usage(self._db.path.parent).free
        yield Check(
            "disk",
            free > _FREE_BYTES_MIN,
            f"{free / 1e9:.1f} GB free",
            "`pagemill stats` tells who keeps how much: pagemill documents rm, and pagemill prune",
        )
        mode = self._db.path.stat().st_mode & 0o777
        yield Check("permissions", not mode & 0o002, f"mode {mode:04o}", f"chmod o-w {self._db.path}")

    def _faults(self) -> Faults:
        try:
            return faults_of(lambda sql: self._db.read_sql(sql, []))
        except StoreDamaged as error:
            return Faults([str(error)], [])

    def _differences_of_index(self) -> Iterator[str]:
        [(missing, extra)] = self._db.read("differences_of_index")
        if missing:
            yield f"{counted(missing, 'stored page')} cannot be found"
        if extra:
            yield f"it names {counted(extra, 'page')} that {'is' if extra == 1 else 'are'} not stored"

    def rebuild_search(self) -> int:
        """Return the number of pages in the new index."""
        # With pauses, so that a running daemon can write between the transactions.
        transaction = Transaction(lambda: self._db.writer, self._db.path, WritePauses())
        with transaction:
            self._db.write("empty_index")
        pages, last_id = 0, 0
        while True:
            with transaction:
                rows = self._db.read_locked("results_not_indexed", after=last_id, most=_INDEXED_AT_ONCE)
                self._db.write("index_results", result_ids=json.dumps([result_id for (result_id,) in rows]))
            if not rows:
                return pages
            pages, last_id = pages + len(rows), rows[-1][0]

    def audit(self) -> Sequence[BrokenPromise]:
        values = {"most": FINDINGS_PER_STATEMENT_MAX, "requeues_max": REQUEUES_MAX}
        statements = [name for name in self._db.statements if name.startswith("audit_")]
        return [BrokenPromise(*row) for statement in statements for row in self._db.read(statement, **values)]

    def ensure_wal_mode(self) -> None:
        # A reloaded .dump or a copy by VACUUM INTO is not in WAL mode.
        with translate_errors(self._db.path):
            set_wal_mode(self._db.writer, self._db.path)

    def truncate_wal(self, *, even_if_small: bool = False) -> None:
        """Move a large WAL into the database and empty it, which commits cannot do while there are readers."""
        if even_if_small or self._wal_bytes() > _WAL_BYTES_MAX:
            with translate_errors(self._db.path):
                self._db.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _wal_bytes(self) -> int:
        wal = Path(f"{self._db.path}-wal")
        return wal.stat().st_size if wal.exists() else 0


class Faults(NamedTuple):
    tables: Sequence[str]
    search_index: Sequence[str]


def faults_of(run_query: Callable[[str], list[Row]]) -> Faults:
    has_index = bool(run_query("SELECT 1 FROM sqlite_schema WHERE name = 'page_text'"))
    if has_index:
        # A connection caches the structure of the index. A query refreshes the cache after another connection's change;
        # integrity_check does not, and would report faults that do not exist.
        with suppress(StoreDamaged, SqlError):
            run_query("SELECT 1 FROM page_text WHERE rowid = 0")
    all_faults = _run_check(run_query, f"integrity_check({FAULTS_MAX})")
    if not all_faults or not has_index:
        return Faults(all_faults, [])
    # Since SQLite 3.44, integrity_check of a virtual table calls FTS5's own check.
    index_faults = _run_check(run_query, "integrity_check(page_text)")
    return Faults([fault for fault in all_faults if fault not in index_faults], index_faults)


def _run_check(run_query: Callable[[str], list[Row]], pragma: str) -> list[str]:
    return [str(fault) for (fault,) in run_query(f"PRAGMA {pragma}") if fault != "ok"]


def has_no_wal_reset_bug(version: str) -> bool:
    numbers = tuple(int(part) for part in version.split(".")[:3])
    is_fixed_in_series = any(numbers[:2] == fixed[:2] and numbers >= fixed for fixed in _FIRST_WITHOUT_WAL_RESET_BUG)
    return is_fixed_in_series or numbers >= _FIRST_WITHOUT_WAL_RESET_BUG[0]


def _check_sqlite3_program() -> Iterator[Check]:
    program = shutil.which("sqlite3")
    if program is None:
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()[:1]
    if version:
        detail = f"sqlite3 {version[0]} is on the PATH"
        if not has_no_wal_reset_bug(version[0]):
            detail += "; its checkpoints can, rarely, lose commits of others (fixed in 3.51.3): keep its sessions short"
        # True even with the bug: the program need not be used.
        yield Check("sqlite3 program", True, detail)
