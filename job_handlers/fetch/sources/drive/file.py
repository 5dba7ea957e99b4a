"""One file of Google Drive."""

from __future__ import annotations

from collections.abc import Iterator

from job_handlers.fetch.error_rules import FetchError
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources.drive.client import Drive, key_header

EXPORTS = {
    "pdf": "application/pdf",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "csv": "text/csv",
}


class DriveFile:
    def __init__(
        self, drive: Drive, file_id: str, resource_key: str = "", *, export: str = "", acknowledge_abuse: bool = False
    ) -> None:
        self._drive = drive
        self._file_id, self._resource_key = file_id, resource_key
        self._target = (file_id, resource_key)
        self._export = EXPORTS.get(export, export)
        self._acknowledge_abuse = acknowledge_abuse

    def facts(self) -> FileFacts:
        entry = self._drive.entry(self._file_id, self._resource_key)
        if entry.kind == "shortcut":
            entry = self._drive.entry(entry.target_id, entry.key)
        self._target = (entry.id, entry.key or self._resource_key)
        if entry.is_trashed:
            raise FetchError("IN_TRASH")
        if entry.kind == "folder":
            raise FetchError("NO_FILE", what="a folder")
        if entry.refusal:
            raise FetchError("DOWNLOAD_FORBIDDEN", who=self._drive.who)
        revision = f"{entry.id} {entry.revision}"
        if entry.kind != "native":
            return FileFacts(entry.name, entry.mime, entry.size, revision, entry.md5, entry.sha256)
        if not self._export:
            raise FetchError("NATIVE_DOCUMENT", mime=entry.mime.rpartition(".")[2])
        # An export has no ranges, no size and no digest.
        return FileFacts(entry.name, self._export, None, f"{revision} {self._export}", can_resume=False)

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        file_id, resource_key = self._target
        query = {"alt": "media", "supportsAllDrives": "true"}
        path = f"files/{file_id}"
        if facts.size is None:
            path, query = f"{path}/export", {"mimeType": facts.mime}
        elif self._acknowledge_abuse:
            query["acknowledgeAbuse"] = "true"
        return self._drive.download_into(part, facts, length, path, query, key_header({file_id: resource_key}))

    def close(self) -> None:
        self._drive.close()
