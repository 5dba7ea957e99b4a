"""Move the files of finished attempts into the workspace, before the completion commits (P5), or delete them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from worker_service.base.directories import open_beneath, open_folder, open_nested_folder
from worker_service.base.files import move_file
from worker_service.jobs.documents import NewFile
from worker_service.runner.messages import Ended

_LEADS_ELSEWHERE = (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)


class StagedFileMissing(Exception):
    pass


class Publisher(Struct, frozen=True):
    workspace: Path
    staging: Path

    def publish(self, ended: Ended) -> None:
        """Move the files durably. An earlier try may have moved some."""
        objects, name = self.workspace / "objects", self.place(ended.job_id, ended.fence).name
        objects.mkdir(parents=True, exist_ok=True)
        with (
            open_nested_folder(objects) as folder,
            open_nested_folder(objects, [name], creates=True) as place,
            open_nested_folder(self.staging) as root,
        ):
            for file in ended.files:
                self._move(file.relative_to(self.staging), root, place)
            os.fsync(place)
            os.fsync(folder)
        self._forget_staging(ended)

    def _move(self, file: Path, root: int, place: int) -> None:
        """Drop the first part of the path: the attempt's staging directory, named by the fork server."""
        _, *folders, name = file.parts
        target = open_folder(place, folders, creates=True)
        try:
            self._move_name(name, file.parent, root, target)
            os.fsync(target)
        finally:
            os.close(target)

    def _move_name(self, name: str, folder: Path, root: int, target: int) -> None:
        try:
            source = open_beneath(root, folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                move_file(name, name, source_directory=source, target_directory=target)
            finally:
                os.close(source)
        except FileNotFoundError as error:
            if not _is_file(name, target):
                raise StagedFileMissing(
                    f"{name} was removed from the staging directory before it could be published"
                ) from error
        except OSError as error:
            if error.errno not in _LEADS_ELSEWHERE:
                raise
            raise StagedFileMissing(f"{folder} leads out of the staging directory") from error
        if not _is_file(name, target):
            os.unlink(name, dir_fd=target)
            raise StagedFileMissing(f"{name} was replaced in the staging directory before its publication")

    def published(self, ended: Ended) -> list[NewFile]:
        new = []
        for one in ended.published:
            to = self._target(ended, one.path)
            path, size = str(to.relative_to(self.workspace)), to.stat().st_size
            new.append(NewFile(one.name or to.name, path, one.role, size, one.sha256, one.md5, one.note))
        return new

    def retract(self, ended: Ended) -> None:
        if ended.files:
            self._forget_staging(ended)
            shutil.rmtree(self.place(ended.job_id, ended.fence), ignore_errors=True)

    def _forget_staging(self, ended: Ended) -> None:
        # The fork server leaves the directory to the daemon if files are published from it.
        shutil.rmtree(self.staging / ended.files[0].relative_to(self.staging).parts[0], ignore_errors=True)

    def _target(self, ended: Ended, file: Path) -> Path:
        return self.place(ended.job_id, ended.fence).joinpath(*file.relative_to(self.staging).parts[1:])

    def place(self, job_id: int, fence: int) -> Path:
        return self.workspace / "objects" / f"{job_id}-{fence}"


def _is_file(name: str, directory: int) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False
