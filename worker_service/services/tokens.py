"""Tokens, sign-in links and browser sessions. Only digests of their secrets are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from worker_service.base.clock import add_duration, as_text, parse_duration
from worker_service.base.errors import BadInput, BadTime, Refused, TokenNotFound
from worker_service.base.suggestions import did_you_mean
from worker_service.jobs.tokens import (
    NewToken,
    Token,
    TokenKind,
    TokenScope,
    digest_of,
    matches_digest,
    new_secret,
    parse_token_text,
    scopes_up_to_highest,
    token_text,
)
from worker_service.services.parse import is_duration, read_time
from worker_service.services.session import Session

_LINK_VALID_FOR = timedelta(minutes=10)
_SESSION_VALID_FOR = timedelta(days=7)

_NAME_CHARACTERS_MAX = 100


class CreatedToken(Struct, frozen=True):
    id: int
    name: str
    text: str
    """The token with its secret, as the user gives it."""
    until: str | None


def create_token(
    session: Session,
    name: str,
    scopes: Collection[TokenScope] = (),
    *,
    owner: str | None = None,
    until: str | None = None,
) -> CreatedToken:
    """Make a token that is valid until a time or for a length such as 90d; None means until it is removed.

    Without `scopes` it can only read: it lasts long and is given to programs, so it gets the least.
    """
    valid_until = None if until is None else _parse_until(until, now=session.clock())
    created = _insert_token(session, TokenKind.TOKEN, name, scopes or [TokenScope.READ], owner, valid_until)
    if created is None:
        raise Refused(f"there is a token {name!r} already", "take another name, or `pagemill token rm` it first")
    return created


def create_link(
    session: Session,
    name: str | None = None,
    scopes: Collection[TokenScope] = (),
    *,
    owner: str | None = None,
    until: str | None = None,
) -> CreatedToken:
    """Make a link that signs in a browser once.

    Without `scopes` it has all of them, because it works once, for minutes, and its maker has them too.
    """
    session.store.tokens.forget_ended()  # links and sessions are many
    now = session.clock()
    valid_until = add_duration(now, _LINK_VALID_FOR) if until is None else _parse_until(until, now=now)
    link = _insert_token(session, TokenKind.LINK, name or session.actor, scopes or [*TokenScope], owner, valid_until)
    assert link is not None  # only tokens need a unique name
    return link


def begin_browser_session(session: Session, text: str) -> CreatedToken | None:
    """Begin a session by the text of a token, or of a link, which works once. Return None if the text is neither."""
    token_or_link = _find_valid(session, text, TokenKind.TOKEN, TokenKind.LINK)
    if token_or_link is None:
        return None  # before anything is written: the visitor may only be guessing
    session.store.tokens.forget_ended()
    until = as_text(add_duration(session.clock(), _SESSION_VALID_FOR))
    # The end of a link limits only the sign-in; the end of a token also limits its sessions.
    if token_or_link.kind is TokenKind.TOKEN and token_or_link.until is not None:
        until = min(until, token_or_link.until)
    secret = new_secret()
    new = NewToken(
        kind=TokenKind.SESSION,
        name=token_or_link.name,
        digest=digest_of(secret),
        scopes=token_or_link.scopes,
        owner=token_or_link.owner,
        made_by=token_or_link.made_by,
        until=until,
    )
    session_id = session.store.tokens.begin_session(token_or_link.id, new)
    if session_id is None:
        return None  # since it was found, the link was used or the token removed
    return CreatedToken(session_id, token_or_link.name, token_text(session_id, secret), until)


def find_token(session: Session, text: str) -> Token | None:
    return _find_valid(session, text, TokenKind.TOKEN)


def find_browser_session(session: Session, text: str) -> Token | None:
    return _find_valid(session, text, TokenKind.SESSION)


def list_tokens(session: Session) -> Sequence[Token]:
    """List all tokens, and the links and sessions that are still usable."""
    now = as_text(session.clock())
    return [token for token in session.store.tokens.list() if token.kind is TokenKind.TOKEN or _is_usable(token, now)]


def _is_usable(token: Token, now: str) -> bool:
    if token.kind is TokenKind.LINK and token.used_at is not None:
        return False
    return token.until is None or token.until > now


def remove_tokens(session: Session, names_or_ids: Sequence[str]) -> int:
    """Remove tokens by name or id, with the sessions that were begun with them."""
    tokens = session.store.tokens.list()
    # No name of a token is a number.
    id_by_name_or_id = {token.name: token.id for token in tokens if token.kind is TokenKind.TOKEN}
    id_by_name_or_id |= {str(token.id): token.id for token in tokens}
    for name_or_id in names_or_ids:
        if name_or_id not in id_by_name_or_id:
            hint = did_you_mean(name_or_id, id_by_name_or_id, "`pagemill token ls` shows what there is")
            raise TokenNotFound(f"there is no token {name_or_id!r}", hint)
    ids = [id_by_name_or_id[name_or_id] for name_or_id in names_or_ids]
    return session.store.tokens.remove(ids, actor=session.actor)


def end_browser_session(session: Session, text: str) -> None:
    browser_session = find_browser_session(session, text)
    if browser_session is not None:
        # Without an actor, no action is recorded: users sign out all the time.
        session.store.tokens.remove([browser_session.id], actor=None)


def note_use(session: Session, used_at_by_id: Mapping[int, str]) -> None:
    session.store.tokens.note_use(used_at_by_id)


def _parse_until(text: str, *, now: datetime) -> datetime:
    """Parse 90d (from now) or a time in the future."""
    until = add_duration(now, parse_duration(text)) if is_duration(text) else read_time(text, now=now)
    if until <= now:
        raise BadTime(f"{text!r} is in the past", "write the end as 90d, or '2027-01-31 10:00' (UTC)")
    return until


def _insert_token(
    session: Session,
    kind: TokenKind,
    name: str,
    scopes: Collection[TokenScope],
    owner: str | None,
    until: datetime | None,
) -> CreatedToken | None:
    if not name.strip() or not name.isprintable() or len(name) > _NAME_CHARACTERS_MAX or name.isdigit():
        raise BadInput(f"the name of a token is one line of at most {_NAME_CHARACTERS_MAX} letters, and not a number")
    if owner is not None and (not owner.strip() or len(owner) > _NAME_CHARACTERS_MAX):
        raise BadInput(f"an owner's name has 1 to {_NAME_CHARACTERS_MAX} characters")
    secret, until_text = new_secret(), None if until is None else as_text(until)
    new = NewToken(
        kind=kind,
        name=name,
        digest=digest_of(secret),
        scopes=scopes_up_to_highest(scopes),
        owner=owner,
        made_by=session.actor,
        until=until_text,
    )
    token_id = session.store.tokens.make(new)
    return None if token_id is None else CreatedToken(token_id, name, token_text(token_id, secret), until_text)


def _find_valid(session: Session, text: str, *kinds: TokenKind) -> Token | None:
    """Return the token with this text if it is of one of the kinds and has not expired."""
    # Whether a link was used is checked when the session begins.
    parsed = parse_token_text(text)
    if parsed is None:
        return None
    token_id, secret = parsed
    stored = session.store.tokens.find(token_id)
    if stored is None:
        return None
    token, digest = stored
    if not matches_digest(secret, digest) or token.kind not in kinds:
        return None
    has_expired = token.until is not None and token.until <= as_text(session.clock())
    return None if has_expired else token
