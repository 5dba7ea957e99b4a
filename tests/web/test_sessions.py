from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from worker_service.base.errors import BadInput, JobNotFound, RuleBroken, StoreBusy
from worker_service.settings.config import Settings
from worker_service.store.store import Store
from worker_service.web.database_sessions import SessionPool


@pytest.fixture
def sessions(settings: Settings) -> Iterator[SessionPool]:
    made = SessionPool(settings)
    yield made
    made.close()


def store_of(sessions: SessionPool) -> Store:
    with sessions.borrow("somebody") as session:
        return session.store


def test_what_is_not_there_costs_no_new_connection(sessions: SessionPool) -> None:
    store = store_of(sessions)

    with pytest.raises(JobNotFound), sessions.borrow("somebody") as session:
        session.reading.get(99)

    assert store_of(sessions) is store


@pytest.mark.parametrize("refusal", [BadInput("what is that?"), RuleBroken("the table says no")])
def test_a_refusal_costs_no_new_connection(sessions: SessionPool, refusal: Exception) -> None:
    store = store_of(sessions)

    with pytest.raises(type(refusal)), sessions.borrow("somebody"):
        raise refusal

    assert store_of(sessions) is store


def test_who_hears_no_more_of_a_list_costs_no_new_connection(sessions: SessionPool) -> None:
    def told() -> Generator[Store, None, None]:
        with sessions.borrow("somebody") as session:
            yield session.store
            yield session.store

    listing = told()
    store = next(listing)
    listing.close()

    assert store_of(sessions) is store


@pytest.mark.parametrize("trouble", [StoreBusy("locked"), ValueError("a mistake of ours")])
def test_where_the_database_or_we_are_to_blame_the_next_one_gets_another(
    sessions: SessionPool, trouble: Exception
) -> None:
    store = store_of(sessions)

    with pytest.raises(type(trouble)), sessions.borrow("somebody"):
        raise trouble

    assert store_of(sessions) is not store
