"""The two small languages of Drive: what is searched for (`q`), and which fields are wanted (`fields`). Both strict."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.drive_server.model import Item

Mask = dict[str, Any]
Condition = Callable[[Item], bool]

# None: a value. A mapping: what is below it.
FILE: Mask = {
    **dict.fromkeys(
        (
            "kind", "id", "name", "mimeType", "size", "md5Checksum", "sha1Checksum", "sha256Checksum", "headRevisionId",
            "version", "modifiedTime", "createdTime", "trashed", "driveId", "resourceKey", "parents", "webViewLink",
            "originalFilename", "fileExtension", "shared", "sharedWithMeTime", "ownedByMe", "description",
        )
    ),
    "shortcutDetails": dict.fromkeys(("targetId", "targetMimeType", "targetResourceKey")),
    "capabilities": dict.fromkeys(("canDownload", "canReadRevisions", "canEdit")),
    "exportLinks": None,
}  # fmt: skip
LISTING: Mask = {"kind": None, "nextPageToken": None, "incompleteSearch": None, "files": FILE}
CHANGES: Mask = {
    "kind": None,
    "nextPageToken": None,
    "newStartPageToken": None,
    "changes": {**dict.fromkeys(("kind", "fileId", "removed", "time", "changeType", "driveId")), "file": FILE},
}
ABOUT: Mask = {
    "kind": None,
    "user": dict.fromkeys(("kind", "displayName", "emailAddress", "me", "permissionId")),
    "storageQuota": None,
}

_TOKENS = re.compile(r"\s*([(),]|[A-Za-z0-9*]+)")
_TERM = re.compile(
    r"""\s*(?:
        '(?P<parent>(?:[^'\\]|\\.)*)'\s+in\s+parents
      | (?P<flag>trashed|sharedWithMe)\s*=\s*(?P<value>true|false)
    )\s*""",
    re.VERBOSE,
)


class Refused(Exception):
    """`parameter` is not understood."""


def read_query(text: str) -> Condition:
    """Terms with `and` between them."""
    conditions: list[Condition] = []
    at = 0
    while True:
        found = _TERM.match(text, at)
        if found is None:
            raise Refused("q")
        conditions.append(_condition(found))
        at = found.end()
        if at == len(text):
            return lambda item: all(holds(item) for holds in conditions)
        if not text.startswith("and ", at):
            raise Refused("q")
        at += len("and ")


def _condition(found: re.Match[str]) -> Condition:
    if found["parent"] is not None:
        parent = re.sub(r"\\(.)", r"\1", found["parent"])
        return lambda item: parent in item.parents
    wanted = found["value"] == "true"
    if found["flag"] == "trashed":
        return lambda item: item.is_trashed is wanted
    return lambda item: item.is_shared_with_me is wanted


def read_fields(text: str, known: Mask) -> Mask | None:
    """None: all of them."""
    tokens = [found[1] for found in _TOKENS.finditer(text)]
    if "".join(tokens) != "".join(text.split()):
        raise Refused("fields")
    mask, rest = _level(tokens, known)
    if rest:
        raise Refused("fields")
    return mask


def _level(tokens: list[str], known: Mask) -> tuple[Mask | None, list[str]]:
    mask: Mask = {}
    is_all = False
    while tokens and tokens[0] != ")":
        name, tokens = tokens[0], tokens[1:]
        if name == "*":
            is_all = True
        elif name not in known:
            raise Refused("fields")
        else:
            below = known[name]
            mask[name] = None
            if tokens[:1] == ["("]:
                mask[name], tokens = _level(tokens[1:], below or {})
                if tokens[:1] != [")"]:
                    raise Refused("fields")
                tokens = tokens[1:]
        if tokens[:1] == [","]:
            tokens = tokens[1:]
            if not tokens:
                raise Refused("fields")
    return None if is_all else mask, tokens


def masked(value: Any, mask: Mask | None) -> Any:
    if mask is None:
        return value
    if isinstance(value, list):
        return [masked(one, mask) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: masked(value[name], below) for name, below in mask.items() if name in value}
