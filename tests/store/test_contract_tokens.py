"""API tokens, links and sessions."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from tests.store.kit import MovableClock
from worker_service.base.clock import add_duration, as_text
from worker_service.jobs.tokens import NewToken, TokenKind, TokenScope
from worker_service.store.store import Store

ANNS_TOKEN = NewToken(TokenKind.TOKEN, "grafana", "d1", "read", None, "ann", None)


def link(clock: MovableClock, name: str = "bob") -> NewToken:
    until = as_text(add_duration(clock(), timedelta(minutes=10)))
    return NewToken(TokenKind.LINK, name, "d2", "read operate", "bob", "ann", until)


def session(clock: MovableClock) -> NewToken:
    return replace(link(clock), kind=TokenKind.SESSION)


def test_a_token_is_found_with_its_digest_and_its_name_is_unique(store: Store) -> None:
    token_id = store.tokens.make(ANNS_TOKEN)

    assert token_id is not None
    assert store.tokens.make(ANNS_TOKEN) is None
    found = store.tokens.find(token_id)
    assert found is not None
    assert (found[0].name, found[0].kind, [*found[0].scope_set], found[1]) == (
        "grafana",
        TokenKind.TOKEN,
        [TokenScope.READ],
        "d1",
    )
    assert store.tokens.find(token_id + 1) is None


def test_several_links_may_have_one_name(store: Store, clock: MovableClock) -> None:
    assert store.tokens.make(link(clock)) != store.tokens.make(link(clock))


def test_a_link_begins_one_session_and_a_token_many(store: Store, clock: MovableClock) -> None:
    once, often = store.tokens.make(link(clock)), store.tokens.make(ANNS_TOKEN)
    assert once is not None
    assert often is not None

    assert store.tokens.begin_session(once, session(clock)) is not None
    assert store.tokens.begin_session(once, session(clock)) is None
    assert store.tokens.begin_session(often, session(clock)) != store.tokens.begin_session(often, session(clock))
    assert [token.token_id for token in store.tokens.list() if token.kind is TokenKind.SESSION] == [once, often, often]


def test_an_expired_link_or_a_session_starts_no_session(store: Store, clock: MovableClock) -> None:
    late = store.tokens.make(link(clock))
    token = store.tokens.make(ANNS_TOKEN)
    assert late is not None
    assert token is not None
    inside = store.tokens.begin_session(token, session(clock))
    assert inside is not None
    clock.advance(3600)

    assert store.tokens.begin_session(late, session(clock)) is None
    assert store.tokens.begin_session(inside, session(clock)) is None
    assert store.tokens.begin_session(99, session(clock)) is None


def test_removing_a_token_removes_its_sessions(store: Store, clock: MovableClock) -> None:
    anns, second = store.tokens.make(ANNS_TOKEN), store.tokens.make(replace(ANNS_TOKEN, name="nagios"))
    assert anns is not None
    assert second is not None
    store.tokens.begin_session(anns, session(clock))
    session_of_second = store.tokens.begin_session(second, session(clock))

    assert store.tokens.remove([anns, 99], actor="ann") == 1
    assert [token.id for token in store.tokens.list()] == [second, session_of_second]


def test_expired_links_and_sessions_are_deleted_but_tokens_kept(store: Store, clock: MovableClock) -> None:
    until = link(clock).until
    kept = store.tokens.make(replace(ANNS_TOKEN, until=until))
    assert kept is not None
    store.tokens.make(link(clock))
    store.tokens.begin_session(kept, session(clock))
    assert store.tokens.forget_ended() == 0
    clock.advance(3600)

    assert store.tokens.forget_ended() == 2
    assert [token.id for token in store.tokens.list()] == [kept]


def test_the_last_use_of_a_token_never_goes_back(store: Store) -> None:
    token_id = store.tokens.make(ANNS_TOKEN)
    assert token_id is not None

    store.tokens.note_use({token_id: "2026-11-18 10:00:05.000", 99: "2026-11-18 10:00:05.000"})
    store.tokens.note_use({token_id: "2026-11-18 10:00:01.000"})

    assert [token.used_at for token in store.tokens.list()] == ["2026-11-18 10:00:05.000"]
