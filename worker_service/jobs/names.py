"""Names that somebody else gave to files and folders, made safe to be names here, and to be shown.

No separators, no control characters, no characters that turn or hide text, no hidden files, and short enough. From
them come the names under which people find a document's files in the workspace: by owner, folder and name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from worker_service.base.path_text import FILE_URL, legible, path_of
from worker_service.jobs.digest import digest

BY_OWNER = "by-owner"

_BYTES_MAX = 200
"""Less than a file system's 255: others will add endings."""
_NO_NAMES = {
    *("con", "prn", "aux", "nul"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
}
_LIKE_SEPARATORS = dict.fromkeys(map(ord, '/\\:*?"<>|\u2044\u2215\u29f8\uff0f\ufe68\uff3c'), "_")

_NO_OWNER = "unowned"
_FOLDERS_MOST = 30
_FOLDER_BYTES_MAX = 1500
"""Of all folders together: less than Linux takes for a path, wherever the workspace is."""
_ENDINGS = {"text": ".txt", "pdf": ".ocr.pdf"}


class LinkFacts(Struct, frozen=True):
    """What the names of a document's files are made from."""

    document_id: int
    owner: str
    name: str
    source_key: str
    folders: Sequence[str]
    """In which its crawl found it, the outermost first."""
    files: Sequence[tuple[str, str, str]]
    """The newest of each role: role, name, path."""


class Links(Struct, frozen=True):
    """What a document's files are to be called, unless others are called so."""

    document_id: int
    folders: Sequence[str] = ()
    stem: str = ""
    targets: Sequence[tuple[str, str]] = ()
    """The ending of each, and the path of the file."""

    def stems(self) -> Iterator[str]:
        """The first that is free is taken."""
        yield self.stem
        yield (numbered := f"{self.stem} ({self.document_id})")
        for number in range(2, 100):
            yield f"{numbered} {number}"


def links_of(facts: LinkFacts) -> Links:
    original = next((file for file in facts.files if file[0] == "original"), None)
    if original is None:
        suffix = ""
        stem = safe_name(_without_ending(facts.name) or "document")
    else:
        suffix = PurePosixPath(safe_name(original[1])).suffix
        whole = safe_name(facts.name or original[1], [suffix.lower()] if suffix else ())
        stem = whole[: len(whole) - len(suffix)]
    targets: dict[str, str] = {}
    for role, ending in (("original", suffix), *_ENDINGS.items()):
        for path in (path for of, _, path in facts.files if of == role):
            # A file that could be searched all along is its own PDF.
            if role == "original" or original is None or path != original[2]:
                targets[f".{role}{ending}" if ending in targets else ending] = path
    return Links(facts.document_id, _folders(facts), stem, tuple(targets.items()))


def folder_at_source(source_key: str, crawled: Sequence[str]) -> str:
    """`crawled`: the folders in which a crawl found it, the outermost first."""
    if source_key.startswith(("/", FILE_URL)):
        return str(PurePosixPath(legible(path_of(source_key))).parent)
    return "/".join(filter(None, _folders_of_url(source_key) if "://" in source_key else crawled))


def folded(path: str) -> str:
    """The same for what other systems may take for the same."""
    return unicodedata.normalize("NFC", path.casefold())


def _folders(facts: LinkFacts) -> tuple[str, ...]:
    if facts.source_key.startswith(("/", FILE_URL)):
        parts: Sequence[str] = PurePosixPath(legible(path_of(facts.source_key))).parts[1:-1]
    elif "://" in facts.source_key:
        parts = _folders_of_url(facts.source_key)
    else:
        parts = facts.folders
    named = [safe_name(part) for part in parts if part]
    while len(named) > _FOLDERS_MOST or sum(len(part.encode()) + 1 for part in named) > _FOLDER_BYTES_MAX:
        # The inner ones tell more.
        named.pop(0)
    return (BY_OWNER, _owner_folder(facts.owner), *named)


def _folders_of_url(url: str) -> Sequence[str]:
    try:
        split = urlsplit(url)
    except ValueError:
        return ()
    # Not what may be a password.
    return [split.netloc.rpartition("@")[2], *unquote(split.path).split("/")[:-1]]


def _owner_folder(owner: str) -> str:
    """No two owners have the same."""
    if not owner:
        return _NO_OWNER
    safe = safe_name(owner)
    return owner if safe == owner != _NO_OWNER else f"{safe} {digest(owner)[:8]}"


def _without_ending(name: str) -> str:
    path = PurePosixPath(name.replace("/", "_"))
    return path.stem if path.suffix[1:].isalpha() else path.name


def safe_name(name: str, suffixes: Sequence[str] = ()) -> str:
    """It ends with one of the suffixes (".tif", ".tiff"), in whichever case; else the first is added."""
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    text = "".join(_shown(one) for one in text.translate(_LIKE_SEPARATORS))
    stem = " ".join(text.split()).lstrip(". ").rstrip(". ")
    suffix = next(iter(suffixes), "")
    if found := [one for one in suffixes if stem.lower().endswith(one)]:
        stem, suffix = stem[: -len(found[0])], stem[-len(found[0]) :]
    stem = _shortened(stem.rstrip(". "), _BYTES_MAX - len(suffix.encode()))
    if not stem or stem.partition(".")[0].lower() in _NO_NAMES:
        stem = f"file {stem}".rstrip()
    return stem + suffix


def _shown(one: str) -> str:
    category = unicodedata.category(one)
    if category[0] == "Z":
        return " "
    # Controls, direction marks, joiners, halves of pairs, private and unassigned characters.
    return "" if category[0] == "C" and one not in "\t\n\r" else (" " if one in "\t\n\r" else one)


def _shortened(text: str, most: int) -> str:
    if len(text.encode()) <= most:
        return text
    return text.encode()[:most].decode("utf-8", "ignore").rstrip(". ")
