"""In which encoding a text is written that may not say so: by its mark, else UTF-8, else as what is in it tells."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import lru_cache

HEAD_BYTES = 1 << 16

_UTF_32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")
"""Of these a byte alone says nothing, and NUL is one of them."""
_LOOKED_AT_BYTES = 1 << 12
_NULS_LEAST = 4
_ESCAPE = b"\x1b$"
_HIGH = bytes(range(128, 256))
_SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_SEQUENCES_LEAST = 5
"""To each byte that is in none. In other encodings hardly any letters look so."""
_AS_WINDOWS = "as Windows wrote it"
_RUN = re.compile(rb"[\x80-\xff]{3,}")
_RUN_BYTES_LEAST = 12
"""A word or two: less tells nothing."""
_RUN_LETTERS_LEAST = 3
"""Of dots or strokes in a row there are fewer."""
_NOT_LATIN = (
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1251", "koi8_r", "cp866", "cp1253", "cp1255", "cp1256",
)  # fmt: skip
_LATIN = {
    **dict.fromkeys(("ces", "hrv", "hun", "pol", "ron"), "cp1250"),
    "tur": "cp1254",
    **dict.fromkeys(("est", "lav", "lit"), "cp1257"),
}
"""What Windows writes a language in, if not in cp1252."""
_TOO_NEAR = ("slk", "slv")
"""To another language of the same letters: neither would be told."""


def decoded(body: bytes) -> tuple[str, str]:
    """The text, and its encoding."""
    encoding = encoding_in(body[:HEAD_BYTES])
    return _text_of(body, encoding), encoding


@lru_cache(maxsize=8)
def encoding_in(head: bytes) -> str:
    """What tells nothing is what Windows writes in the west of Europe."""
    if head.startswith(_UTF_32):
        return "utf-32"
    if head.startswith(_UTF_16):
        return "utf-16"
    if wide := _without_mark(head[:_LOOKED_AT_BYTES]):
        return wide
    try:
        _text_of(head, "utf-8-sig", "strict")
    except UnicodeDecodeError:
        return "utf-8-sig" if _is_nearly_utf_8(head) else _told_by(head)
    if _ESCAPE in head:
        with suppress(UnicodeDecodeError):
            _text_of(head, "iso2022_jp", "strict")
            return "iso2022_jp"
    return "utf-8-sig"


def errors_in(encoding: str) -> str:
    """What becomes of bytes that are no letters in it, as `open` has it."""
    return _AS_WINDOWS if encoding == "utf-8-sig" else "replace"


def is_guessed(encoding: str) -> bool:
    """Somebody ought to look whether it was right."""
    return encoding in (*_NOT_LATIN, *_LATIN.values())


def _text_of(body: bytes, encoding: str, errors: str | None = None) -> str:
    """A letter that is cut at the end of a head is none."""
    is_whole = len(body) != HEAD_BYTES
    return codecs.getincrementaldecoder(encoding)(errors or errors_in(encoding)).decode(body, is_whole)


def _without_mark(head: bytes) -> str:
    """Letters of most languages have a NUL beside them, always on the same side."""
    before, behind = head[::2].count(0), head[1::2].count(0)
    if (
        max(before, behind) < _NULS_LEAST
        or 3 * max(before, behind) < len(head) // 2
        or 10 * min(before, behind) > max(before, behind)
    ):
        return ""
    wide = "utf-16-be" if before > behind else "utf-16-le"
    text = head[: len(head) // 2 * 2].decode(wide, "replace")
    return "" if "\0" in text or "�" in text[:-1] else wide


def _is_nearly_utf_8(head: bytes) -> bool:
    """A few bytes in it are not: somebody has put two texts together, or one is broken."""
    found = _SEQUENCE.findall(head)
    return len(found) >= _SEQUENCES_LEAST * (_high_bytes(head) - sum(map(len, found)))


def _high_bytes(head: bytes) -> int:
    return len(head) - len(head.translate(None, _HIGH))


def _as_windows_wrote_it(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


codecs.register_error(_AS_WINDOWS, _as_windows_wrote_it)


def _told_by(head: bytes) -> str:
    lines = _whole_lines(head)
    runs = sum(len(run) for run in _RUN.findall(lines) if len(set(run)) >= _RUN_LETTERS_LEAST)
    if b"\0" in head:
        # It is none.
        return "cp1252"
    if runs < _RUN_BYTES_LEAST or 2 * runs < _high_bytes(lines):
        # Letters with accents stand among letters without.
        return _LATIN.get(_language_of(lines.decode("cp1252", "replace")), "cp1252")
    from charset_normalizer import from_bytes  # hardly any text needs it

    found = from_bytes(lines, cp_isolation=[*_NOT_LATIN]).best()
    return found.encoding if found is not None and found.encoding in _NOT_LATIN else "cp1252"


def _language_of(text: str) -> str:
    """Its small words are hardly ever changed by a wrong encoding."""
    # Who reads pages has it already; whoever only looks at what a file is, not.
    from job_handlers.reading.ocr.language_id import KNOWN, language_of

    return language_of(text, [one for one in sorted(KNOWN) if one not in _TOO_NEAR]) or ""


def _whole_lines(head: bytes) -> bytes:
    """A letter that is cut is none."""
    end = head.rfind(b"\n") + 1
    return head[:end] if end and len(head) == HEAD_BYTES else head
