"""Google Drive: the one file that knows Google's client.

Metadata goes through google-api-python-client, bytes through google-auth's session; both over connections that a
watchdog can shut, so never through a proxy. Every failure leaves as a `FetchError`. One `Drive` belongs to one attempt
and one thread. What a crawl needs is here too: children, changes, start tokens; how it walks is told elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import google.auth
import httplib2  # type: ignore[import-untyped]
import requests
import urllib3
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from google.auth.crypt import RSASigner
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2 import credentials as user_credentials
from google.oauth2 import service_account
from googleapiclient.discovery import build  # type: ignore[import-untyped]
from googleapiclient.errors import HttpError  # type: ignore[import-untyped]
from requests.adapters import HTTPAdapter

from job_handlers.fetch.errors import FetchError, Timeouts
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.drive.pacer import Pacer
from job_handlers.fetch.sources.http_bodies import Headers, Watchdog, Wire, check_range, of_status
from job_handlers.fetch.sources.tree import Entry, EntryKind, Listing, TreeChanges
from worker_service.handlers import Permanent

SCOPE = "https://www.googleapis.com/auth/drive.readonly"
_HOST = "Google Drive"
_API = "https://www.googleapis.com"
_TOKENS = "https://oauth2.googleapis.com/token"
_ANSWER_BYTES_MAX = 64 << 20
_ERROR_WORD = re.compile(r"[a-z]+(?:_[a-z]+)*")
_REDIRECTS_MAX = 5

_FOLDER = "application/vnd.google-apps.folder"
_SHORTCUT = "application/vnd.google-apps.shortcut"
_NATIVE = "application/vnd.google-apps."
_ENTRY_FIELDS = (
    "id,name,size,md5Checksum,sha256Checksum,headRevisionId,modifiedTime,mimeType,trashed,driveId,resourceKey,parents,"
    "shortcutDetails(targetId,targetMimeType,targetResourceKey),capabilities(canDownload)"
)

REASONS: Mapping[str, str] = {
    "rateLimitExceeded": "RATE_LIMITED",
    "userRateLimitExceeded": "RATE_LIMITED",
    "sharingRateLimitExceeded": "RATE_LIMITED",
    "RATE_LIMIT_EXCEEDED": "RATE_LIMITED",
    "downloadQuotaExceeded": "QUOTA_USED_UP",
    "dailyLimitExceeded": "QUOTA_USED_UP",
    "quotaExceeded": "QUOTA_USED_UP",
    "authError": "CREDENTIAL_REFUSED",
    "required": "CREDENTIAL_REFUSED",
    "insufficientPermissions": "SCOPE_MISSING",
    "insufficientScopes": "SCOPE_MISSING",
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": "SCOPE_MISSING",
    "accessNotConfigured": "API_DISABLED",
    "SERVICE_DISABLED": "API_DISABLED",
    "domainPolicy": "DOMAIN_POLICY",
    "insufficientFilePermissions": "ACCESS_REFUSED",
    "appNotAuthorizedToFile": "ACCESS_REFUSED",
    "teamDriveMembershipRequired": "ACCESS_REFUSED",
    "cannotDownloadFile": "DOWNLOAD_FORBIDDEN",
    "cannotDownloadAbusiveFile": "ABUSE_NOT_ACKNOWLEDGED",
    "fileNotDownloadable": "NATIVE_DOCUMENT",
    "exportSizeLimitExceeded": "EXPORT_TOO_LARGE",
    "notFound": "NOT_FOUND",
    "invalidParameter": "REQUEST_INVALID",
    "invalid": "REQUEST_INVALID",
    "badRequest": "REQUEST_INVALID",
}
"""What Drive says, as a code of `troubles.RULES`. What is not here goes by its status."""


class Drive:
    def __init__(
        self,
        credential: str = "",
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        pacer: Pacer | None = None,
    ) -> None:
        self.credential = credential or drive_credentials.USUAL
        self._credentials, self.kind, self.who = _credentials(self.credential)
        self._watchdog = Watchdog(is_stopping)
        self._wire = Wire(_HOST, self._watchdog, timeouts)
        self._timeout = (timeouts.connect_seconds, timeouts.idle_seconds)
        self._asking = _watched(requests.Session(), self._watchdog)
        authorized: Any = AuthorizedSession
        self._session = _watched(authorized(self._credentials, auth_request=Request(self._asking)), self._watchdog)
        self._root = (drive_credentials.endpoint() or _API) + "/drive/v3/"
        self._pacer = pacer or Pacer(shared_by=f"{self._root} {self.who}", look=self._wire.look)
        self._flowing: tuple[str, int] | None = None
        """Of which file the bytes came last, and up to where."""
        service = build(
            "drive",
            "v3",
            http=self,
            static_discovery=True,
            cache_discovery=False,
            client_options={"api_endpoint": self._root},
        )
        # Each of these calls makes a class, with its documentation.
        self._files, self._changes = cache(service.files), cache(service.changes)
        self._about = service.about

    def close(self) -> None:
        self._session.close()
        self._asking.close()
        self._watchdog.close()

    # --- metadata -------------------------------------------------------------------------------------

    def entry(self, file_id: str, resource_key: str = "") -> Entry:
        call = self._files().get(fileId=file_id, fields=_ENTRY_FIELDS, supportsAllDrives=True)
        return _entry_of(self._ask(call, {file_id: resource_key}), resource_key)

    def children(self, folder_id: str, page: str = "", *, drive_id: str = "", resource_key: str = "") -> Listing:
        """Of one parent, up to 1,000 a page. A page may be short, or empty, and have a next one."""
        quoted = folder_id.replace("\\", "\\\\").replace("'", "\\'")
        return self._list(f"'{quoted}' in parents and trashed = false", page, drive_id, {folder_id: resource_key})

    def shared_with_me(self, page: str = "") -> Listing:
        return self._list("sharedWithMe = true and trashed = false", page, "", {})

    def start_token(self, drive_id: str = "") -> str:
        named = {"driveId": drive_id} if drive_id else {}
        call = self._changes().getStartPageToken(supportsAllDrives=True, **named)
        return str(self._ask(call)["startPageToken"])

    def changes(self, page: str, *, drive_id: str = "") -> TreeChanges:
        """Since a start token. One feed for all that the account sees, and one for each shared drive."""
        named = {"driveId": drive_id} if drive_id else {}
        call = self._changes().list(
            pageToken=page,
            pageSize=1000,
            includeRemoved=True,
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
            fields=f"nextPageToken,newStartPageToken,changes(fileId,removed,changeType,file({_ENTRY_FIELDS}))",
            **named,
        )
        told = self._ask(call)
        there: list[Entry] = []
        gone: list[str] = []
        for one in told.get("changes", []):
            if one.get("changeType", "file") != "file" or not one.get("fileId"):
                continue
            # Without a file it was removed, or we may no longer see it.
            entry = None if one.get("removed") or "file" not in one else _entry_of(one["file"])
            if entry is None or entry.is_trashed:
                gone.append(one["fileId"])
            else:
                there.append(entry)
        next_page = told.get("nextPageToken", "")
        return TreeChanges(there, gone, next_page or told.get("newStartPageToken") or page, not next_page)

    def account(self) -> str:
        """Whose credential it is."""
        told = self._ask(self._about().get(fields="user(displayName,emailAddress)")).get("user", {})
        return str(told.get("emailAddress") or told.get("displayName") or self.who)

    def _list(self, query: str, page: str, drive_id: str, keys: Mapping[str, str]) -> Listing:
        corpus = {"corpora": "drive", "driveId": drive_id} if drive_id else {"corpora": "user"}
        call = self._files().list(
            q=query,
            pageSize=1000,
            pageToken=page or None,
            supportsAllDrives=True,
            includeItemsFromAllDrives=True,
            fields=f"nextPageToken,incompleteSearch,files({_ENTRY_FIELDS})",
            **corpus,
        )
        told = self._ask(call, keys)
        entries = [entry for one in told.get("files", []) if not (entry := _entry_of(one)).is_trashed]
        return Listing(entries, told.get("nextPageToken", ""), bool(told.get("incompleteSearch")))

    def _ask(self, call: Any, keys: Mapping[str, str] = {}) -> dict[str, Any]:
        call.headers.update(_key_header(keys))
        try:
            # Retries are ours: the client's know neither Retry-After nor half of the reasons.
            told = call.execute(num_retries=0)
        except HttpError as error:
            raise self.trouble(error.resp.status, error.resp, error.content) from error
        except ValueError as error:
            raise FetchError("ANSWER_GARBLED", host=_HOST) from error
        if not isinstance(told, dict):
            raise FetchError("ANSWER_GARBLED", host=_HOST)
        return told

    # --- bytes ----------------------------------------------------------------------------------------

    def download_into(
        self, path: str, query: Mapping[str, str], keys: Mapping[str, str], part: PartialFile, facts: FileFacts,
        length: int | None,
    ) -> Iterator[int]:  # fmt: skip
        headers = {"Accept-Encoding": "identity", **_key_header(keys)}
        if length is not None and facts.can_resume:
            headers["Range"] = f"bytes={part.length}-{part.length + length - 1}"
        if self._flowing != (path, part.length):
            # Its next chunk is no new call: a file that flows is paced by its own bytes.
            self._pacer.turn()
        self._flowing = None
        with self._talking():
            response = self._get(self._root + path, query, headers)
        try:
            self._check(response, facts, part.length)
            most = facts.size - part.length if response.status_code == 200 and facts.size is not None else length
            with self._talking():
                yield from self._wire.poured(response.raw, part, most)
            self._flowing = (path, part.length)
        finally:
            response.close()

    def _get(self, url: str, query: Mapping[str, str], headers: Mapping[str, str]) -> requests.Response:
        answer: requests.Response = self._session.get(
            url, params=query, headers=dict(headers), timeout=self._timeout, stream=True
        )
        return answer

    def _check(self, response: requests.Response, facts: FileFacts, offset: int) -> None:
        status, headers = response.status_code, response.headers
        if status not in (200, 206):
            with self._talking():
                body = b"".join(self._wire.body(response.raw, 1 << 16))
            raise self.trouble(status, headers, body)
        if headers.get("Content-Type", "").lower().startswith("text/html"):
            raise FetchError("PAGE_INSTEAD", host=_HOST, page="a web page")
        if status == 206:
            check_range(headers, offset, facts.size, _HOST)
        elif offset:
            raise FetchError("RANGE_IGNORED", host=_HOST)
        told = headers.get("Content-Length")
        if status == 200 and facts.size is not None and told is not None and told != str(facts.size):
            raise FetchError("RANGE_WRONG", host=_HOST)
        if facts.size is None and told is None and headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise FetchError("LENGTH_UNKNOWN", host=_HOST)

    def request(
        self, uri: str, method: str = "GET", body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, bytes]:
        """For the client, whose transport we are: one whole answer, under the same clock."""
        self._pacer.turn()
        wanted = {name: value for name, value in (headers or {}).items() if name != "accept-encoding"}
        wanted["Accept-Encoding"] = "identity"
        with self._talking():
            response = self._session.request(method, uri, data=body, headers=wanted, timeout=self._timeout, stream=True)
            try:
                content = b"".join(self._wire.body(response.raw, _ANSWER_BYTES_MAX))
            finally:
                response.close()
        told = {name.lower(): value for name, value in response.headers.items()}
        return httplib2.Response({**told, "status": str(response.status_code)}), content

    @contextmanager
    def _talking(self) -> Iterator[None]:
        with self._wire.talking(urllib3.exceptions.HTTPError):
            try:
                yield
            except RefreshError as error:
                self._wire.look()
                if error.retryable:
                    raise FetchError("TOKEN_UNREACHABLE", credential=self.credential) from error
                word = _ERROR_WORD.search(str(error.args[0]) if error.args else "")
                # From None: what Google says of a key may quote it.
                raise FetchError(
                    "CREDENTIAL_REFUSED", credential=self.credential, reason=word[0] if word else "refused"
                ) from None
            except GoogleAuthError as error:
                self._wire.look()
                raise FetchError("TOKEN_UNREACHABLE", credential=self.credential) from error

    def trouble(self, status: int, headers: Headers, body: bytes) -> FetchError:
        reasons = list(_reasons_of(body))
        values = {"host": _HOST, "who": self.who, "credential": self.credential, "status": status}
        values["reason"] = reasons[0] if reasons else f"status {status}"
        general = of_status(status, {"Retry-After": headers.get("retry-after", "")}, _HOST)
        code = next((REASONS[reason] for reason in reasons if reason in REASONS), "")
        if not code and status == 401:
            code = "CREDENTIAL_REFUSED"
        elif not code and status in (404, 410):
            code = "NOT_FOUND"
        elif not code and status == 400:
            code = "REQUEST_INVALID"
        elif not code and status == 403:
            code = "CREDENTIAL_REFUSED" if b"unregistered callers" in body else "BLOCKED"
        code = code or general.code
        if code == "RATE_LIMITED":
            self._pacer.hold_back(general.after or 1.0)
        return FetchError(code, after=general.asked, mime="document of Google's own", **values)


# --- connections that a watchdog can shut --------------------------------------------------------------


def _watched(session: Any, watchdog: Watchdog) -> Any:
    session.max_redirects = _REDIRECTS_MAX
    session.mount("https://", _Adapter(watchdog))
    session.mount("http://", _Adapter(watchdog))
    return session


class _Adapter(HTTPAdapter):
    """Its connections can be shut by the watchdog, and it never tries again by itself."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._pools = {
            "http": _watched_pool(urllib3.HTTPConnectionPool, watchdog),
            "https": _watched_pool(urllib3.HTTPSConnectionPool, watchdog),
        }
        super().__init__(max_retries=0)

    def init_poolmanager(self, *values: Any, **named: Any) -> None:
        super().init_poolmanager(*values, **named)
        self.poolmanager.pool_classes_by_scheme = self._pools


