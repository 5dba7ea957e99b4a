"""The workspace on disk: its database, links with readable names, and removal of unreferenced files.

Published files are in `objects/`, the links in `by-owner/`. They are relative and symbolic, so a removed file frees its
bytes and the workspace can be moved. Only pagemill's own links are replaced, and none is followed on the way to one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service.base.directories import open_nested_folder
from worker_service.base.errors import ConfigError, PagemillError
from worker_service.jobs.workspace_names import Links, links_of

if TYPE_CHECKING:
    from worker_service.store.store import Store

FORGOTTEN_AT_ONCE = 50
FREE_BYTES_LEAST = 128 << 20
"""No attempt starts with less space on the disk."""
_DATABASE_ID_FILE = ".database"
_LINKED_AT_ONCE = 50
# Errors of the whole disk or workspace, not of a single name.
_WORKSPACE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)


class PathOccupied(PagemillError, code="in_the_way"): ...


# --- owner database ---


def bind_to_database(workspace: Path, database_id: str) -> None:
    """Raise `ConfigError` if another database uses the workspace: both would have the same job ids."""
    workspace.mkdir(parents=True, exist_ok=True)
    try:
        with (workspace / _DATABASE_ID_FILE).open("x") as file:
            file.write(f"{database_id}\n")
    except FileExistsError:
        if (fault := fault_of_workspace(workspace, database_id)) is not None:
            raise fault from None


def fault_of_workspace(workspace: Path, database_id: str) -> ConfigError | None:
    try:
        owner_id = (workspace / _DATABASE_ID_FILE).read_text().strip()
    except FileNotFoundError:
        return None
    # The file is empty if another daemon has just created it, or was killed at that moment.
    if owner_id in ("", database_id):
        return None
    # The id of a database is the time when it was created.
    return ConfigError(
        f"the workspace {workspace} belongs to another database, made at {owner_id}",
        f"give this one a workspace of its own (WORKER_WORKSPACE), or, if that database is gone for good, remove "
        f"{workspace}",
    )


# --- files deleted by users ---


def find_deleted_sources(
    store: Store, workspace: Path, owner: str, platform: str, source_keys: Collection[str]
) -> set[str]:
    """Return the keys whose originals users have deleted from the workspace."""
    path_by_key = store.library.copies(owner, platform, source_keys) if source_keys else {}
    return {key for key, path in path_by_key.items() if not file_exists(workspace / path)}


def file_exists(file: Path) -> bool:
    try:
        file.stat()
    except FileNotFoundError:
        return False
    except OSError:
        # The daemon may see files that this user may not.
        return True
    return True


# --- links with readable names ---


def update_due_links(store: Store, workspace: Path) -> Sequence[str]:
    errors: list[str] = []
    while ids := [document_id for document_id in store.links.links_due(_LINKED_AT_ONCE) if document_id]:
        errors += update_links(store, workspace, ids)
    return errors


def update_links(store: Store, workspace: Path, document_ids: Sequence[int]) -> Sequence[str]:
    """Store the documents' links, whose names the store makes unique, then update the links on disk. Return errors."""
    errors: list[str] = []
    stored_links = {document_id: store.links.links_of(document_id) for document_id in document_ids}
    changed = []
    for document_id, stored in stored_links.items():
        try:
            facts = store.links.link_facts(document_id)
            links = Links(document_id) if facts is None else links_of(facts)
        except (PagemillError, ValueError) as error:
            errors.append(f"document {document_id}: {error}")
            continue
        if not _are_stored(links, stored):
            changed.append(links)
    if changed:
        store.links.save_links(changed)
    for document_id, stored in stored_links.items():
        target_by_path = dict(store.links.links_of(document_id))
        removed_paths = [path for path, _ in stored if path not in target_by_path]
        for path in [*target_by_path, *removed_paths]:
            try:
                _update_link(workspace, path, target_by_path.get(path, ""))
            except PathOccupied as error:
                errors.append(str(error))
            except OSError as error:
                if error.errno in _WORKSPACE_ERRNOS:
                    raise
                errors.append(f"{path}: {error.strerror}")
    store.links.mark_links_made(document_ids)
    return errors


def _are_stored(links: Links, stored: Sequence[tuple[str, str]]) -> bool:
    """Return whether `stored`, path and target of each link, are these links."""
    folder = "/".join(links.folders)
    for stem in islice(links.stems(), 2):  # the name alone, and the name with the document's id
        if sorted((f"{folder}/{stem}{suffix}", target) for suffix, target in links.targets) == sorted(stored):
            return True
    return False


def _update_link(workspace: Path, path: str, target: str) -> None:
    if target:
        _make_link(workspace, path, target)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            _remove_link(workspace, path)


def _make_link(workspace: Path, path: str, target: str) -> None:
    *folders, name = path.split("/")
    relative_target = "../" * len(folders) + target
    with _open_folder(workspace, folders, creates=True) as folder:
        try:
            if os.readlink(name, dir_fd=folder) == relative_target:
                return
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is not a link
                raise
            raise PathOccupied(f"{workspace / path} is not a link of ours", "move it away") from error
        with suppress(FileExistsError):  # another daemon made it first
            os.symlink(relative_target, name, dir_fd=folder)


def _remove_link(workspace: Path, path: str) -> None:
    *folders, name = path.split("/")
    with _open_folder(workspace, folders) as folder:
        try:
            os.readlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
        else:
            os.unlink(name, dir_fd=folder)
    for depth in range(len(folders) - 1, 0, -1):
        with _open_folder(workspace, folders[:depth]) as folder:
            try:
                os.rmdir(folders[depth], dir_fd=folder)
            except OSError:  # it is not empty
                return


@contextmanager
def _open_folder(workspace: Path, folders: Sequence[str], *, creates: bool = False) -> Iterator[int]:
    """Raise `PathOccupied` if a folder's name is taken by a link or a file."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(open_nested_folder(workspace, folders, creates=creates))
        except NotADirectoryError as error:
            path = workspace / "/".join(folders)
            raise PathOccupied(f"{error.filename}, of {path}, is no folder", "move it away") from error
        yield folder


# --- unreferenced files ---


def delete_unreferenced_files(store: Store, workspace: Path) -> Sequence[str]:
    """Return the paths that could not be deleted. Rows are deleted last, so that an interrupted run is repeated."""
    while paths := store.removal.files_to_delete():
        failed = [path for path in paths if not _try_to_delete(workspace, path)]
        store.removal.forget_deleted_files([path for path in paths if path not in failed])
        if failed:
            return failed
    return []


def _try_to_delete(workspace: Path, path: str) -> bool:
    # A row written by hand may name a path outside the published files.
    if not Path(path).is_relative_to("objects"):
        return True
    file = workspace / path
    try:
        file.unlink(missing_ok=True)
    except (IsADirectoryError, NotADirectoryError):  # no file of ours
        return True
    except OSError:
        return False
    with suppress(OSError):  # the folder is not empty
        for folder in [*Path(path).parents][:-2]:  # below objects
            (workspace / folder).rmdir()
    return True
