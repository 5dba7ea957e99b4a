from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_service.base import directories


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "root" / "folder").mkdir(parents=True)
    (tmp_path / "root" / "folder" / "file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "folder" / "leaf").symlink_to("file")
    with directories.open_nested_folder(tmp_path / "root") as opened:
        yield opened


def test_a_file_beneath_is_opened(root: int) -> None:
    with os.fdopen(directories.open_beneath(root, Path("folder/file"), os.O_RDONLY)) as file:
        assert file.read() == "inside"
    os.close(directories.open_beneath(root, Path(), os.O_RDONLY | os.O_DIRECTORY))


@pytest.mark.parametrize(
    ("path", "error_number"),
    [
        ("link/file", errno.ENOTDIR),
        ("folder/leaf", errno.ELOOP),
        ("../outside/file", errno.EXDEV),
        ("folder/../folder/file", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("absent/file", errno.ENOENT),
        ("folder/file/more", errno.ENOTDIR),
    ],
)
def test_a_path_that_leaves_the_directory_or_follows_a_link_is_refused(root: int, path: str, error_number: int) -> None:
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    with pytest.raises(OSError) as caught:  # noqa: PT011
        directories.open_beneath(root, Path(path), os.O_RDONLY)

    assert caught.value.errno == error_number
    assert len(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208


def test_with_o_path_the_link_itself_is_opened(root: int) -> None:
    leaf = directories.open_beneath(root, Path("folder/leaf"), os.O_PATH)

    assert os.readlink("", dir_fd=leaf) == "file"
    os.close(leaf)
