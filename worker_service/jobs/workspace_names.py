"""Safe names of files, and the links by which people find documents in the workspace."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from worker_service.base.path_text import FILE_URL, display_path, path_of
from worker_service.jobs.digest import digest
from worker_service.jobs.documents import PublishedFile

_BY_OWNER = "by-owner"

_BYTES_MAX = 200  # File systems allow 255 bytes; the rest is for suffixes.
_RESERVED_NAMES = {
    *("con", "prn", "aux", "nul"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
}
_LIKE_SEPARATORS = dict.fromkeys(map(ord, '/\\:*?"<>|\u2044\u2215\u29f8\uff0f\ufe68\uff3c'), "_")

_NO_OWNER = "unowned"
_FOLDERS_MAX = 30
_FOLDER_BYTES_MAX = 1500  # Bytes of all folders together, below Linux's limit of a path.
_ENDING_BY_ROLE = {"text": ".txt", "pdf": ".ocr.pdf"}


class LinkFacts(Struct, frozen=True):
    document_id: int
    owner: str
    name: str
    source_key: str
    folders: Sequence[str]
    files: Sequence[PublishedFile]


class Links(Struct, frozen=True):
    """The links of a document, before the store resolves conflicts with other documents."""

    document_id: int
    folders: Sequence[str] = ()
    stem: str = ""
    targets: Sequence[tuple[str, str]] = ()
    """Suffix of each link, and the path of its file."""

    def stems(self) -> Iterator[str]:
        """Yield the names to try in order."""
        yield self.stem
        yield (numbered := f"{self.stem} ({self.document_id})")
        for number in range(2, 100):
            yield f"{numbered} {number}"


def links_of(facts: LinkFacts) -> Links:
    original = next((file for file in facts.files if file.role == "original"), None)
    suffix = ""
    if original is not None:
        suffix = PurePosixPath(safe_name(original.name)).suffix
        file_name = safe_name(facts.name or original.name, [suffix.lower()] if suffix else ())
        stem = file_name[: len(file_name) - len(suffix)]
    else:
        stem = safe_name(_without_suffix(facts.name) or "document")
    targets: dict[str, str] = {}
    for role, ending in (("original", suffix), *_ENDING_BY_ROLE.items()):
        for file in facts.files:
            # An original that was searchable already is also its own searchable PDF and gets one link.
            is_linked_as_original = role != "original" and original is not None and file.path == original.path
            if file.role == role and not is_linked_as_original:
                targets[f".{role}{ending}" if ending in targets else ending] = file.path
    return Links(facts.document_id, _folder_names(facts), stem, tuple(targets.items()))


def folder_at_source(source_key: str, crawled: Sequence[str]) -> str:
    root = "/" if _is_local(source_key) else ""
    return root + "/".join(filter(None, _folders_of_source(source_key, crawled)))


def folded(path: str) -> str:
    """Return equal texts for paths that some file systems treat as equal."""
    return unicodedata.normalize("NFC", path.casefold())


def _folder_names(facts: LinkFacts) -> tuple[str, ...]:
    folders = [safe_name(folder) for folder in _folders_of_source(facts.source_key, facts.folders) if folder]
    while len(folders) > _FOLDERS_MAX or sum(len(folder.encode()) + 1 for folder in folders) > _FOLDER_BYTES_MAX:
        # Drop outer folders first; inner ones say more about the document.
        folders.pop(0)
    return (_BY_OWNER, _owner_folder(facts.owner), *folders)


def _is_local(source_key: str) -> bool:
    return source_key.startswith(("/", FILE_URL))


def _folders_of_source(source_key: str, crawled: Sequence[str]) -> Sequence[str]:
    if _is_local(source_key):
        return PurePosixPath(display_path(path_of(source_key))).parts[1:-1]
    return _folders_of_url(source_key) if "://" in source_key else crawled


def _folders_of_url(url: str) -> Sequence[str]:
    try:
        split = urlsplit(url)
    except ValueError:
        return ()
    # Without the user information before the @, which may contain a password.
    return [split.netloc.rpartition("@")[2], *unquote(split.path).split("/")[:-1]]


def _owner_folder(owner: str) -> str:
    if not owner:
        return _NO_OWNER
    safe = safe_name(owner)
    # Different owners may have the same safe name, and one may be called like the folder for no owner.
    return owner if safe == owner != _NO_OWNER else f"{safe} {digest(owner)[:8]}"


def _without_suffix(name: str) -> str:
    path = PurePosixPath(name.replace("/", "_"))
    return path.stem if path.suffix[1:].isalpha() else path.name


def safe_name(name: str, suffixes: Sequence[str] = ()) -> str:
    """Append the first of `suffixes` unless the name has one of them."""
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    text = "".join(map(_safe_character, text.translate(_LIKE_SEPARATORS)))
    stem = " ".join(text.split()).lstrip(". ").rstrip(". ")
    suffix = next(iter(suffixes), "")
    if own_suffix := next((suffix for suffix in suffixes if stem.lower().endswith(suffix)), ""):
        stem, suffix = stem[: -len(own_suffix)], stem[-len(own_suffix) :]
    stem = _shorten(stem.rstrip(". "), _BYTES_MAX - len(suffix.encode()))
    if not stem or stem.partition(".")[0].lower() in _RESERVED_NAMES:
        stem = f"file {stem}".rstrip()
    return stem + suffix


def _safe_character(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("Z") or character in "\t\n\r":
        return " "
    # Drop controls, direction marks, joiners, lone surrogates, private and unassigned characters.
    return "" if category.startswith("C") else character


def _shorten(text: str, bytes_max: int) -> str:
    if len(text.encode()) <= bytes_max:
        return text
    return text.encode()[:bytes_max].decode("utf-8", "ignore").rstrip(". ")
