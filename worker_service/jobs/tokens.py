"""API tokens, sign-in links and browser sessions. Secrets are long and random, so a plain SHA-256 is stored of each."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

_TOKEN_TEXT = re.compile(r"pm_(\d{1,18})_([A-Za-z0-9_-]{43})")


class TokenScope(StrEnum):
    """In ascending order; each includes the ones before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


class TokenKind(StrEnum):
    TOKEN = "token"
    LINK = "link"
    SESSION = "session"


class NewToken(Struct, frozen=True):
    kind: TokenKind
    name: str
    digest: str
    scopes: str
    """Separated by spaces."""
    owner: str | None
    made_by: str
    until: str | None


class Token(Struct, frozen=True):
    id: int
    kind: TokenKind
    name: str
    scopes: str
    owner: str | None
    made_at: str
    made_by: str
    used_at: str | None
    until: str | None
    token_id: int | None
    """The token or link with which a session was started."""

    @property
    def scope_set(self) -> frozenset[TokenScope]:
        return frozenset(map(TokenScope, self.scopes.split()))


def new_secret() -> str:
    return secrets.token_urlsafe(32)


class GrantedRequest(Struct, frozen=True):
    wish: str
    """Digest of the request."""
    at: str
    status: int | None
    answer: str | None
    """None: accepted, and the response is not known."""
    location: str | None


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def matches_digest(secret: str, digest: str) -> bool:
    return hmac.compare_digest(digest_of(secret), digest)


def token_text(token_id: int, secret: str) -> str:
    return f"pm_{token_id}_{secret}"


def parse_token_text(word: str) -> tuple[int, str] | None:
    """Return the id and the secret."""
    match = _TOKEN_TEXT.fullmatch(word.strip()) if word.isascii() else None
    return None if match is None else (int(match[1]), match[2])


def scopes_up_to_highest(scopes: Collection[TokenScope]) -> str:
    """Return the highest scope and all below it, separated by spaces."""
    ascending = tuple(TokenScope)
    highest = max(map(ascending.index, scopes))
    return " ".join(ascending[: highest + 1])
