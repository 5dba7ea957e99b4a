"""A Drive folder, a shared drive, or everything shared with the account, as a tree to crawl."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from job_handlers.fetch.error_rules import FetchError, Restart, RetryPolicy, Timeouts
from job_handlers.fetch.sources import Reference
from job_handlers.fetch.sources.drive import PLATFORM, SHARED_WITH_ME, source_of_jobs
from job_handlers.fetch.sources.drive.client import Drive
from job_handlers.fetch.sources.tree import Entry, ItemError, Listing, ListingExpired, TreeChanges
from worker_service.handlers import Permanent, Stopped

_POLL_SECONDS = 0.2

T = TypeVar("T")


class DriveTree:
    platform = PLATFORM

    def __init__(
        self,
        drive: Drive,
        folder: Reference,
        *,
        is_stopping: Callable[[], bool],
        timeouts: Timeouts,
    ) -> None:
        self.source = source_of_jobs(drive.credential)
        self.root_name = folder.key
        self._drive = drive
        self._folder = folder
        self._is_stopping = is_stopping
        self._timeouts = timeouts

    @property
    def _is_shared_with_me(self) -> bool:
        return self._folder.key == SHARED_WITH_ME

    def root(self) -> Entry:
        if self._is_shared_with_me:
            return Entry(SHARED_WITH_ME, "Shared with me", "folder")
        entry = self.entry(self._folder.key, self._folder.resource_key)
        if entry.kind == "shortcut":
            entry = self.entry(entry.target_id, entry.key)
        if entry.kind != "folder":
            raise ItemError(f"{entry.name} is not a folder", "to fetch one file, enqueue a download")
        return entry

    def entry(self, item_id: str, key: str) -> Entry:
        entry = self._call_for_item(lambda: self._drive.entry(item_id, key))
        if entry.is_trashed:
            raise ItemError(f"{entry.name} is in the trash")
        return entry

    def children(self, folder_id: str, key: str, corpus: str, page: str) -> Listing:
        def list_page() -> Listing:
            if folder_id == SHARED_WITH_ME:
                return self._drive.shared_with_me(page)
            return self._drive.children(folder_id, page, drive_id=corpus, resource_key=key)

        return self._call_for_item(list_page, page)

    def change_token(self, corpus: str) -> str:
        # Changes of shared items name no parent folder that the account sees, so `shared-with-me` is always walked.
        return (
            ""
            if self._is_shared_with_me
            else self._call_with_retries(lambda: self._drive.token_of_later_changes(corpus))
        )

    def changes(self, corpus: str, token: str) -> TreeChanges:
        return self._call_with_retries(lambda: self._drive.changes(token, drive_id=corpus), token)

    def _call_for_item(self, call: Callable[[], T], expiring_token: str = "") -> T:
        try:
            return self._call_with_retries(call, expiring_token)
        except Permanent as error:
            raise ItemError(error.detail, error.remedy) from error

    def _call_with_retries(self, call: Callable[[], T], expiring_token: str = "") -> T:
        policy = RetryPolicy(self._timeouts)
        while True:
            try:
                return call()
            except FetchError as error:
                if expiring_token and error.code in ("REQUEST_INVALID", "NOT_FOUND", "GONE"):
                    raise ListingExpired(error.sentence) from error
                decision = policy.decide_after(error)
                # An answer has no bytes to keep, so a restart is a retry.
                self._wait(0.0 if isinstance(decision, Restart) else decision)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._is_stopping():
                raise Stopped
            time.sleep(min(left, _POLL_SECONDS))
