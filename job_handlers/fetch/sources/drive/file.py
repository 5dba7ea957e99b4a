"""One file of Google Drive, for `fetch`: which revision it is, and its bytes. What Google is asked, `drive` knows."""

from __future__ import annotations

from collections.abc import Iterator

from job_handlers.fetch.errors import FetchError
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources.drive.client import Drive

EXPORTS = {
    "pdf": "application/pdf",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "csv": "text/csv",
}


class DriveFile:
    """One file of Drive, for `fetch`."""

    def __init__(
        self, drive: Drive, file_id: str, resource_key: str = "", *, export: str = "", is_abuse_fine: bool = False
    ) -> None:
        self._drive = drive
        self._named = (file_id, resource_key)
        self._actual = self._named
        self._export = EXPORTS.get(export, export)
        self._is_abuse_fine = is_abuse_fine

    def facts(self) -> FileFacts:
        entry = self._drive.entry(*self._named)
        if entry.kind == "shortcut":
            entry = self._drive.entry(entry.target_id, entry.key)
        self._actual = (entry.id, entry.key or self._named[1])
        if entry.is_trashed:
            raise FetchError("IN_TRASH")
        if entry.kind == "folder":
            raise FetchError("NO_FILE", what="a folder")
        if entry.refusal:
            raise FetchError("DOWNLOAD_FORBIDDEN", who=self._drive.who)
        if entry.kind != "native":
            return FileFacts(
                entry.name, entry.mime, entry.size, f"{entry.id} {entry.revision}", entry.md5, entry.sha256
            )
        if not self._export:
            raise FetchError("NATIVE_DOCUMENT", mime=entry.mime.rpartition(".")[2])
        # An export knows no ranges, no size and no digest.
        return FileFacts(
            entry.name, self._export, None, f"{entry.id} {entry.revision} {self._export}", can_resume=False
        )

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        file_id, resource_key = self._actual
        query = {"alt": "media", "supportsAllDrives": "true"}
        path = f"files/{file_id}"
        if facts.size is None:
            path, query = f"{path}/export", {"mimeType": facts.mime}
        elif self._is_abuse_fine:
            query["acknowledgeAbuse"] = "true"
        return self._drive.download_into(path, query, {file_id: resource_key}, part, facts, length)

    def close(self) -> None:
        self._drive.close()