def _watched_pool(pool: Any, watchdog: Watchdog) -> Any:
    base: Any = pool.ConnectionCls

    class Watched(base):  # type: ignore[misc]
        def _new_conn(self) -> Any:
            raw = super()._new_conn()
            # TLS is yet to begin, and wraps the socket in another one.
            self._copy = raw.dup()
            watchdog.hold(self._copy)
            return raw

        def connect(self) -> None:
            self._copy = None
            try:
                super().connect()
                watchdog.hold(self.sock)
            finally:
                if self._copy is not None:
                    self._copy.close()

    return type("WatchedPool", (pool,), {"ConnectionCls": Watched})


# --- what Drive says ----------------------------------------------------------------------------------


def _entry_of(told: Mapping[str, Any], key: str = "") -> Entry:
    """`key`: what was shown to get at it, if it tells none of its own."""
    mime, shortcut, size = told.get("mimeType", ""), told.get("shortcutDetails", {}), told.get("size")
    may_download = told.get("capabilities", {}).get("canDownload", True)
    kind: EntryKind = "native" if mime.startswith(_NATIVE) else "file"
    if mime in (_FOLDER, _SHORTCUT):
        kind = "folder" if mime == _FOLDER else "shortcut"
    return Entry(
        id=told["id"],
        name=told.get("name", ""),
        kind=kind,
        parent_ids=tuple(told.get("parents", ())),
        mime=mime,
        size=None if size is None else int(size),
        revision=told.get("headRevisionId") or told.get("md5Checksum") or told.get("modifiedTime", ""),
        md5=told.get("md5Checksum", ""),
        sha256=told.get("sha256Checksum", ""),
        modified=told.get("modifiedTime", ""),
        key=shortcut.get("targetResourceKey", "") if kind == "shortcut" else told.get("resourceKey") or key,
        corpus=told.get("driveId", ""),
        target_id=shortcut.get("targetId", ""),
        refusal="" if may_download else "its owner does not let us download it",
        is_trashed=bool(told.get("trashed")),
    )


