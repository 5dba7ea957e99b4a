"""The chore that keeps names for people in the workspace: `by-owner/alice/Reports/Annual report 2025.pdf`.

What has changed stands in a list that triggers keep; where nothing has, it costs a look. All documents are looked at
when the daemon starts, each hour after that, and when a folder was renamed where it was found: so what somebody removed
by hand is remade.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.links import link, link_due
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

EVERY_SECONDS = 3600.0
_AT_ONCE = 25
_ALL = 0


class NameDocuments:
    name = "name_documents"

    def __init__(
        self, store: Store, workspace: Path, *, log: Log, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._workspace = workspace
        self._log = log
        self._monotonic = monotonic
        self._seen: int | None = None
        """As far as a look at all has come; None: none goes on."""
        self._all_at = monotonic()

    def run(self) -> float:
        due = self._store.links_due(_AT_ONCE)
        if _ALL in due or self._monotonic() >= self._all_at:
            self._store.links_made([_ALL])
            self._seen, self._all_at = 0, self._monotonic() + EVERY_SECONDS
        ids: Sequence[int] = [document_id for document_id in due if document_id != _ALL]
        if not ids and self._seen is not None:
            ids = self._store.document_ids(self._seen, _AT_ONCE)
            self._seen = ids[-1] if ids else None
        if not ids:
            return 5.0
        self._tell(link(self._store, self._workspace, ids))
        # A little at a time: the loop waits meanwhile.
        return 0.05

    def finish(self) -> None:
        """The daemon ends: what was published last has its names."""
        self._tell(link_due(self._store, self._workspace))

    def _tell(self, troubles: Sequence[str]) -> None:
        if troubles:
            self._log.warning(events.DOCUMENTS_UNNAMED, documents=len(troubles), reason=troubles[0])
