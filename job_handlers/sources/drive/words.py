"""What Google Drive says, as values: entries, listings, changes, and its reasons for a refusal. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FOLDER = "application/vnd.google-apps.folder"
SHORTCUT = "application/vnd.google-apps.shortcut"
NATIVE = "application/vnd.google-apps."
ENTRY_FIELDS = (
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or shortcut as Drive describes it."""

    id: str
    name: str
    mime: str
    size: int | None
    md5: str
    sha256: str
    revision: str
    """Changes when its content does."""
    modified: str
    parents: Sequence[str]
    is_trashed: bool
    can_download: bool
    drive_id: str
    resource_key: str
    target_id: str
    """Of a shortcut."""
    target_mime: str
    target_key: str

    @property
    def is_native(self) -> bool:
        return self.mime.startswith(NATIVE)


@dataclass(frozen=True, slots=True)
class Listing:
    entries: Sequence[Entry]
    next_page: str | None
    is_incomplete: bool = False
    """Drive says that it has not looked everywhere."""


@dataclass(frozen=True, slots=True)
class Change:
    file_id: str
    entry: Entry | None
    """None: it was removed, or we may no longer see it."""


@dataclass(frozen=True, slots=True)
class Changes:
    changes: Sequence[Change]
    next_page: str | None
    new_start: str | None
    """On the last page: where the next look begins."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a credential is."""

    name: str
    kind: str
    may: str


def entry_of(told: Mapping[str, Any]) -> Entry:
    shortcut = told.get("shortcutDetails", {})
    size = told.get("size")
    return Entry(
        id=told["id"],
        name=told.get("name", ""),
        mime=told.get("mimeType", ""),
        size=None if size is None else int(size),
        md5=told.get("md5Checksum", ""),
        sha256=told.get("sha256Checksum", ""),
        revision=told.get("headRevisionId") or told.get("md5Checksum") or told.get("modifiedTime", ""),
        modified=told.get("modifiedTime", ""),
        parents=tuple(told.get("parents", ())),
        is_trashed=bool(told.get("trashed")),
        can_download=told.get("capabilities", {}).get("canDownload", True),
        drive_id=told.get("driveId", ""),
        resource_key=told.get("resourceKey", ""),
        target_id=shortcut.get("targetId", ""),
        target_mime=shortcut.get("targetMimeType", ""),
        target_key=shortcut.get("targetResourceKey", ""),
    )


def reasons_of(body: bytes) -> Iterator[str]:
    """Of both shapes of Google's errors."""
    try:
        error = json.loads(body)["error"]
        for one in [*error.get("errors", []), *error.get("details", [])]:
            if isinstance(one.get("reason"), str):
                yield one["reason"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return
