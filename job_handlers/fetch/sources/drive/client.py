"""The client of the Drive API, which `tree` and `file` call. Every failure is a `FetchError`.

Only this module knows Google's libraries: they prepare requests and tokens, and `HttpClient` sends them. Files of some
links are found only with a resource key beside the id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

PAGE_ENTRIES = 1000  # Of one listing or list of changes; the most that Google allows.
_SCOPE = "https://www.googleapis.com/auth/drive.readonly"
_HOST = "Google Drive"  # In messages.
_API_URL = "https://www.googleapis.com"
_TOKEN_URL = "https://oauth2.googleapis.com/token"
_METADATA_BYTES_MAX = 64 << 20  # So that no answer fills the memory.
_ERROR_BYTES_MAX = 1 << 16
_OAUTH_ERROR = re.compile(r"[a-z]+(?:_[a-z]+)*")  # Such as invalid_grant.

_FOLDER_TYPE = "application/vnd.google-apps.folder"
_SHORTCUT_TYPE = "application/vnd.google-apps.shortcut"
_NATIVE_TYPES_PREFIX = "application/vnd.google-apps."  # Documents that have no file, such as those of Google Docs.
_ENTRY_FIELDS = (
    "id,name,size,md5Checksum,sha256Checksum,headRevisionId,modifiedTime,mimeType,trashed,driveId,resourceKey,parents,"
    "shortcutDetails(targetId,targetMimeType,targetResourceKey),capabilities(canDownload)"
)

_REASONS_BY_CODE = {
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
CODE_BY_REASON = {reason: code for code, reasons in _REASONS_BY_CODE.items() for reason in reasons.split()}
# For answers whose reason is unknown.
_CODE_BY_STATUS = {400: "REQUEST_INVALID", 401: "CREDENTIAL_REFUSED", 404: "NOT_FOUND", 410: "NOT_FOUND"}


class MediaRequest(Struct, frozen=True):
    path: str
    """Relative to `drive/v3/`."""
    query: Mapping[str, str]
    headers: Mapping[str, str]


class _Position(Struct, frozen=True):
    path: str
    offset: int


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
        self.login = _login_of(self.credential)
        self._client = HttpClient(_HOST, timeouts, is_stopping)
        self._root = (drive_credentials.endpoint() or _API_URL) + "/drive/v3/"
        self._pacer = pacer or Pacer(
            shared_by=f"{self._root} {self.login.account}", raise_if_stopped=self._client.raise_if_stopped
        )
        self._end_of_chunk: _Position | None = None
        service = build(
            "drive",
            "v3",
            http=self,
            static_discovery=True,
            cache_discovery=False,
            client_options={"api_endpoint": self._root},
        )
        # Cached, because each call builds a class with all its methods and their documentation.
        self._files, self._changes = cache(service.files), cache(service.changes)
        self._about = service.about

    def close(self) -> None:
        self._client.close()

    # --- metadata -------------------------------------------------------------------------------------

    def entry(self, file_id: str, resource_key: str = "") -> Entry:
        call = self._files().get(fileId=file_id, fields=_ENTRY_FIELDS, supportsAllDrives=True)
        return _entry_of(self._execute(call, {file_id: resource_key}), resource_key)

    def children(self, folder_id: str, page_token: str = "", *, drive_id: str = "", resource_key: str = "") -> Listing:
        quoted_id = folder_id.replace("\\", "\\\\").replace("'", "\\'")
        query = f"'{quoted_id}' in parents and trashed = false"
        return self._list(query, page_token, drive_id, {folder_id: resource_key})

    def shared_with_me(self, page_token: str = "") -> Listing:
        return self._list("sharedWithMe = true and trashed = false", page_token, "", {})

    def token_of_later_changes(self, drive_id: str = "") -> str:
        drive = {"driveId": drive_id} if drive_id else {}
        call = self._changes().getStartPageToken(supportsAllDrives=True, **drive)
        return str(self._execute(call)["startPageToken"])

    def changes(self, token: str, *, drive_id: str = "") -> TreeChanges:
        drive = {"driveId": drive_id} if drive_id else {}
        call = self._changes().list(
            pageToken=token,
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
        next_page_token = answer.get("nextPageToken", "")
        next_token = next_page_token or answer.get("newStartPageToken") or token
        return TreeChanges(entries, gone_ids, next_token, is_last=not next_page_token)

    def request_account(self) -> str:
        user = self._execute(self._about().get(fields="user(displayName,emailAddress)")).get("user", {})
        return str(user.get("emailAddress") or user.get("displayName") or self.login.account)

    def _list(self, query: str, page_token: str, drive_id: str, resource_key_by_id: Mapping[str, str]) -> Listing:
        corpus = {"corpora": "drive", "driveId": drive_id} if drive_id else {"corpora": "user"}
        call = self._files().list(
            q=query,
            pageSize=PAGE_ENTRIES,
            pageToken=page_token or None,
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
            fields=f"nextPageToken,incompleteSearch,files({_ENTRY_FIELDS})",
            **corpus,
        )
        answer = self._execute(call, resource_key_by_id)
        entries = [_entry_of(file) for file in answer.get("files", [])]
        entries_outside_trash = [entry for entry in entries if not entry.is_trashed]
        return Listing(
            entries_outside_trash, answer.get("nextPageToken", ""), is_partial=bool(answer.get("incompleteSearch"))
        )

    def _execute(self, call: Any, resource_key_by_id: Mapping[str, str] = {}) -> dict[str, Any]:
        call.headers.update(resource_key_header(resource_key_by_id))
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
        """Send a request of Google's client, which calls this object as its `httplib2.Http`."""
        self._pacer.wait_turn()
        # Google's client would ask for gzip, which `HttpClient` does not unpack.
        kept_headers = {name: value for name, value in (headers or {}).items() if name != "accept-encoding"}
        encoded_body = None if body is None else body.encode()
        with self._request_with_token(method, uri, kept_headers, encoded_body) as answer:
            content = answer.read(_METADATA_BYTES_MAX)
        answer_headers = {name.lower(): value for name, value in answer.headers.items()}
        return httplib2.Response({**answer_headers, "status": str(answer.status)}), content

    # --- bytes ----------------------------------------------------------------------------------------

    def download_into(
        self, part: PartialFile, facts: FileFacts, length: int | None, media: MediaRequest
    ) -> Iterator[int]:
        headers = {**media.headers}
        if length is not None and facts.can_resume:
            headers["Range"] = f"bytes={part.length}-{part.length + length - 1}"
        continues_last_chunk = self._end_of_chunk == _Position(media.path, part.length)
        if not continues_last_chunk:
            # Drive's limits count whole downloads, so later chunks of the same download need no turn.
            self._pacer.wait_turn()
        self._end_of_chunk = None
        with self._request_with_token("GET", f"{self._root}{media.path}?{urlencode(media.query)}", headers) as answer:
            self._raise_unless_bytes_of_file(answer, facts, part.length)
            # The server may ignore the range.
            is_whole_file = answer.status == 200 and facts.size is not None
            for block in answer.blocks(facts.size if is_whole_file else length):
                yield part.append(block)
            self._end_of_chunk = _Position(media.path, part.length)

    def _raise_unless_bytes_of_file(self, answer: HttpAnswer, facts: FileFacts, offset: int) -> None:
        if answer.status not in (200, 206):
            retry_after_header = answer.headers.get("Retry-After", "")
            raise self._error_of(answer.status, retry_after_header, answer.read(_ERROR_BYTES_MAX))
        if answer.headers.get_content_type() == "text/html":
            raise FetchError("PAGE_INSTEAD", host=_HOST, page="a web page")
        if answer.status == 206:
            answer.check_range(offset, facts.size)
        elif offset:
            raise FetchError("RANGE_IGNORED", host=_HOST)
        elif facts.size is None:
            # An export.
            answer.check_length_known()
        elif answer.length not in (None, facts.size):
            raise FetchError("RANGE_WRONG", host=_HOST)

    # --- requests -------------------------------------------------------------------------------------

    @contextmanager
    def _request_with_token(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> Iterator[HttpAnswer]:
        if not self.login.google_credentials.valid:
            self._refresh_token()
        self.login.google_credentials.apply(headers)
        with self._client.request(method, url, headers, body, redirects=REDIRECTS_MAX) as answer:
            if answer.status != 401:
                yield answer
                return
            # An answer that is read to its end keeps the connection.
            answer.read(_ERROR_BYTES_MAX)
        # Google may forget a token before it expires.
        self._refresh_token()
        self.login.google_credentials.apply(headers)
        with self._client.request(method, url, headers, body, redirects=REDIRECTS_MAX) as answer:
            yield answer

    def _send_for_google_auth(
        self, url: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> _TokenAnswer:  # fmt: skip
        # google-auth also gives a time limit; `HttpClient` has its own.
        with self._client.request(method, url, headers or {}, body) as answer:
            return _TokenAnswer(answer.status, dict(answer.headers.items()), answer.read(_ERROR_BYTES_MAX))

    def _refresh_token(self) -> None:
        try:
            # The usual `before_request` would also look up a region, in another thread.
            self.login.google_credentials.refresh(self._send_for_google_auth)
        except RefreshError as error:
            if error.retryable:
                raise FetchError("TOKEN_UNREACHABLE", credential=self.credential) from error
            oauth_error = _OAUTH_ERROR.search(str(error.args[0]) if error.args else "")
            reason = oauth_error[0] if oauth_error else "refused"
            # Drop the cause: Google's message may quote the key.
            raise FetchError("CREDENTIAL_REFUSED", credential=self.credential, reason=reason) from None
        except (FetchError, GoogleAuthError) as error:
            raise FetchError("TOKEN_UNREACHABLE", credential=self.credential) from error

    def _error_of(self, status: int, retry_after_header: str, body: bytes) -> FetchError:
        reasons = list(_reasons_in(body))
        status_only = status_error(_HOST, status, retry_after_header)
        code = _code_of(status, reasons, body) or status_only.code
        if code == "RATE_LIMITED":
            self._pacer.hold_back_account(status_only.wait_seconds or 1.0)
        return FetchError(
            code,
            after=status_only.requested_seconds,
            host=_HOST,
            who=self.login.account,
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


def _entry_of(file: Mapping[str, Any], resource_key_of_request: str = "") -> Entry:
    mime, shortcut, size = file.get("mimeType", ""), file.get("shortcutDetails", {}), file.get("size")
    can_download = file.get("capabilities", {}).get("canDownload", True)
    kind = _kind_of(mime)
    own_key = file.get("resourceKey") or resource_key_of_request
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
        key=shortcut.get("targetResourceKey", "") if kind == "shortcut" else own_key,
        corpus=file.get("driveId", ""),
        target_id=shortcut.get("targetId", ""),
        refusal="" if can_download else "its owner does not let us download it",
        is_trashed=bool(file.get("trashed")),
    )


def _kind_of(mime: str) -> EntryKind:
    if mime == _FOLDER_TYPE:
        return "folder"
    if mime == _SHORTCUT_TYPE:
        return "shortcut"
    return "native" if mime.startswith(_NATIVE_TYPES_PREFIX) else "file"


def _code_of(status: int, reasons: Sequence[str], body: bytes) -> str:
    """Return '' if only `status_error` knows the code."""
    for reason in reasons:
        if reason in CODE_BY_REASON:
            return CODE_BY_REASON[reason]
    if status == 403:
        # Google's words for a request that has no token.
        return "CREDENTIAL_REFUSED" if b"unregistered callers" in body else "BLOCKED"
    return _CODE_BY_STATUS.get(status, "")


def _reasons_in(body: bytes) -> Iterator[str]:
    try:
        error = json.loads(body)["error"]
        for detail in [*error.get("errors", []), *error.get("details", [])]:
            if isinstance(detail.get("reason"), str):
                yield detail["reason"]
    except (ValueError, KeyError, TypeError, AttributeError):
        # The body is not Drive's JSON; it may be the page of a proxy.
        return


def resource_key_header(resource_key_by_id: Mapping[str, str]) -> dict[str, str]:
    pairs = ",".join(f"{file_id}/{key}" for file_id, key in resource_key_by_id.items() if key)
    return {"X-Goog-Drive-Resource-Keys": pairs} if pairs else {}


# --- credentials --------------------------------------------------------------------------------------


# Google's classes have no types.
_ServiceAccount: Any = service_account.Credentials
_User: Any = user_credentials.Credentials
_Signer: Any = RSASigner


class Login(Struct, frozen=True):
    google_credentials: Any
    kind: str
    """Such as "service account as ann@example.com"."""
    account: str
    """Its e-mail address, or a description."""


def _login_of(credential: str) -> Login:
    if credential == drive_credentials.APPLICATION_DEFAULT:
        return _application_default_login()
    key_file = drive_credentials.read_credential(credential)
    try:
        if key_file.get("type") == "service_account":
            return _service_account_login(key_file)
        if key_file.get("type") == "authorized_user":
            return _user_login(key_file, credential)
        raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, GoogleAuthError):
        # Drop the cause, which may quote the key.
        raise Permanent(
            "CREDENTIAL_INVALID",
            f"the credential {credential} is not a complete key file of Google",
            "download it again",
        ) from None


def _application_default_login() -> Login:
    try:
        google_credentials, _project = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        raise Permanent(
            "CREDENTIAL_ABSENT", "there are no application default credentials", f"set {drive_credentials.ADC_FILE}"
        ) from error
    account = getattr(google_credentials, "service_account_email", "") or "the account of this worker"
    return Login(google_credentials, "application default credentials", account)


def _service_account_login(key_file: Mapping[str, Any]) -> Login:
    # The key file names the user to impersonate, so that a job cannot choose one.
    impersonated_user = key_file.get("subject")
    google_credentials = _ServiceAccount(
        _signer(key_file),
        key_file["client_email"],
        key_file["token_uri"],
        scopes=[_SCOPE],
        subject=impersonated_user,
        universe_domain=key_file.get("universe_domain", "googleapis.com"),
    )
    if impersonated_user:
        return Login(google_credentials, f"service account as {impersonated_user}", impersonated_user)
    return Login(google_credentials, "service account", key_file["client_email"])


def _user_login(key_file: Mapping[str, Any], credential: str) -> Login:
    # Google's own loader would ignore the token URI that tests need.
    endpoint = drive_credentials.endpoint()
    google_credentials = _User(
        None,
        refresh_token=key_file["refresh_token"],
        client_id=key_file["client_id"],
        client_secret=key_file["client_secret"],
        token_uri=f"{endpoint}/token" if endpoint else _TOKEN_URL,
    )
    account = str(key_file.get("account") or f"the account of the credential {credential}")
    return Login(google_credentials, "user token", account)


def _signer(key_file: Mapping[str, Any]) -> Any:
    # Do not check that the key's numbers are prime, which takes longer than a small download.
    private_key = load_pem_private_key(key_file["private_key"].encode(), None, unsafe_skip_rsa_key_validation=True)
    return _Signer(private_key, key_file.get("private_key_id"))
