"""Write, move, sync and digest files, so that no other process sees an unfinished one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_BYTES_PER_COPY = 1 << 20


@contextmanager
def atomic_write(
    path: Path, *, mode: int = 0o666, is_new: bool = False, is_synced: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a file that appears whole at the end of the block. With `is_new`, raise `FileExistsError` if one exists."""
    # The name is unique, because two processes may write the same file at once.
    unfinished = path.with_name(f".{os.urandom(8).hex()}.unfinished")
    try:
        with os.fdopen(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "w+b") as file:
            yield file
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        if is_new:
            # Unlike a rename, a link fails if the file exists by now.
            os.link(unfinished, path)
        else:
            unfinished.replace(path)
    except OSError as error:
        # Name the file that the caller asked for, not the unfinished one.
        error.filename = str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def move_file(
    source: Path | str, target: Path | str, *, source_directory: int | None = None, target_directory: int | None = None
) -> None:
    """Replace the target in one step, across file systems by a synced copy. The directories are descriptors."""
    try:
        os.rename(source, target, src_dir_fd=source_directory, dst_dir_fd=target_directory)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return
    unfinished = Path(target).with_name(f".{os.urandom(8).hex()}.unfinished")
    # O_NONBLOCK: opening a FIFO would wait for its writer.
    flags_to_read = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor_to_read = os.open(source, flags_to_read, dir_fd=source_directory)
    with os.fdopen(descriptor_to_read, "rb") as original:
        mode = stat.S_IMODE(os.fstat(descriptor_to_read).st_mode)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(unfinished, flags, mode, dir_fd=target_directory), "wb") as copy:
                shutil.copyfileobj(original, copy, _BYTES_PER_COPY)
                copy.flush()
                os.fsync(copy.fileno())
            os.rename(unfinished, target, src_dir_fd=target_directory, dst_dir_fd=target_directory)
        except BaseException:
            os.unlink(unfinished, dir_fd=target_directory)
            raise
    os.unlink(source, dir_fd=source_directory)


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path, *, follows_link: bool = True) -> str:
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if follows_link else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
