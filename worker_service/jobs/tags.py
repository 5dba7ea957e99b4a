"""Parse the tags of documents."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from msgspec import Struct

from worker_service.base.errors import BadInput

CHARACTERS_MAX = 60
_RULE = f"a tag has at most {CHARACTERS_MAX} characters on one line, without a comma, and begins with a letter or digit"


class TagCount(Struct, frozen=True):
    tag: str
    documents: int


def read_tags(words: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of words such as `Invoice, paid`, each once."""
    parts = (part.strip() for word in words for part in word.split(","))
    return tuple(dict.fromkeys(_read_tag(part) for part in parts if part))


def read_one_tag(word: str) -> str:
    tags = read_tags([word])
    if len(tags) != 1:
        raise BadInput(f"{word!r} is not one tag", _RULE)
    return tags[0]


def require_tags(words: Sequence[str]) -> tuple[str, ...]:
    tags = read_tags(words)
    if not tags:
        raise BadInput("there is no tag", "name at least one, such as invoice")
    return tags


def _read_tag(word: str) -> str:
    tag = " ".join(unicodedata.normalize("NFC", word).lower().split())
    if len(tag) > CHARACTERS_MAX or not tag.isprintable() or not tag[:1].isalnum():
        raise BadInput(f"{word[:CHARACTERS_MAX]!r} is not a tag", _RULE)
    return tag
