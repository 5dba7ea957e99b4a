from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import SchemaMismatch, StoreAbsent, StoreUnusable
from worker_service.store.connection import (
    SCHEMA_VERSION,
    SQLITE_VERSION,
    OnLongWait,
    connect_to_read,
    create,
    newer_schema_error,
    schema_version_of,
)
from worker_service.store.database import Database, Transaction, WriteOptions
from worker_service.store.errors import translate_errors
from worker_service.store.store import Store

if TYPE_CHECKING:
    from worker_service.jobs.documents import TakeoverPatience
    from worker_service.jobs.retries import RetryRule
    from worker_service.settings.config import Settings

LIBRARY = f"SQLite {SQLITE_VERSION}"
PAYLOAD_BYTES_MAX = 1_048_576

# WAL mode needs shared memory, so all processes must run on one machine.
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs")


def open_with_settings(settings: Settings, writing: WriteOptions | None = None) -> Store:
    from worker_service.jobs.documents import TakeoverPatience

    return open_store(
        settings.database,
        orphan_after_seconds=settings.orphan_after_seconds,
        patience=TakeoverPatience(settings.queued_patience_seconds, settings.indexing_patience_seconds),
        retries=settings.retries,
        writing=writing,
    )


def open_store(
    path: Path,
    *,
    orphan_after_seconds: int = 300,
    clock: Clock = wall_clock,
    patience: TakeoverPatience | None = None,
    retries: Mapping[str, RetryRule] = {},
    writing: WriteOptions | None = None,
) -> Store:
    refuse_network_file_system(path)
    database = Database(
        path, _STATEMENTS, clock, orphan_after_seconds=orphan_after_seconds, retries=retries, writing=writing
    )
    try:
        with translate_errors(path):
            version = schema_version_of(database.reader)
        _refuse_other_version(path, version)
    except BaseException:
        database.close()
        raise
    return Store(database, patience)


class _LateStatements(dict[str, str]):
    """Reads the statements when they are first used: `pagemill ls` needs none."""

    def __missing__(self, name: str) -> str:
        self._load()
        return dict(self)[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return super().__iter__()

    def _load(self) -> None:
        if not self:
            from worker_service.store.statements import sqlite_statements

            self.update(sqlite_statements())


_STATEMENTS = _LateStatements()


def initialise(
    path: Path, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX, on_long_wait: OnLongWait | None = None
) -> bool:
    """Create the database and its tables. Return False if they exist already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_network_file_system(path)
    _create_file(path)
    with closing(create(path, on_long_wait)) as connection, Transaction(lambda: connection, path):
        version = schema_version_of(connection)
        if version is None:
            connection.execute(schema_sql())
        else:
            _refuse_other_version(path, version)
        connection.execute(_STATEMENTS["set_payload_limit"], {"most": payload_bytes_max})
    return version is None


def schema_sql() -> str:
    """Read schema.sql: inside the package in a wheel, above it in a checkout."""
    package = Path(__file__).parents[1]
    in_wheel = package / "schema.sql"
    return (in_wheel if in_wheel.is_file() else package.parent / "schema.sql").read_text("utf-8")


def _create_file(path: Path) -> None:
    """Give the group write access in a directory that a group shares; SQLite would not."""
    with suppress(FileExistsError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            created, folder = os.fstat(file), path.parent.stat()
            is_shared = folder.st_mode & stat.S_IWGRP and not folder.st_mode & stat.S_IWOTH
            if is_shared and created.st_gid == folder.st_gid:
                os.fchmod(file, stat.S_IMODE(created.st_mode) | stat.S_IRGRP | stat.S_IWGRP)
        finally:
            os.close(file)


def schema_version(path: Path) -> int | None:
    with closing(connect_to_read(path)) as connection, translate_errors(path):
        return schema_version_of(connection)


def _refuse_other_version(path: Path, version: int | None) -> None:
    if version is None:
        raise StoreAbsent(f"{path} has no pagemill tables yet", "make them with `pagemill init`")
    if version < SCHEMA_VERSION:
        raise SchemaMismatch(f"{path} has schema {version}, older than {SCHEMA_VERSION}", "run `pagemill db migrate`")
    if version > SCHEMA_VERSION:
        raise newer_schema_error(path, version)


def refuse_network_file_system(path: Path) -> None:
    kind = file_system_of(path.parent.resolve(), Path("/proc/self/mountinfo").read_text())
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{path} is on a network file system ({kind}), where SQLite loses data",
            "set WORKER_DATABASE to a local disk",
        )


def file_system_of(folder: Path, mountinfo: str) -> str:
    nearest, kind = Path("/"), ""
    for line in mountinfo.splitlines():
        # The fifth word is the mount point, in which blanks are written as octal numbers.
        mount = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]))
        # Of several mounts on one folder, the last one is visible.
        if folder.is_relative_to(mount) and mount.is_relative_to(nearest):
            nearest, kind = mount, line.partition(" - ")[2].split()[0]
    return kind
