"""Tokens, one-time links and the sessions of browsers. Pure.

The secret is random and long, so that its SHA-256 is kept and nothing can be made of that. What people are given says
which token it is, too: it is looked up by that, and its secret compared in a time that does not depend on it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct


class Power(StrEnum):
    """Each has those before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


class Kind(StrEnum):
    TOKEN = "token"
    LINK = "link"
    SESSION = "session"


class NewToken(Struct, frozen=True):
    kind: Kind
    name: str
    digest: str
    scopes: str
    owner: str | None
    made_by: str
    until: str | None


class Token(Struct, frozen=True):
    id: int
    kind: Kind
    name: str
    scopes: str
    owner: str | None
    made_at: str
    made_by: str
    used_at: str | None
    until: str | None
    token_id: int | None

    @property
    def powers(self) -> frozenset[Power]:
        return frozenset(map(Power, self.scopes.split()))


_WORD = re.compile(r"pm_(\d{1,18})_([A-Za-z0-9_-]{43})")


def new_secret() -> str:
    return secrets.token_urlsafe(32)


class GrantedRequest(Struct, frozen=True):
    """A wish that came with a key, and was granted."""

    wish: str
    """A digest of what was asked."""
    at: str
    status: int | None
    answer: str | None
    """None: it is not known, or not yet."""
    location: str | None


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret(secret: str, digest: str) -> bool:
    return hmac.compare_digest(digest_of(secret), digest)


def word_of(token_id: int, secret: str) -> str:
    """Return what the client shows."""
    return f"pm_{token_id}_{secret}"


def read_word(word: str) -> tuple[int, str] | None:
    """The id and the secret. None: it is none of ours."""
    found = _WORD.fullmatch(word.strip()) if word.isascii() else None
    return None if found is None else (int(found[1]), found[2])


def with_lower(powers: Collection[Power]) -> str:
    """As the row has it: each power brings along what stands below it."""
    ladder = tuple(Power)
    highest = max(map(ladder.index, powers))
    return " ".join(ladder[: highest + 1])
