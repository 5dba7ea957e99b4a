"""A file of Google Drive to download, or an online document to export."""

from __future__ import annotations

from collections.abc import Iterator

from job_handlers.fetch.error_rules import FetchError
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources.drive.client import Drive, MediaRequest, resource_key_header

_MIME_BY_EXPORT = {
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
        # Id and key of the target, if the file is a shortcut.
        self._media_id, self._media_key = file_id, resource_key
        self._export_mime = _MIME_BY_EXPORT.get(export, export)
        self._acknowledge_abuse = acknowledge_abuse

    def facts(self) -> FileFacts:
        entry = self._drive.entry(self._file_id, self._resource_key)
        if entry.kind == "shortcut":
            entry = self._drive.entry(entry.target_id, entry.key)
        self._media_id, self._media_key = entry.id, entry.key or self._resource_key
        if entry.is_trashed:
            raise FetchError("IN_TRASH")
        if entry.kind == "folder":
            raise FetchError("NO_FILE", what="a folder")
        if entry.refusal:
            raise FetchError("DOWNLOAD_FORBIDDEN", who=self._drive.login.account)
        revision = f"{entry.id} {entry.revision}"
        if entry.kind != "native":
            return FileFacts(entry.name, entry.mime, entry.size, revision, entry.md5, entry.sha256)
        if not self._export_mime:
            raise FetchError("NATIVE_DOCUMENT", mime=entry.mime.rpartition(".")[2])
        # An export has no ranges, no size and no digest.
        return FileFacts(entry.name, self._export_mime, None, f"{revision} {self._export_mime}", can_resume=False)

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        path, query = f"files/{self._media_id}", {"alt": "media", "supportsAllDrives": "true"}
        is_export = facts.size is None
        if is_export:
            path, query = f"{path}/export", {"mimeType": facts.mime}
        elif self._acknowledge_abuse:
            query["acknowledgeAbuse"] = "true"
        headers = resource_key_header({self._media_id: self._media_key})
        return self._drive.download_into(part, facts, length, MediaRequest(path, query, headers))

    def close(self) -> None:
        self._drive.close()
