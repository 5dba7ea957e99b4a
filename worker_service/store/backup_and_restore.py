"""Write and restore backups. A restore prepares a copy beside the database, which a rename then replaces."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from worker_service.base.clock import Clock, as_text
from worker_service.base.errors import BadInput, Refused, StoreBusy, StoreDamaged, StoreError, StoreUnusable
from worker_service.base.files import sync_path
from worker_service.store import opening
from worker_service.store.connection import (
    SCHEMA_VERSION,
    Connection,
    OnLongWait,
    connect,
    connect_to_read,
    create,
    newer_schema_error,
    schema_version_of,
)
from worker_service.store.errors import translate_errors
from worker_service.store.integrity import faults_of
from worker_service.store.migrations import migrate

# Added to fences and ids on a restore: more than were used since any backup.
RAISED_BY = 1_000_000
_LOCK_TIMEOUT_MILLISECONDS = 1000
_PAGES_PER_STEP = 10_000

_JOBS = "SELECT status, count(*) FROM worker_job_queue GROUP BY status"
_NUMBERS = (
    "SELECT name, seq FROM sqlite_sequence UNION ALL SELECT 'fence', max(fence) FROM"
    " (SELECT max(fence) AS fence FROM worker_job_queue UNION ALL SELECT ifnull(max(fence), 0) FROM restored)"
)
# The original proposal's table has no events.
_NEWEST_OF_PLAIN = "SELECT max(created_at) FROM worker_job_queue"
_NEWEST = f"SELECT max(at) FROM (SELECT at FROM worker_job_event UNION ALL {_NEWEST_OF_PLAIN})"


def back_up(path: Path, target: Path, *, on_long_wait: OnLongWait | None = None) -> None:
    if target.exists():
        raise Refused(f"{target} is already there", "name a file that is not")
    with _unfinished_file(target.with_name(f".{path.name}.unfinished")) as unfinished:
        with closing(connect(path, on_long_wait=on_long_wait)) as connection, translate_errors(target):
            connection.execute("VACUUM INTO ?", (str(unfinished),))
        create(unfinished).close()  # puts the copy into WAL mode
        _assert_sound(unfinished)
        sync_path(unfinished)
        os.link(unfinished, target)  # unlike a rename, a link fails if the target exists by now


@contextmanager
def _unfinished_file(path: Path) -> Iterator[Path]:
    """Create an empty file under a lock, and remove it in the end.

    All backups in a directory share one file name, so they run one after another.
    """
    lock = _lock_file(path)
    try:
        # Remove what a killed backup has left. SQLite writes into an empty file only.
        os.truncate(path, 0)
        _remove_logs(path)
        yield path
    finally:
        _remove(path)
        # Close the file last: closing it earlier would drop SQLite's locks on it.
        os.close(lock)


def _lock_file(path: Path) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The backup that held the lock may have removed its file; then lock the new one.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.lstat()):
                return lock
        os.close(lock)


def _assert_sound(path: Path) -> None:
    with closing(connect_to_read(path)) as copy:
        # A damaged search index can be rebuilt, so such a copy is kept.
        if faults_of(lambda sql: copy.execute(sql).fetchall()).tables:
            raise StoreDamaged(f"the copy at {path} is not sound, and was removed", "run `pagemill db check`")


class Backup(Struct, frozen=True):
    path: Path
    version: int
    size: int
    newest_at: str | None
    jobs: Mapping[str, int]


def check_backup(path: Path) -> Backup:
    if not path.is_file():
        raise BadInput(f"there is no file {path}", "name a copy that `pagemill db backup` made")
    try:
        with closing(connect_to_read(path)) as connection, translate_errors(path):
            version = schema_version_of(connection)
            faults = faults_of(lambda sql: connection.execute(sql).fetchall())
            jobs = connection.execute(_JOBS).fetchall() if version is not None else []
            newest = connection.execute(_NEWEST if version else _NEWEST_OF_PLAIN).fetchall() if jobs else [(None,)]
    except (StoreUnusable, StoreDamaged) as error:
        raise StoreDamaged(f"{path} is no sound backup ({error.__cause__})", "take another one") from error
    if version is None:
        raise StoreUnusable(f"{path} has no pagemill tables", "name a copy that `pagemill db backup` made")
    if version > SCHEMA_VERSION:
        raise newer_schema_error(path, version)
    if faults.tables:
        raise StoreDamaged(f"{path} is no sound backup ({faults.tables[0]})", "take another one")
    [(newest_at,)] = newest
    counts = {str(status): int(str(number)) for status, number in jobs}
    return Backup(path, version, path.stat().st_size, None if newest_at is None else str(newest_at), counts)


class Restored(Struct, frozen=True):
    replaced: Path | None
    requeued: int
    steps: list[str]
    database_id: str


def restore_backup(
    backup: Backup, database: Path, clock: Clock, *, agrees: Callable[[str], None] = lambda database_id: None
) -> Restored:
    """Call `agrees` with the id of the restored database before the swap; it may raise."""
    database.parent.mkdir(parents=True, exist_ok=True)
    copy = database.with_name(f".{database.name}.restoring")
    _remove(copy)
    try:
        _copy(backup.path, copy)
        steps = migrate(copy) if backup.version < SCHEMA_VERSION else []
        requeued, database_id = _prepare(copy, clock, above=_highest_ids_and_fence(database))
        agrees(database_id)
        _copy_mode_and_owner(copy, database)
        replaced = _swap(copy, database, clock())
    finally:
        _remove(copy)
    return Restored(replaced, requeued, steps, database_id)


def _copy(backup: Path, copy: Path) -> None:
    with (
        closing(connect_to_read(backup)) as source,
        closing(create(copy)) as target,
        translate_errors(copy),
        target.backup("main", source, "main") as copying,
    ):
        while not copying.done:
            copying.step(_PAGES_PER_STEP)


def _highest_ids_and_fence(database: Path) -> dict[str, int]:
    # The database may have been restored from this backup before.
    if not _is_database(database):
        return {}
    with suppress(StoreError), translate_errors(database), closing(connect_to_read(database)) as connection:
        return {str(name): int(str(number)) for name, number in connection.execute(_NUMBERS)}
    return {}


def _prepare(copy: Path, clock: Clock, *, above: Mapping[str, int]) -> tuple[int, str]:
    create(copy).close()  # puts the copy into WAL mode
    with closing(opening.open_store(copy, clock=clock)) as store:
        workers = [*store.overview.workers(), *store.overview.absent_workers()]
        requeued = sum(len(store.leases.requeue(worker.id)) for worker in workers)
        database = store.database
        with database.transaction():
            database.write("begin_numbers")
            for name, number in above.items():
                database.write("raise_number", name=name, to=number)
            database.write("raise_numbers", by=RAISED_BY)
            database.write("record_restore", now=database.now(), by=RAISED_BY, above=above.get("fence", 0))
        store.integrity.truncate_wal(even_if_small=True)
        return requeued, store.job_queries.database_id()


def _copy_mode_and_owner(copy: Path, database: Path) -> None:
    try:
        status = database.stat()
        copy.chmod(status.st_mode & 0o777)
    except FileNotFoundError:
        status = database.parent.stat()
        is_shared_by_group = status.st_mode & 0o020 and not status.st_mode & 0o002
        copy.chmod(0o660 if is_shared_by_group else 0o640)
    if os.geteuid() == 0:
        os.chown(copy, status.st_uid, status.st_gid)


def _swap(copy: Path, database: Path, now: datetime) -> Path | None:
    """Return the new name of the replaced database, if any."""
    sync_path(copy)
    if not database.exists():
        for suffix in ("-wal", "-shm"):
            if Path(f"{database}{suffix}").exists():
                raise Refused(
                    f"{database}{suffix} is there without its database: it may hold commits, so bring the database "
                    "back, or move that file away"
                )
        os.link(copy, database)  # unlike a rename, a link fails if the database exists by now
        sync_path(database.parent)
        return None
    time_in_name = as_text(now)[:19].replace(" ", "T").replace(":", "")
    replaced_path = database.with_name(f"{database.name}.replaced-{time_in_name}")
    if replaced_path.exists():
        raise Refused(f"{replaced_path} is already there", "move it away, or try again in a second")
    exclusive = _lock_exclusively(database)
    try:
        os.link(database, replaced_path)
        if exclusive is None:
            # The database cannot be read. Keep its log files with it.
            for suffix in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{database}{suffix}").rename(f"{replaced_path}{suffix}")
        copy.rename(database)
    except OSError:
        if exclusive is not None:
            for statement in ("PRAGMA locking_mode = NORMAL", "PRAGMA journal_mode = WAL"):
                exclusive.execute(statement).fetchall()
        raise
    finally:
        if exclusive is not None:
            exclusive.close()
    sync_path(database.parent)
    return replaced_path


def _lock_exclusively(database: Path) -> Connection | None:
    """Return None if the database is damaged."""
    if not _is_database(database):
        return None
    connection = connect(database)
    try:
        connection.set_busy_timeout(_LOCK_TIMEOUT_MILLISECONDS)
        with translate_errors(database):
            connection.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE").fetchall()
            connection.execute("BEGIN EXCLUSIVE; COMMIT")
    except BaseException as error:
        connection.close()
        if isinstance(error, StoreUnusable | StoreDamaged):
            return None
        if isinstance(error, StoreBusy):
            raise StoreBusy(
                f"another program has {database} open",
                "stop `pagemill serve` and end each session of sqlite3, then try again",
            ) from error
        raise
    return connection


def _is_database(path: Path) -> bool:
    # Ask before SQLite opens the file: it would remove the log beside a file that is not a database.
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
