"""Detect the encoding of a text: by its byte order mark; without one, UTF-8 if the bytes are valid, or by its words.

Only the first `HEAD_BYTES` of a file are examined. In a text that is nearly UTF-8, the other bytes are read as cp1252.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import lru_cache

HEAD_BYTES = 1 << 16
WIDE_ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")
"""Encodings with several bytes per character, NUL among them."""

_UTF_32_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF_16_SAMPLE_BYTES = 1 << 12
_UTF_16_NULS_MIN = 4
_ISO_2022_ESCAPE = b"\x1b$"
_BYTES_ABOVE_127 = bytes(range(128, 256))
_UTF_8_SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_UTF_8_SEQUENCES_MIN = 5  # UTF-8 sequences per other byte above 127. Other encodings have hardly any.
_CP1252_FALLBACK = "decode as cp1252"
_RUN_ABOVE_127 = re.compile(rb"[\x80-\xff]{3,}")
_RUN_BYTES_MIN = 12  # A word or two: less is no evidence.
_RUN_DISTINCT_BYTES_MIN = 3  # A row of dots or dashes repeats one or two bytes.
_NOT_LATIN_ENCODINGS = (
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1251", "koi8_r", "cp866", "cp1253", "cp1255", "cp1256",
)  # fmt: skip
_LATIN_CODE_PAGES = {
    **dict.fromkeys(("ces", "hrv", "hun", "pol", "ron"), "cp1250"),
    "tur": "cp1254",
    **dict.fromkeys(("est", "lav", "lit"), "cp1257"),
}
"""Language → Windows code page, if not cp1252."""
_AMBIGUOUS_LANGUAGES = ("slk", "slv")  # Languages whose small words are mostly words of other languages, too.


def decode(body: bytes) -> tuple[str, str]:
    """Return the text and its encoding."""
    encoding = detect_encoding(body[:HEAD_BYTES])
    return _decode_as(body, encoding), encoding


@lru_cache(maxsize=8)
def detect_encoding(head: bytes) -> str:
    if head.startswith(_UTF_32_MARKS):
        return "utf-32"
    if head.startswith(_UTF_16_MARKS):
        return "utf-16"
    if utf_16 := _utf_16_without_mark(head[:_UTF_16_SAMPLE_BYTES]):
        return utf_16
    try:
        _decode_as(head, "utf-8-sig", "strict")
    except UnicodeDecodeError:
        return "utf-8-sig" if _is_nearly_utf_8(head) else _encoding_by_words(head)
    if _ISO_2022_ESCAPE in head:
        with suppress(UnicodeDecodeError):
            _decode_as(head, "iso2022_jp", "strict")
            return "iso2022_jp"
    return "utf-8-sig"


def error_handler(encoding: str) -> str:
    return _CP1252_FALLBACK if encoding == "utf-8-sig" else "replace"


def is_guessed(encoding: str) -> bool:
    return encoding in (*_NOT_LATIN_ENCODINGS, *_LATIN_CODE_PAGES.values())


def _decode_as(body: bytes, encoding: str, errors: str | None = None) -> str:
    is_whole = len(body) != HEAD_BYTES  # a head may end within a character
    return codecs.getincrementaldecoder(encoding)(errors or error_handler(encoding)).decode(body, is_whole)


def _utf_16_without_mark(head: bytes) -> str:
    """Return "" if it is not UTF-16: of a third of its units, one byte is NUL, nearly always on the same side."""
    even_nuls, odd_nuls = head[::2].count(0), head[1::2].count(0)
    fewer, more = sorted((even_nuls, odd_nuls))
    units = len(head) // 2
    if more < _UTF_16_NULS_MIN or 3 * more < units or 10 * fewer > more:
        return ""
    encoding = "utf-16-be" if even_nuls > odd_nuls else "utf-16-le"
    text = head[: units * 2].decode(encoding, "replace")
    return "" if "\0" in text or "�" in text[:-1] else encoding


def _is_nearly_utf_8(head: bytes) -> bool:
    sequences = _UTF_8_SEQUENCE.findall(head)
    other_bytes = _count_bytes_above_127(head) - sum(map(len, sequences))
    return len(sequences) >= _UTF_8_SEQUENCES_MIN * other_bytes


def _count_bytes_above_127(text: bytes) -> int:
    return len(text) - len(text.translate(None, _BYTES_ABOVE_127))


def _decode_byte_as_cp1252(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


codecs.register_error(_CP1252_FALLBACK, _decode_byte_as_cp1252)


def _encoding_by_words(head: bytes) -> str:
    if b"\0" in head:
        # It is not a text.
        return "cp1252"
    lines = _whole_lines(head)
    run_bytes = sum(len(run) for run in _RUN_ABOVE_127.findall(lines) if len(set(run)) >= _RUN_DISTINCT_BYTES_MIN)
    if run_bytes < _RUN_BYTES_MIN or 2 * run_bytes < _count_bytes_above_127(lines):
        # Most bytes above 127 are single letters among plain ones: a Latin script.
        return _LATIN_CODE_PAGES.get(_language_of(lines.decode("cp1252", "replace")), "cp1252")
    from charset_normalizer import from_bytes  # few texts need it

    best_match = from_bytes(lines, cp_isolation=[*_NOT_LATIN_ENCODINGS]).best()
    return best_match.encoding if best_match is not None and best_match.encoding in _NOT_LATIN_ENCODINGS else "cp1252"


def _language_of(text: str) -> str:
    # Small words have few accents, so a wrong encoding hardly changes them.
    from worker_service.base.language_id import KNOWN_LANGUAGES, language_of  # few texts need it

    return language_of(text, sorted(KNOWN_LANGUAGES.difference(_AMBIGUOUS_LANGUAGES))) or ""


def _whole_lines(head: bytes) -> bytes:
    end = head.rfind(b"\n") + 1
    return head[:end] if end and len(head) == HEAD_BYTES else head
