"""Text from outside, without power over whoever looks at it: a terminal, a pager, a reader of JSON.

A name, a row or a log line may hold what a terminal obeys, what turns text around, or a byte that was no UTF-8.
"""

from __future__ import annotations

import re

# C0 but for tab and line feed, DEL, C1; what turns text around; Unicode's own line ends and tags; bytes of no UTF-8.
_POWERFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\u2028\u2029\ufeff\U000e0000-\U000e007f\ud800-\udfff"
)
_IN_JSON = re.compile(f"[{_POWERFUL}]")
_IN_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_ENDS = re.compile(r"[\r\n\t][\r\n\t ]*")
# Between letters of many scripts, and between the parts of an emoji.
_JOINERS = "\u200c\u200d"
_BYTES = range(0xDC80, 0xDD00)
# What a spreadsheet takes for the beginning of a formula, in whichever width.
_SIGNED = re.compile(r"[+-](?:[ .,]?\d+)*%?")
"""A number, or the dash that stands for none."""
_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def harmless(text: str) -> str:
    """On one line; what cannot be shown is spelled out."""
    if text.isprintable():
        return text
    if any(letter in text for letter in "\n\r\t"):
        text = _LINE_ENDS.sub(" ", text).rstrip()
    return "".join(letter if _is_plain(letter) else _spelled(letter) for letter in text)


def harmless_text(text: str) -> str:
    """Of a whole text: lines and pages stay as they are divided."""
    return _IN_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def harmless_cell(value: object) -> object:
    """Of a spreadsheet: a number, or text that stays text."""
    if not isinstance(value, str):
        return value
    text = harmless(value)
    if _SIGNED.fullmatch(value):
        return text
    return f"'{text}" if value.startswith(_BEGINS_FORMULA) or text.startswith(_BEGINS_FORMULA) else text


def as_json(value: object, *, indent: int | None = None, is_ascii: bool = False) -> str:
    """JSON with its real values, each of which is escaped where it would act."""
    import json  # not where nobody asks for it: commands start in a moment

    return escaped_json(json.dumps(value, ensure_ascii=is_ascii, indent=indent, default=str))


def escaped_json(text: str) -> str:
    """What is JSON already."""
    return _IN_JSON.sub(_escaped, text)


def _is_plain(letter: str) -> bool:
    import unicodedata

    return letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs"


def _spelled(letter: str) -> str:
    number = ord(letter)
    if number in _BYTES:
        # A byte that was no UTF-8, as Python carries it.
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _escaped(found: re.Match[str]) -> str:
    import json

    return json.dumps(found[0])[1:-1]
