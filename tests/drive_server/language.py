"""The two query languages of Drive, both strict: `q` selects files, and `fields` selects fields of the answer."""

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


class InvalidParameter(Exception):
    """The message is the name of the parameter."""


def read_query(text: str) -> Callable[[Item], bool]:
    terms = [_TERM.fullmatch(term) for term in text.split(" and ")]
    if None in terms:
        raise InvalidParameter("q")
    return lambda item: all(_matches(term, item) for term in terms if term is not None)


def _matches(term: re.Match[str], item: Item) -> bool:
    if term["parent"] is not None:
        return re.sub(r"\\(.)", r"\1", term["parent"]) in item.parents
    flag = item.is_trashed if term["flag"] == "trashed" else item.is_shared_with_me
    return flag is (term["value"] == "true")


def select_fields(value: Any, fields: str) -> Any:
    """Keep the named fields on all levels."""
    names = set(re.findall(r"[^,()]+", fields))
    if not (_FIELDS.fullmatch(fields) and fields.count("(") == fields.count(")") and names <= KNOWN_FIELDS | {"*"}):
        raise InvalidParameter("fields")
    return value if "*" in names else _with_fields(value, names)


def _with_fields(value: Any, names: Set[str]) -> Any:
    if isinstance(value, list):
        return [_with_fields(element, names) for element in value]
    if isinstance(value, dict):
        return {name: _with_fields(value[name], names) for name in value if name in names}
    return value
