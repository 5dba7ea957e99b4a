"""A name that somebody else gave a file, made safe to be the name of a file here, and to be shown.

No separators, no control characters, no characters that turn or hide text, no hidden files, and short enough.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_BYTES_MAX = 200
"""Less than a file system's 255: others will add endings."""
_NO_NAMES = {
    *("con", "prn", "aux", "nul"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
}
_LIKE_SEPARATORS = dict.fromkeys(map(ord, '/\\:*?"<>|\u2044\u2215\u29f8\uff0f\ufe68\uff3c'), "_")


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
