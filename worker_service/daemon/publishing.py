"""Move the files of a finished attempt to where published files live, before its completion is written (P5).

`workspace/objects/<job>-<fence>/` is read by nobody until the completion has committed; if that is refused, the files
are removed again. Readable names are made from committed rows, elsewhere.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from worker_service.children.messages import Ended
from worker_service.jobs.documents import NewFile


class Vanished(Exception):
    """A file that was to be published is gone, and the staging directory is not."""


class Publisher:
    def __init__(self, workspace: Path, staging: Path) -> None:
        self._workspace = workspace
        self._objects = workspace / "objects"
        self._staging = staging

    def publish(self, ended: Ended) -> None:
        """Move them, durably. What was moved by an earlier try stays. Raise `Vanished` where one is nowhere."""
        if not ended.files:
            return
        target = self.place(ended.job_id, ended.fence)
        target.mkdir(parents=True, exist_ok=True)
        # Below the attempt's own directory, whose name is the nursery's to choose.
        folders = {target, self._objects}
        for file in ended.files:
            to = self._target(ended, file)
            if not file.exists():
                if to.exists():
                    continue
                if self._staging.is_dir():
                    raise Vanished(f"{file.name} was removed from the staging directory before it could be published")
            to.parent.mkdir(parents=True, exist_ok=True)
            folders.add(to.parent)
            try:
                file.rename(to)
            except OSError as error:
                if error.errno != 18:  # another file system
                    raise
                _copy(file, to)
        for folder in folders:
            _sync(folder)
        self._forget_staging(ended)

    def published(self, ended: Ended) -> list[NewFile]:
        """The moved files, as their rows will tell of them."""
        new = []
        for one in ended.published:
            to = self._target(ended, one.path)
            path, size = str(to.relative_to(self._workspace)), to.stat().st_size
            new.append(NewFile(one.name or to.name, path, one.role, size, one.sha256, one.md5, one.note))
        return new

    def retract(self, ended: Ended) -> None:
        """The completion was refused: as if they had never been there."""
        if ended.files:
            self._forget_staging(ended)
            shutil.rmtree(self.place(ended.job_id, ended.fence), ignore_errors=True)

    def _forget_staging(self, ended: Ended) -> None:
        """Where files are named, the nursery leaves the attempt's directory to us."""
        attempt = ended.files[0].relative_to(self._staging).parts[0]
        shutil.rmtree(self._staging / attempt, ignore_errors=True)

    def _target(self, ended: Ended, file: Path) -> Path:
        return self.place(ended.job_id, ended.fence).joinpath(*file.relative_to(self._staging).parts[1:])

    def place(self, job_id: int, fence: int) -> Path:
        return self._objects / f"{job_id}-{fence}"


def _copy(file: Path, to: Path) -> None:
    unfinished = to.with_name(f".{to.name}.unfinished")
    shutil.copyfile(file, unfinished)
    with unfinished.open("rb") as copy:
        os.fsync(copy.fileno())
    unfinished.rename(to)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
