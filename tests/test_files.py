from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from worker_service.base.directories import open_nested_folder
from worker_service.base.files import atomic_write, move_file, sha256_of


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        if Path(place).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own")
        yield Path(place)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    with suppress(RuntimeError), atomic_write(target) as file:
        file.write(b"half")
        raise RuntimeError

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def test_the_first_of_two_new_files_stays(tmp_path: Path) -> None:
    target = tmp_path / "file"

    second = atomic_write(target, is_new=True)
    second.__enter__().write(b"second")
    with atomic_write(target, is_new=True, is_synced=True) as first:
        first.write(b"first")

    with pytest.raises(FileExistsError):
        second.__exit__(None, None, None)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "first"}


def test_a_file_moves_to_another_file_system(tmp_path: Path, elsewhere: Path) -> None:
    source = tmp_path / "source"
    source.write_text("content")
    source.chmod(0o640)
    (elsewhere / "target").write_text("old")

    with open_nested_folder(tmp_path) as source_directory, open_nested_folder(elsewhere) as target_directory:
        move_file("source", "target", source_directory=source_directory, target_directory=target_directory)

    assert not source.exists()
    assert {path.name: (path.read_text(), path.stat().st_mode & 0o777) for path in elsewhere.iterdir()} == {
        "target": ("content", 0o640)
    }


def test_a_link_is_not_followed_to_another_file_system(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")

    with pytest.raises(OSError, match="symbolic links"):
        move_file(tmp_path / "link", elsewhere / "target")
    with pytest.raises(OSError, match="symbolic links"):
        sha256_of(tmp_path / "link", follows_link=False)

    assert list(elsewhere.iterdir()) == []
