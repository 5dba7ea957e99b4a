"""Remove documents with their pages and files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from worker_service.jobs.library import Document, Removed, Weight
from worker_service.services import page_images, passwords
from worker_service.services.session import Session
from worker_service.workspace import FORGOTTEN_AT_ONCE, delete_unreferenced_files, update_links

_PAUSE_SECONDS = 0.005
"""Lets other writers in, which try the write lock every millisecond."""


def weigh_removal(session: Session, documents: Sequence[Document]) -> Weight:
    return session.store.removal.weigh([document.id for document in documents])


def remove_documents(session: Session, documents: Sequence[Document]) -> tuple[Removed, Sequence[str]]:
    """Return the result, and the files that only a daemon may delete."""
    store, workspace = session.store, session.settings.workspace
    removed = store.removal.remove_documents([document.id for document in documents], actor=session.actor)
    while store.removal.forget_removed_documents(FORGOTTEN_AT_ONCE):
        time.sleep(_PAUSE_SECONDS)
    removed_ids = set(removed.document_ids)
    for document in documents:
        if document.id in removed_ids:
            passwords.forget(workspace, document)
    undeleted_paths = delete_unreferenced_files(store, workspace)
    page_images.delete_images(workspace, removed.document_ids)
    with suppress(OSError):  # this user may not change the links; a daemon updates them
        update_links(store, workspace, removed.document_ids)
    return removed, undeleted_paths
