"""The two small languages of Drive: what is searched for (`q`), and which fields are wanted (`fields`). Both strict."""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import Any

from tests.drive_server.model import Item

KNOWN_FIELDS = frozenset(
    "kind id name mimeType size md5Checksum sha1Checksum sha256Checksum headRevisionId version modifiedTime "
    "createdTime trashed driveId resourceKey parents webViewLink originalFilename fileExtension shared "
    "sharedWithMeTime ownedByMe description shortcutDetails targetId targetMimeType targetResourceKey "
    "capabilities canDownload canReadRevisions canEdit exportLinks nextPageToken incompleteSearch files "
    "newStartPageToken changes file fileId removed time changeType user displayName emailAddress me permissionId "
    "storageQuota".split()
)
_FIELDS = re.compile(r"[\w,*]+(?:\([\w,*()]+\)[\w,*()]*)?")
_TERM = re.compile(
    r"""\s*(?:
        '(?P<parent>(?:[^'\\]|\\.)*)'\s+in\s+parents
      | (?P<flag>trashed|sharedWithMe)\s*=\s*(?P<value>true|false)
    )\s*""",
    re.VERBOSE,
)


class Refused(Exception):
    """A parameter is not understood."""


def read_query(text: str) -> Callable[[Item], bool]:
    found = [_TERM.fullmatch(term) for term in text.split(" and ")]
    if None in found:
        raise Refused("q")
    return lambda item: all(_holds(one, item) for one in found if one is not None)


def _holds(term: re.Match[str], item: Item) -> bool:
    if term["parent"] is not None:
        return re.sub(r"\\(.)", r"\1", term["parent"]) in item.parents
    wanted = term["value"] == "true"
    return (item.is_trashed if term["flag"] == "trashed" else item.is_shared_with_me) is wanted


def masked(value: Any, fields: str) -> Any:
    """Keep the fields that are named, at whatever level."""
    names = set(re.findall(r"[^,()]+", fields))
    if not (_FIELDS.fullmatch(fields) and fields.count("(") == fields.count(")") and names <= KNOWN_FIELDS | {"*"}):
        raise Refused("fields")
    return value if "*" in names else _only(value, names)


def _only(value: Any, names: Set[str]) -> Any:
    if isinstance(value, list):
        return [_only(one, names) for one in value]
    return {name: _only(value[name], names) for name in value if name in names} if isinstance(value, dict) else value
