"""Move the files of finished attempts into the workspace, before the completion commits, or delete them.

A handler may have put links in place of its directories, so every directory is opened without following links.
"""

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

# Errors of opening a path below a directory if a part of it is a link, or leads out.
_LEADS_ELSEWHERE = (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)


class StagedFileMissing(Exception):
    pass


class Publisher(Struct, frozen=True):
    workspace: Path
    staging: Path

    def publish(self, ended: Ended) -> None:
        """Move the files, at least one, durably. An earlier call that failed may have moved some."""
        target = self.target_folder(ended.job_id, ended.fence)
        objects = target.parent
        objects.mkdir(parents=True, exist_ok=True)
        with (
            open_nested_folder(objects) as objects_fd,
            open_nested_folder(objects, [target.name], creates=True) as target_fd,
            open_nested_folder(self.staging) as staging_fd,
        ):
            for file in ended.files:
                self._move(file.relative_to(self.staging), staging_fd, target_fd)
            os.fsync(target_fd)
            os.fsync(objects_fd)
        self._delete_staging(ended)

    def _move(self, file: Path, staging_fd: int, target_fd: int) -> None:
        # The first part of the path is the attempt's staging directory, named by the fork server.
        _, *folders, name = file.parts
        folder_fd = open_folder(target_fd, folders, creates=True)
        try:
            self._move_into(folder_fd, name, file.parent, staging_fd)
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def _move_into(self, target_fd: int, name: str, folder: Path, staging_fd: int) -> None:
        try:
            source_fd = open_beneath(staging_fd, folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                move_file(name, name, source_directory=source_fd, target_directory=target_fd)
            finally:
                os.close(source_fd)
        except FileNotFoundError as error:
            # An earlier call may have moved it.
            if not _is_file(name, target_fd):
                raise StagedFileMissing(
                    f"{name} was removed from the staging directory before it could be published"
                ) from error
        except OSError as error:
            if error.errno not in _LEADS_ELSEWHERE:
                raise
            raise StagedFileMissing(f"{folder} leads out of the staging directory") from error
        if not _is_file(name, target_fd):
            os.unlink(name, dir_fd=target_fd)
            raise StagedFileMissing(f"{name} was replaced in the staging directory before its publication")

    def new_files(self, ended: Ended) -> list[NewFile]:
        files = []
        folder = self.target_folder(ended.job_id, ended.fence)
        for file in ended.published:
            target = folder.joinpath(*file.path.relative_to(self.staging).parts[1:])
            path, size = str(target.relative_to(self.workspace)), target.stat().st_size
            files.append(NewFile(file.name or target.name, path, file.role, size, file.sha256, file.md5, file.note))
        return files

    def retract(self, ended: Ended) -> None:
        if ended.files:
            self._delete_staging(ended)
            shutil.rmtree(self.target_folder(ended.job_id, ended.fence), ignore_errors=True)

    def _delete_staging(self, ended: Ended) -> None:
        # The fork server leaves the directory to the daemon if files are published from it.
        shutil.rmtree(self.staging / ended.files[0].relative_to(self.staging).parts[0], ignore_errors=True)

    def target_folder(self, job_id: int, fence: int) -> Path:
        return self.workspace / "objects" / f"{job_id}-{fence}"


def _is_file(name: str, directory_fd: int) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISREG(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)
    return False
