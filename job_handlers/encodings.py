"""Detect the encoding of a text: byte order mark, else UTF-8 if valid, else its content."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import lru_cache

HEAD_BYTES = 1 << 16

_UTF_32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")
"""Encodings with several bytes per character, NUL among them."""
_LOOKED_AT_BYTES = 1 << 12
_NULS_LEAST = 4
_ESCAPE = b"\x1b$"
_HIGH = bytes(range(128, 256))
_SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_SEQUENCES_LEAST = 5
"""UTF-8 sequences per other byte above 127. Other encodings have hardly any."""
_AS_CP1252 = "decode as cp1252"
_RUN = re.compile(rb"[\x80-\xff]{3,}")
_RUN_BYTES_LEAST = 12
"""A word or two: less is no evidence."""
_RUN_LETTERS_LEAST = 3
"""A row of dots or dashes has fewer."""
_NOT_LATIN = (
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1251", "koi8_r", "cp866", "cp1253", "cp1255", "cp1256",
)  # fmt: skip
_LATIN = {
    **dict.fromkeys(("ces", "hrv", "hun", "pol", "ron"), "cp1250"),
    "tur": "cp1254",
    **dict.fromkeys(("est", "lav", "lit"), "cp1257"),
}
"""Language → Windows code page, if not cp1252."""
_AMBIGUOUS = ("slk", "slv")


def decode(body: bytes) -> tuple[str, str]:
    encoding = detect_encoding(body[:HEAD_BYTES])
    return _decode_as(body, encoding), encoding


@lru_cache(maxsize=8)
def detect_encoding(head: bytes) -> str:
    if head.startswith(_UTF_32):
        return "utf-32"
    if head.startswith(_UTF_16):
        return "utf-16"
    if wide := _utf_16_without_mark(head[:_LOOKED_AT_BYTES]):
        return wide
    try:
        _decode_as(head, "utf-8-sig", "strict")
    except UnicodeDecodeError:
        return "utf-8-sig" if _is_nearly_utf_8(head) else _by_content(head)
    if _ESCAPE in head:
        with suppress(UnicodeDecodeError):
            _decode_as(head, "iso2022_jp", "strict")
            return "iso2022_jp"
    return "utf-8-sig"


def error_handler(encoding: str) -> str:
    """Return the `errors` argument of `open`."""
    return _AS_CP1252 if encoding == "utf-8-sig" else "replace"


def is_guessed(encoding: str) -> bool:
    return encoding in (*_NOT_LATIN, *_LATIN.values())


def _decode_as(body: bytes, encoding: str, errors: str | None = None) -> str:
    is_whole = len(body) != HEAD_BYTES
    return codecs.getincrementaldecoder(encoding)(errors or error_handler(encoding)).decode(body, is_whole)


def _utf_16_without_mark(head: bytes) -> str:
    """Return "" if it is not UTF-16: most letters have a NUL byte next to them, always on the same side."""
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
    found = _SEQUENCE.findall(head)
    return len(found) >= _SEQUENCES_LEAST * (_high_bytes(head) - sum(map(len, found)))


def _high_bytes(head: bytes) -> int:
    return len(head) - len(head.translate(None, _HIGH))


def _decode_byte_as_cp1252(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


codecs.register_error(_AS_CP1252, _decode_byte_as_cp1252)


def _by_content(head: bytes) -> str:
    lines = _whole_lines(head)
    runs = sum(len(run) for run in _RUN.findall(lines) if len(set(run)) >= _RUN_LETTERS_LEAST)
    if b"\0" in head:
        # It is not a text.
        return "cp1252"
    if runs < _RUN_BYTES_LEAST or 2 * runs < _high_bytes(lines):
        # Accented letters among plain ones: a Latin script.
        return _LATIN.get(_language_of(lines.decode("cp1252", "replace")), "cp1252")
    from charset_normalizer import from_bytes  # few texts need it

    found = from_bytes(lines, cp_isolation=[*_NOT_LATIN]).best()
    return found.encoding if found is not None and found.encoding in _NOT_LATIN else "cp1252"


def _language_of(text: str) -> str:
    # Small words have few accents, so a wrong encoding hardly changes them.
    from worker_service.base.language_id import KNOWN, language_of  # few texts need it

    return language_of(text, [one for one in sorted(KNOWN) if one not in _AMBIGUOUS]) or ""


def _whole_lines(head: bytes) -> bytes:
    end = head.rfind(b"\n") + 1
    return head[:end] if end and len(head) == HEAD_BYTES else head
