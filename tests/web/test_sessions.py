from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from worker_service.base.errors import BadInput, JobNotFound, RuleBroken, StoreBusy
from worker_service.settings.config import Settings
from worker_service.store.store import Store
from worker_service.web.database_sessions import SessionPool


@pytest.fixture
def sessions(settings: Settings) -> Iterator[SessionPool]:
    pool = SessionPool(settings)
    yield pool
    pool.close()


def store_of(sessions: SessionPool) -> Store:
    with sessions.borrow("somebody") as session:
        return session.store


@pytest.mark.parametrize("refusal", [JobNotFound("no job"), BadInput("no"), RuleBroken("no")])
def test_a_refused_request_keeps_the_connection(sessions: SessionPool, refusal: Exception) -> None:
    store = store_of(sessions)

    with pytest.raises(type(refusal)), sessions.borrow("somebody"):
        raise refusal

    assert store_of(sessions) is store


def test_a_list_that_is_not_read_to_its_end_keeps_the_connection(sessions: SessionPool) -> None:
    def stores() -> Generator[Store, None, None]:
        with sessions.borrow("somebody") as session:
            yield session.store
            yield session.store

    listing = stores()
    store = next(listing)
    listing.close()

    assert store_of(sessions) is store


@pytest.mark.parametrize("error", [StoreBusy("locked"), ValueError("a bug")])
def test_after_a_database_error_or_a_bug_the_next_request_gets_a_new_connection(
    sessions: SessionPool, error: Exception
) -> None:
    store = store_of(sessions)

    with pytest.raises(type(error)), sessions.borrow("somebody"):
        raise error

    assert store_of(sessions) is not store
