"""Open files and folders below a directory without following links.

Each part of a path is opened by the descriptor of the part before, so that no part can become a link after a check.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that make opening a link raise `NotADirectoryError`."""


@contextmanager
def open_nested_folder(root: Path, folders: Sequence[str] = (), *, creates: bool = False) -> Iterator[int]:
    """Open a folder below `root`. Only `root` itself may be a link."""
    root_descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = open_folder(root_descriptor, folders, creates=creates)
    finally:
        os.close(root_descriptor)
    try:
        yield folder
    finally:
        os.close(folder)


def open_folder(directory: int, folders: Sequence[str], *, creates: bool = False) -> int:
    # If a part of the path is no folder, the error's `filename` is this part.
    folder = os.dup(directory)
    try:
        for name in folders:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            next_folder = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = next_folder
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_beneath(directory: int, path: PurePath, flags: int) -> int:
    """Open a file without following links. With `O_PATH`, the descriptor may refer to a link itself."""
    if path.is_absolute() or ".." in path.parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
    folder = open_folder(directory, path.parts[:-1])
    try:
        return os.open(path.name or ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
