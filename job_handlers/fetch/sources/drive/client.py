"""Google Drive: the only module that knows Google's client, over `HttpClient`. Every failure is a `FetchError`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlencode

import google.auth
import httplib2  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from google.auth.crypt import RSASigner
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.oauth2 import credentials as user_credentials
from google.oauth2 import service_account
from googleapiclient.discovery import build  # type: ignore[import-untyped]
from googleapiclient.errors import HttpError  # type: ignore[import-untyped]
from msgspec import Struct

from job_handlers.fetch.error_rules import FetchError, Timeouts
from job_handlers.fetch.http_client import REDIRECTS_MAX, HttpAnswer, HttpClient, status_error
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.drive.pacer import Pacer
from job_handlers.fetch.sources.tree import Entry, EntryKind, Listing, TreeChanges
from worker_service.handlers import Permanent

SCOPE = "https://www.googleapis.com/auth/drive.readonly"
PAGE_ENTRIES = 1000
"""Number of entries in an answer; the most that Google allows."""
_HOST = "Google Drive"
_API = "https://www.googleapis.com"
_TOKENS = "https://oauth2.googleapis.com/token"
_ANSWER_BYTES_MAX = 64 << 20
_ERROR_BYTES_MAX = 1 << 16
_ERROR_WORD = re.compile(r"[a-z]+(?:_[a-z]+)*")

_FOLDER = "application/vnd.google-apps.folder"
_SHORTCUT = "application/vnd.google-apps.shortcut"
_NATIVE = "application/vnd.google-apps."
_ENTRY_FIELDS = (
    "id,name,size,md5Checksum,sha256Checksum,headRevisionId,modifiedTime,mimeType,trashed,driveId,resourceKey,parents,"
    "shortcutDetails(targetId,targetMimeType,targetResourceKey),capabilities(canDownload)"
)

_REASONS_OF = {
    "RATE_LIMITED": "rateLimitExceeded userRateLimitExceeded sharingRateLimitExceeded RATE_LIMIT_EXCEEDED",
    "QUOTA_USED_UP": "downloadQuotaExceeded dailyLimitExceeded quotaExceeded",
    "CREDENTIAL_REFUSED": "authError required",
    "SCOPE_MISSING": "insufficientPermissions insufficientScopes ACCESS_TOKEN_SCOPE_INSUFFICIENT",
    "API_DISABLED": "accessNotConfigured SERVICE_DISABLED",
    "DOMAIN_POLICY": "domainPolicy",
    "ACCESS_REFUSED": "insufficientFilePermissions appNotAuthorizedToFile teamDriveMembershipRequired",
    "DOWNLOAD_FORBIDDEN": "cannotDownloadFile",
    "ABUSE_NOT_ACKNOWLEDGED": "cannotDownloadAbusiveFile",
    "NATIVE_DOCUMENT": "fileNotDownloadable",
    "EXPORT_TOO_LARGE": "exportSizeLimitExceeded",
    "NOT_FOUND": "notFound",
    "REQUEST_INVALID": "invalidParameter invalid badRequest",
}
REASONS = {reason: code for code, reasons in _REASONS_OF.items() for reason in reasons.split()}
# For answers whose reason is unknown.
_CODES_BY_STATUS = {400: "REQUEST_INVALID", 401: "CREDENTIAL_REFUSED", 404: "NOT_FOUND", 410: "NOT_FOUND"}


class Drive:
    def __init__(
        self,
        credential: str = "",
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        pacer: Pacer | None = None,
    ) -> None:
        self.credential = credential or drive_credentials.DEFAULT
        self._credentials, self.kind, self.who = _credentials(self.credential)
        self._client = HttpClient(_HOST, timeouts, is_stopping)
        self._root = (drive_credentials.endpoint() or _API) + "/drive/v3/"
        self._pacer = pacer or Pacer(
            shared_by=f"{self._root} {self.who}", raise_if_stopped=self._client.raise_if_stopped
        )
        self._next_chunk: tuple[str, int] | None = None
        service = build(
            "drive",
            "v3",
            http=self,
            static_discovery=True,
            cache_discovery=False,
            client_options={"api_endpoint": self._root},
        )
        # Google's client builds a class with its documentation in each of these calls.
        self._files, self._changes = cache(service.files), cache(service.changes)
        self._about = service.about

    def close(self) -> None:
        self._client.close()

    # --- metadata -------------------------------------------------------------------------------------

    def entry(self, file_id: str, resource_key: str = "") -> Entry:
        call = self._files().get(fileId=file_id, fields=_ENTRY_FIELDS, supportsAllDrives=True)
        return _entry_of(self._execute(call, {file_id: resource_key}), resource_key)

    def children(self, folder_id: str, page: str = "", *, drive_id: str = "", resource_key: str = "") -> Listing:
        quoted = folder_id.replace("\\", "\\\\").replace("'", "\\'")
        return self._list(f"'{quoted}' in parents and trashed = false", page, drive_id, {folder_id: resource_key})

    def shared_with_me(self, page: str = "") -> Listing:
        return self._list("sharedWithMe = true and trashed = false", page, "", {})

    def start_token(self, drive_id: str = "") -> str:
        drive = {"driveId": drive_id} if drive_id else {}
        call = self._changes().getStartPageToken(supportsAllDrives=True, **drive)
        return str(self._execute(call)["startPageToken"])

    def changes(self, page: str, *, drive_id: str = "") -> TreeChanges:
        drive = {"driveId": drive_id} if drive_id else {}
        call = self._changes().list(
            pageToken=page,
            pageSize=PAGE_ENTRIES,
            includeRemoved=True,
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
            fields=f"nextPageToken,newStartPageToken,changes(fileId,removed,changeType,file({_ENTRY_FIELDS}))",
            **drive,
        )
        answer = self._execute(call)
        entries: list[Entry] = []
        gone_ids: list[str] = []
        for change in answer.get("changes", []):
            if change.get("changeType", "file") != "file" or not change.get("fileId"):
                continue
            # Without `file`, the file was removed, or is no longer shared with the account.
            entry = None if change.get("removed") or "file" not in change else _entry_of(change["file"])
            if entry is None or entry.is_trashed:
                gone_ids.append(change["fileId"])
            else:
                entries.append(entry)
        next_page = answer.get("nextPageToken", "")
        return TreeChanges(entries, gone_ids, next_page or answer.get("newStartPageToken") or page, not next_page)

    def account(self) -> str:
        user = self._execute(self._about().get(fields="user(displayName,emailAddress)")).get("user", {})
        return str(user.get("emailAddress") or user.get("displayName") or self.who)

    def _list(self, query: str, page: str, drive_id: str, keys: Mapping[str, str]) -> Listing:
        corpus = {"corpora": "drive", "driveId": drive_id} if drive_id else {"corpora": "user"}
        call = self._files().list(
            q=query,
            pageSize=PAGE_ENTRIES,
            pageToken=page or None,
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
            fields=f"nextPageToken,incompleteSearch,files({_ENTRY_FIELDS})",
            **corpus,
        )
        answer = self._execute(call, keys)
        entries = [entry for file in answer.get("files", []) if not (entry := _entry_of(file)).is_trashed]
        return Listing(entries, answer.get("nextPageToken", ""), bool(answer.get("incompleteSearch")))

    def _execute(self, call: Any, keys: Mapping[str, str] = {}) -> dict[str, Any]:
        call.headers.update(key_header(keys))
        try:
            # No retries here: Google's client ignores Retry-After and half of the reasons. `RetryPolicy` decides.
            answer = call.execute(num_retries=0)
        except HttpError as error:
            raise self._error_of(error.resp.status, error.resp.get("retry-after", ""), error.content) from error
        except ValueError as error:
            raise FetchError("ANSWER_GARBLED", host=_HOST) from error
        if not isinstance(answer, dict):
            raise FetchError("ANSWER_GARBLED", host=_HOST)
        return answer

    def request(
        self, uri: str, method: str = "GET", body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, bytes]:
        # Google's client uses this object as its transport (`httplib2.Http`).
        self._pacer.wait_turn()
        wanted = {name: value for name, value in (headers or {}).items() if name != "accept-encoding"}
        with self._authorized(method, uri, wanted, body.encode() if body is not None else None) as answer:
            content = answer.read(_ANSWER_BYTES_MAX)
        headers_of_answer = {name.lower(): value for name, value in answer.headers.items()}
        return httplib2.Response({**headers_of_answer, "status": str(answer.status)}), content

    # --- bytes ----------------------------------------------------------------------------------------

    def download_into(
        self, part: PartialFile, facts: FileFacts, length: int | None, path: str, query: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> Iterator[int]:  # fmt: skip
        headers = {**headers}
        if length is not None and facts.can_resume:
            headers["Range"] = f"bytes={part.length}-{part.length + length - 1}"
        if self._next_chunk != (path, part.length):
            # Drive's limits count whole downloads, so later chunks of the same download need no turn.
            self._pacer.wait_turn()
        self._next_chunk = None
        with self._authorized("GET", f"{self._root}{path}?{urlencode(query)}", headers) as answer:
            self._check(answer, facts, part.length)
            is_whole = answer.status == 200 and facts.size is not None
            for block in answer.blocks(facts.size if is_whole else length):
                yield part.append(block)
            self._next_chunk = (path, part.length)

    def _check(self, answer: HttpAnswer, facts: FileFacts, offset: int) -> None:
        if answer.status not in (200, 206):
            after = answer.headers.get("Retry-After", "")
            raise self._error_of(answer.status, after, answer.read(_ERROR_BYTES_MAX))
        if answer.headers.get_content_type() == "text/html":
            raise FetchError("PAGE_INSTEAD", host=_HOST, page="a web page")
        if answer.status == 206:
            answer.check_range(offset, facts.size)
        elif offset:
            raise FetchError("RANGE_IGNORED", host=_HOST)
        elif facts.size is None:
            answer.check_length_known()
        elif answer.length not in (None, facts.size):
            raise FetchError("RANGE_WRONG", host=_HOST)

    # --- requests -------------------------------------------------------------------------------------

    @contextmanager
    def _authorized(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> Iterator[HttpAnswer]:
        if not self._credentials.valid:
            self._refresh_token()
        self._credentials.apply(headers)
        with self._client.request(method, url, headers, body, redirects=REDIRECTS_MAX) as answer:
            if answer.status != 401:
                yield answer
                return
            answer.read(_ERROR_BYTES_MAX)
        # Google may forget a token before it expires.
        self._refresh_token()
        self._credentials.apply(headers)
        with self._client.request(method, url, headers, body, redirects=REDIRECTS_MAX) as answer:
            yield answer

    def _request_token(
        self, url: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> _TokenAnswer:  # fmt: skip
        # google-auth uses this method as its transport.
        with self._client.request(method, url, headers or {}, body) as answer:
            return _TokenAnswer(answer.status, dict(answer.headers.items()), answer.read(_ERROR_BYTES_MAX))

    def _refresh_token(self) -> None:
        try:
            # `before_request` would also look up a region, in another thread.
            self._credentials.refresh(self._request_token)
        except RefreshError as error:
            if error.retryable:
                raise FetchError("TOKEN_UNREACHABLE", credential=self.credential) from error
            word = _ERROR_WORD.search(str(error.args[0]) if error.args else "")
            # Drop the cause: Google's message may quote the key.
            raise FetchError(
                "CREDENTIAL_REFUSED", credential=self.credential, reason=word[0] if word else "refused"
            ) from None
        except (FetchError, GoogleAuthError) as error:
            raise FetchError("TOKEN_UNREACHABLE", credential=self.credential) from error

    def _error_of(self, status: int, wait: str, body: bytes) -> FetchError:
        reasons = list(_reasons_of(body))
        general = status_error(_HOST, status, wait)
        code = next((REASONS[reason] for reason in reasons if reason in REASONS), "")
        if not code and status == 403:
            code = "CREDENTIAL_REFUSED" if b"unregistered callers" in body else "BLOCKED"
        code = code or _CODES_BY_STATUS.get(status) or general.code
        if code == "RATE_LIMITED":
            self._pacer.hold_back(general.after or 1.0)
        return FetchError(
            code,
            after=general.requested_seconds,
            host=_HOST,
            who=self.who,
            credential=self.credential,
            status=status,
            reason=reasons[0] if reasons else f"status {status}",
            mime="document of Google's own",
        )


class _TokenAnswer(Struct):
    status: int
    headers: Mapping[str, str]
    data: bytes


# --- answers ------------------------------------------------------------------------------------------


def _entry_of(file: Mapping[str, Any], key: str = "") -> Entry:
    # `key` is the resource key with which the entry was requested.
    mime, shortcut, size = file.get("mimeType", ""), file.get("shortcutDetails", {}), file.get("size")
    may_download = file.get("capabilities", {}).get("canDownload", True)
    kind: EntryKind = "native" if mime.startswith(_NATIVE) else "file"
    if mime in (_FOLDER, _SHORTCUT):
        kind = "folder" if mime == _FOLDER else "shortcut"
    return Entry(
        id=file["id"],
        name=file.get("name", ""),
        kind=kind,
        parent_ids=tuple(file.get("parents", ())),
        mime=mime,
        size=None if size is None else int(size),
        revision=file.get("headRevisionId") or file.get("md5Checksum") or file.get("modifiedTime", ""),
        md5=file.get("md5Checksum", ""),
        sha256=file.get("sha256Checksum", ""),
        modified=file.get("modifiedTime", ""),
        key=shortcut.get("targetResourceKey", "") if kind == "shortcut" else file.get("resourceKey") or key,
        corpus=file.get("driveId", ""),
        target_id=shortcut.get("targetId", ""),
        refusal="" if may_download else "its owner does not let us download it",
        is_trashed=bool(file.get("trashed")),
    )


def _reasons_of(body: bytes) -> Iterator[str]:
    try:
        error = json.loads(body)["error"]
        for detail in [*error.get("errors", []), *error.get("details", [])]:
            if isinstance(detail.get("reason"), str):
                yield detail["reason"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def key_header(keys: Mapping[str, str]) -> dict[str, str]:
    pairs = ",".join(f"{file_id}/{key}" for file_id, key in keys.items() if key)
    return {"X-Goog-Drive-Resource-Keys": pairs} if pairs else {}


# --- credentials --------------------------------------------------------------------------------------


# Google's classes have no types.
_ServiceAccount: Any = service_account.Credentials
_User: Any = user_credentials.Credentials
_Signer: Any = RSASigner


def _credentials(name: str) -> tuple[Any, str, str]:
    """Return credentials, their kind, and their account."""
    if name == drive_credentials.APPLICATION_DEFAULT:
        try:
            found, _ = google.auth.default(scopes=[SCOPE])
        except DefaultCredentialsError as error:
            raise Permanent(
                "CREDENTIAL_ABSENT", "there are no application default credentials", f"set {drive_credentials.ADC_FILE}"
            ) from error
        who = getattr(found, "service_account_email", "") or "the account of this worker"
        return found, "application default credentials", who
    info = drive_credentials.read_credential(name)
    try:
        return _from_key_file(info, name)
    except (ValueError, KeyError, TypeError, AttributeError, GoogleAuthError):
        # Drop the cause, which may quote the key.
        raise Permanent(
            "CREDENTIAL_INVALID", f"the credential {name} is not a complete key file of Google", "download it again"
        ) from None


def _from_key_file(info: Mapping[str, Any], name: str) -> tuple[Any, str, str]:
    if info.get("type") == "service_account":
        # The key file names the user to impersonate, so that a job cannot choose one.
        subject = info.get("subject")
        found = _ServiceAccount(
            _signer(info),
            info["client_email"],
            info["token_uri"],
            scopes=[SCOPE],
            subject=subject,
            universe_domain=info.get("universe_domain", "googleapis.com"),
        )
        return found, "service account" + (f" as {subject}" if subject else ""), subject or info["client_email"]
    if info.get("type") == "authorized_user":
        # Google's own loader would ignore the token URI that tests need.
        tokens = f"{drive_credentials.endpoint()}/token" if drive_credentials.endpoint() else _TOKENS
        user = _User(
            None,
            refresh_token=info["refresh_token"],
            client_id=info["client_id"],
            client_secret=info["client_secret"],
            token_uri=tokens,
        )
        return user, "user token", str(info.get("account") or f"the account of the credential {name}")
    raise ValueError


def _signer(info: Mapping[str, Any]) -> Any:
    # Do not check that the key's numbers are prime, which takes longer than a small download.
    key = load_pem_private_key(info["private_key"].encode(), None, unsafe_skip_rsa_key_validation=True)
    return _Signer(key, info.get("private_key_id"))