def _reasons_of(body: bytes) -> Iterator[str]:
    """Of both shapes of Google's errors."""
    try:
        error = json.loads(body)["error"]
        for one in [*error.get("errors", []), *error.get("details", [])]:
            if isinstance(one.get("reason"), str):
                yield one["reason"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return


# --- credentials --------------------------------------------------------------------------------------


# Their classes carry no types.
_ServiceAccount: Any = service_account.Credentials
_User: Any = user_credentials.Credentials
_Signer: Any = RSASigner


def _credentials(name: str) -> tuple[Any, str, str]:
    """With their kind, and whom a file is to be shared with."""
    if name == drive_credentials.APPLICATION_DEFAULT:
        try:
            found, _ = google.auth.default(scopes=[SCOPE])
        except DefaultCredentialsError as error:
            raise Permanent(
                "CREDENTIAL_ABSENT", "there are no application default credentials", f"set {drive_credentials.ADC_FILE}"
            ) from error
        who = getattr(found, "service_account_email", "") or "the account of this worker"
        return found, "application default credentials", who
    info = drive_credentials.credential_text(name)
    try:
        return _of_info(info, name)
    except (ValueError, KeyError, TypeError, AttributeError, GoogleAuthError):
        # From None: the cause may quote the key.
        raise Permanent(
            "CREDENTIAL_INVALID", f"the credential {name} is not a whole key file of Google's", "download it again"
        ) from None


def _of_info(info: Mapping[str, Any], name: str) -> tuple[Any, str, str]:
    if info.get("type") == "service_account":
        # The subject stands in the key file, so that whoever enqueues cannot choose whom to be.
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
        # Google's own loader would overrule the token URI, so that no test could stand in for it.
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
    """Google's own loader proves that the numbers of the key are primes, each time: more work than all the rest of a
    small download. It is the service's own key, and a wrong one is refused by Google."""
    key = load_pem_private_key(info["private_key"].encode(), None, unsafe_skip_rsa_key_validation=True)
    return _Signer(key, info.get("private_key_id"))


def _key_header(keys: Mapping[str, str]) -> dict[str, str]:
    named = ",".join(f"{file_id}/{key}" for file_id, key in keys.items() if key)
    return {"X-Goog-Drive-Resource-Keys": named} if named else {}
