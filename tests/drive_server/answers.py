"""The answers of Drive without faults."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.drive_server.faults import LoggedRequest
from tests.drive_server.language import InvalidParameter, read_query, select_fields
from tests.drive_server.model import ROOT, Item

if TYPE_CHECKING:
    from tests.drive_server.server import DriveServer

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_EXPORT_BYTES_MAX = 10 << 20
_JSON = {"Content-Type": "application/json; charset=UTF-8"}
_FILE_PARAMETERS = {"alt", "fields", "supportsAllDrives", "acknowledgeAbuse", "prettyPrint"}
_LIST_PARAMETERS = {"alt", "q", "fields", "pageSize", "pageToken", "supportsAllDrives", "includeItemsFromAllDrives",
                    "corpora", "driveId", "orderBy", "spaces"}  # fmt: skip
_CHANGE_PARAMETERS = {"alt", "fields", "pageSize", "pageToken", "supportsAllDrives", "includeItemsFromAllDrives",
                      "includeRemoved", "driveId", "restrictToMyDrive", "spaces"}  # fmt: skip


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    total: int | None = None
    is_chunked: bool = False
    is_without_length: bool = False
    ends_connection: bool = False

    def set_content_range(self, begin: int, length: int) -> None:
        self.headers["Content-Range"] = f"bytes {begin}-{begin + length - 1}/{self.total}"


@dataclass
class PlainFile:
    """A file of an ordinary web server."""

    content: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/pdf", "ETag": '"1"'})
    has_ranges: bool = True
    is_chunked: bool = False
    is_without_length: bool = False
    redirect: str = ""


class RequestError(Exception):
    def __init__(self, status: int, reason: str, message: str = "", location: str = "") -> None:
        super().__init__(reason)
        self.answer = error(status, reason, message, location)


def error(status: int, reason: str, message: str = "", location: str = "") -> Answer:
    detail: dict[str, str] = {"domain": "global", "reason": reason, "message": message or reason}
    if location:
        detail |= {"locationType": "parameter", "location": location}
    content: dict[str, Any] = {"code": status, "message": message or reason}
    if reason:
        content["errors"] = [detail]
    return Answer(status, json.dumps({"error": content}, indent=1).encode(), dict(_JSON))


class Answers:
    def __init__(self, drive: DriveServer, request: LoggedRequest, body: bytes, ignores_range: bool = False) -> None:
        self.drive, self.request, self.query, self.body = drive, request, request.query, body
        self._ignores_range = ignores_range
        self._account = ""

    def answer(self) -> Answer:
        try:
            with self.drive.store.lock:
                return self._answer()
        except RequestError as refused:
            return refused.answer
        except InvalidParameter as invalid:
            name = str(invalid)
            reason = "invalidParameter" if name == "fields" else "invalid"
            return error(400, reason, f"Invalid value for {name}", name)

    def _answer(self) -> Answer:
        path = self.request.path
        if self.request.on == "token":
            status, content = self.drive.tokens.answer(self.body)
            return Answer(status, json.dumps(content).encode(), dict(_JSON))
        if self.request.on == "plain":
            return self._plain(path.removeprefix("/plain/"))
        if not path.startswith("/drive/v3/"):
            return Answer(404, b"<!DOCTYPE html><html>Not Found</html>", {"Content-Type": "text/html"})
        self._authorize()
        parts = path.removeprefix("/drive/v3/").split("/")
        match parts:
            case ["about"]:
                return self._about()
            case ["files"]:
                return self._list()
            case ["files", file_id]:
                return self._file(file_id)
            case ["files", file_id, "export"]:
                return self._export(file_id)
            case ["changes", "startPageToken"]:
                self._allow_parameters({"alt", "fields", "driveId", "supportsAllDrives"})
                self._drive_id(needs_corpora=False)
                return _json_answer(
                    {"kind": "drive#startPageToken", "startPageToken": str(len(self.drive.store.changes))}
                )
            case ["changes"]:
                return self._changes()
        raise RequestError(404, "notFound")

    def _authorize(self) -> None:
        header = self.request.headers.get("authorization", "")
        if not header:
            raise RequestError(
                403, "forbidden", "Method doesn't allow unregistered callers (callers without established identity)."
            )
        account_and_scope = self.drive.tokens.account_and_scope(header.removeprefix("Bearer "))
        if account_and_scope is None:
            raise RequestError(401, "authError", "Invalid Credentials")
        self._account, scope = account_and_scope
        if "drive" not in scope:
            raise RequestError(403, "insufficientPermissions", "Insufficient Permission")

    def _allow_parameters(self, allowed: set[str]) -> None:
        for name in self.query:
            if name not in allowed:
                raise RequestError(400, "invalidParameter", f"Unknown name {name}", name)

    # --- one file -------------------------------------------------------------------------------------

    def _item(self, file_id: str) -> Item:
        item = self.drive.store.items.get(file_id)
        keys = self.request.headers.get("x-goog-drive-resource-keys", "").split(",")
        if (
            item is None
            or self._account not in item.readers
            or (item.drive_id and self.query.get("supportsAllDrives") != "true")
            or (item.resource_key and f"{file_id}/{item.resource_key}" not in keys)
        ):
            raise RequestError(404, "notFound", f"File not found: {file_id}.", "fileId")
        return item

    def _file(self, file_id: str) -> Answer:
        self._allow_parameters(_FILE_PARAMETERS)
        item = self._item(file_id)
        if self.query.get("alt") != "media":
            return _json_answer(
                select_fields(item.as_json(self.drive.store), self.query.get("fields", "kind,id,name,mimeType"))
            )
        if item.is_native:
            raise RequestError(403, "fileNotDownloadable", "Only files with binary content can be downloaded.", "alt")
        if not item.can_download:
            raise RequestError(403, "cannotDownloadFile", "This file cannot be downloaded by the user.")
        if item.is_abusive and self.query.get("acknowledgeAbuse") != "true":
            raise RequestError(403, "cannotDownloadAbusiveFile", "This file has been identified as malware or spam.")
        return self._bytes(item.content, {"Content-Type": item.mime, "X-GUploader-UploadID": "x"})

    def _export(self, file_id: str) -> Answer:
        self._allow_parameters({"mimeType", "alt"})
        self.query["supportsAllDrives"] = "true"
        item = self._item(file_id)
        if not item.is_native:
            raise RequestError(403, "fileNotExportable", "Export only supports Docs Editors files.")
        if not self.query.get("mimeType"):
            raise RequestError(400, "required", "Required parameter: mimeType", "mimeType")
        if len(item.content) > _EXPORT_BYTES_MAX:
            raise RequestError(403, "exportSizeLimitExceeded", "This file is too large to be exported.")
        # Drive ignores the range of an export.
        return Answer(200, item.content, {"Content-Type": self.query["mimeType"]}, is_chunked=True)

    def _bytes(self, content: bytes, headers: dict[str, str]) -> Answer:
        bytes_range = _RANGE.fullmatch(self.request.headers.get("range", ""))
        if bytes_range is None or self._ignores_range:
            return Answer(200, content, headers, total=len(content))
        begin, end = int(bytes_range[1]), int(bytes_range[2]) + 1 if bytes_range[2] else len(content)
        if begin >= len(content):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        answer = Answer(206, content[begin:end], headers, total=len(content))
        answer.set_content_range(begin, len(answer.body))
        return answer

    def _plain(self, name: str) -> Answer:
        file = self.drive.plain.get(name)
        if file is None:
            return Answer(404, b"no such file", {"Content-Type": "text/plain"})
        if file.redirect:
            return Answer(302, b"", {"Location": file.redirect})
        expected = self.request.headers.get("if-range")
        has_changed = expected not in (None, file.headers.get("ETag"), file.headers.get("Last-Modified"))
        self._ignores_range = self._ignores_range or has_changed or not file.has_ranges
        answer = self._bytes(file.content, dict(file.headers))
        answer.is_chunked = file.is_chunked
        answer.is_without_length = answer.ends_connection = file.is_without_length
        return answer

    # --- many files -----------------------------------------------------------------------------------

    def _about(self) -> Answer:
        if "fields" not in self.query:
            raise RequestError(400, "required", "The 'fields' parameter is required for this method.", "fields")
        user = {"kind": "drive#user", "displayName": self._account, "emailAddress": self._account, "me": True}
        return _json_answer(select_fields({"user": user}, self.query["fields"]))

    def _drive_id(self, needs_corpora: bool = True) -> str:
        drive_id = self.query.get("driveId", "")
        if needs_corpora and bool(drive_id) != (self.query.get("corpora") == "drive"):
            raise RequestError(400, "invalidParameter", "driveId and corpora=drive belong together", "corpora")
        if drive_id and self.query.get("supportsAllDrives") != "true":
            raise RequestError(403, "teamDrivesParameterRequired", "supportsAllDrives is required", "supportsAllDrives")
        if drive_id and drive_id not in self.drive.store.drives:
            raise RequestError(404, "notFound", f"Shared drive not found: {drive_id}", "driveId")
        return drive_id

    def _page_begin_and_size(self) -> tuple[int, int]:
        size, token = self.query.get("pageSize", "100"), self.query.get("pageToken", "0")
        if not size.isdigit() or not 1 <= int(size) <= 1000:
            raise RequestError(400, "invalidParameter", "Values must be within the range: [1, 1000]", "pageSize")
        if not token.isdigit():
            raise RequestError(400, "invalid", "Invalid Value", "pageToken")
        return int(token), min(int(size), self.drive.page_size_max)

    def _list(self) -> Answer:
        self._allow_parameters(_LIST_PARAMETERS)
        matches_query = read_query(self.query["q"]) if "q" in self.query else (lambda item: True)
        drive_id = self._drive_id()
        begin, size = self._page_begin_and_size()
        everywhere = self.query.get("includeItemsFromAllDrives") == "true"
        found = [
            item
            for item in self.drive.store.items.values()
            if self._account in item.readers
            and item.id not in (ROOT, item.drive_id)
            and (item.drive_id == drive_id if drive_id else everywhere or not item.drive_id)
            and matches_query(item)
        ]
        content: dict[str, Any] = {"kind": "drive#fileList", "incompleteSearch": self.drive.partial_listings > 0}
        if self.drive.partial_listings:
            self.drive.partial_listings -= 1
            found = found[1:]
        content["files"] = [item.as_json(self.drive.store) for item in found[begin : begin + size]]
        if begin + size < len(found):
            content["nextPageToken"] = str(begin + size)
        return _json_answer(select_fields(content, self.query.get("fields", "*")))

    def _changes(self) -> Answer:
        self._allow_parameters(_CHANGE_PARAMETERS)
        if "pageToken" not in self.query:
            raise RequestError(400, "required", "Required parameter: pageToken", "pageToken")
        drive_id = self._drive_id(needs_corpora=False)
        begin, size = self._page_begin_and_size()
        store = self.drive.store
        if begin > len(store.changes):
            raise RequestError(400, "invalid", "Invalid Value", "pageToken")
        end = min(begin + size, len(store.changes))
        content: dict[str, Any] = {"kind": "drive#changeList", "changes": []}
        for at, change in enumerate(store.changes[begin:end], begin):
            is_last = all(later.file_id != change.file_id for later in store.changes[at + 1 :])
            if not is_last or (drive_id and change.drive_id != drive_id):
                continue
            item = store.items.get(change.file_id)
            is_gone = item is None or self._account not in item.readers
            entry: dict[str, Any] = {"changeType": "file", "fileId": change.file_id, "removed": is_gone}
            if item is not None and not is_gone:
                entry["file"] = item.as_json(store)
            content["changes"].append(entry)
        token = "nextPageToken" if end < len(store.changes) else "newStartPageToken"
        content[token] = str(end)
        return _json_answer(select_fields(content, self.query.get("fields", "*")))


def _json_answer(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), dict(_JSON))
