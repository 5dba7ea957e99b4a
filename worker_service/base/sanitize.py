"""Untrusted text for terminals, pagers and JSON."""

from __future__ import annotations

import re

# C0 except tab and line feed, DEL, C1; direction marks; Unicode line separators and tags; surrogates.
_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\u2028\u2029\ufeff\U000e0000-\U000e007f\ud800-\udfff"
)
_CONTROLS_IN_JSON = re.compile(f"[{_CONTROLS}]")
_CONTROLS_IN_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_ENDS = re.compile(r"[\r\n\t][\r\n\t ]*")
# Zero-width joiners are needed in many scripts and in emoji.
_JOINERS = "\u200c\u200d"
_BYTE_SURROGATES = range(0xDC80, 0xDD00)


def harmless(text: str) -> str:
    """Return one line, with characters that cannot be shown escaped."""
    if text.isprintable():
        return text
    if any(character in text for character in "\n\r\t"):
        text = _LINE_ENDS.sub(" ", text).rstrip()
    return "".join(character if _is_shown(character) else _as_escape(character) for character in text)


def harmless_text(text: str) -> str:
    """Sanitise text, and keep line and page breaks."""
    return _CONTROLS_IN_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def safe_text(text: str, characters_max: int) -> str:
    return clip(harmless_text(text), characters_max)


def clip(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def strip_surrogates(text: str) -> str:
    # A file name may contain lone surrogates, a JSON message may not.
    return text.encode("utf-8", "replace").decode()


def as_json(value: object, *, indent: int | None = None, is_ascii: bool = False) -> str:
    import json  # only on demand: commands must start fast

    return escaped_json(json.dumps(value, ensure_ascii=is_ascii, indent=indent, default=str))


def escaped_json(text: str) -> str:
    return _CONTROLS_IN_JSON.sub(_as_json_escape, text)


def _is_shown(character: str) -> bool:
    import unicodedata  # only for text that is not plain

    # Python calls no space printable but U+0020.
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def _as_escape(character: str) -> str:
    number = ord(character)
    if number in _BYTE_SURROGATES:
        # Python represents a byte that is not UTF-8 by a surrogate.
        number -= 0xDC00
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _as_json_escape(match: re.Match[str]) -> str:
    import json

    return json.dumps(match[0])[1:-1]
