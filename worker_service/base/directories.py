"""Open files by descriptors: a path can be replaced by a link between check and use."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

_OPENAT2_CALL = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_OPEN_HOW = struct.Struct("=QQQ")
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that make opening a link raise `NotADirectoryError`."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def open_nested_folder(root: Path, folders: Sequence[str] = (), *, creates: bool = False) -> Iterator[int]:
    """Open a folder below `root`. Only `root` itself may be a link."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = open_folder(top, folders, creates=creates)
    finally:
        os.close(top)
    try:
        yield folder
    finally:
        os.close(folder)


def open_folder(directory: int, folders: Sequence[str], *, creates: bool = False) -> int:
    # If a part is not a folder, the error has its name in `filename`.
    folder = os.dup(directory)
    try:
        for name in folders:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            below = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_beneath(directory: int, path: PurePath, flags: int) -> int:
    """Open a file without following links. With `O_PATH`, the descriptor may refer to a link itself."""
    if path.is_absolute() or ".." in path.parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return _openat2(directory, path, flags)
    except OSError as error:
        # openat2 is absent before Linux 5.6, and seccomp filters of older containers answer EPERM. EAGAIN means that a
        # rename interfered.
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EAGAIN):
            raise
    return _open_by_steps(directory, path, flags)


def _openat2(directory: int, path: PurePath, flags: int) -> int:
    how = _OPEN_HOW.pack(flags, 0, _BENEATH | _NO_SYMLINKS)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_OPENAT2_CALL), ctypes.c_int(directory), os.fsencode(path), how, ctypes.c_size_t(len(how))
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return descriptor


def _open_by_steps(directory: int, path: PurePath, flags: int) -> int:
    folder = open_folder(directory, path.parts[:-1])
    try:
        return os.open(path.name or ".", flags, dir_fd=folder)
    finally:
        os.close(folder)
