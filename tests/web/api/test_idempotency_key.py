from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.store.kit import work_as
from tests.web.conftest import bearing
from worker_service.base.clock import add_duration, as_text
from worker_service.base.errors import IdempotencyConflict
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import TokenScope
from worker_service.services import idempotency, tokens
from worker_service.services.idempotency import AnswerUnknown, StoredResponse
from worker_service.services.session import Session

KEY = {"Idempotency-Key": "k1"}

Ask = Callable[[httpx.Client], httpx.Response]


def job(site: httpx.Client) -> httpx.Response:
    return site.post("/api/jobs", json={"job_type": "a"}, headers=KEY)


def batch(site: httpx.Client, name: str = "reports", **headers: str) -> httpx.Response:
    return site.post("/api/batches", json={"name": name, "jobs": [{"job_type": "a"}]}, headers=KEY | headers)


def file(site: httpx.Client, content: bytes = b"a,b\n") -> httpx.Response:
    return site.post("/api/uploads", files={"file": ("a.csv", content)}, data={"force": "true"}, headers=KEY)


def retry_job(site: httpx.Client) -> httpx.Response:
    return site.post("/api/jobs/1/retry", headers=KEY)


def all_jobs(session: Session) -> list[int]:
    return [*session.store.job_queries.ids(Selector())]


@pytest.mark.parametrize("ask", [job, batch, file])
def test_concurrent_repeats_run_once_and_get_the_same_response(site: httpx.Client, session: Session, ask: Ask) -> None:
    work_as(session.store)
    with ThreadPoolExecutor(6) as together:
        answers = [*together.map(lambda _: ask(site), range(6)), ask(site)]

    assert {(answer.status_code, answer.text, answer.headers.get("location")) for answer in answers} == {
        (201, answers[0].text, answers[0].headers.get("location"))
    }
    assert len(all_jobs(session)) == 1


def test_a_repeated_retry_request_retries_once(site: httpx.Client, session: Session) -> None:
    [job_id] = [session.store.intake.enqueue(NewJob("a")).job_id]
    session.store.job_control.cancel(Selector(ids=(job_id,)), actor="test")

    first = retry_job(site)
    session.store.job_control.cancel(Selector(ids=(job_id,)), actor="test")

    assert retry_job(site).json() == first.json()
    assert session.store.job_queries.get(job_id).status is Status.CANCELLED


def test_another_request_with_the_same_key_is_refused(site: httpx.Client) -> None:
    assert batch(site).status_code == 201

    for answer in (batch(site, "others"), file(site), retry_job(site)):
        problem = answer.json()
        assert (answer.status_code, problem["detail"], problem["remedy"]) == (
            409, "that Idempotency-Key was used for another request", "use a new one",
        )  # fmt: skip


def test_a_refused_request_may_be_repeated_with_its_key(site: httpx.Client, session: Session) -> None:
    assert retry_job(site).status_code == 404
    job_id = session.store.intake.enqueue(NewJob("a")).job_id
    assert retry_job(site).status_code == 409
    session.store.job_control.cancel(Selector(ids=(job_id,)), actor="test")

    assert retry_job(site).status_code == 200


def test_each_visitor_has_keys_of_their_own(site: httpx.Client, session: Session) -> None:
    alice, bob = (
        bearing(tokens.create_token(session, name, [TokenScope.OPERATE], owner=name).text) for name in ("alice", "bob")
    )

    hers, his = batch(site, **alice).json(), batch(site, **bob).json()

    assert (hers["batch"]["owner"], his["batch"]["owner"]) == ("alice", "bob")


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
def test_an_invalid_key_is_refused(site: httpx.Client, key: str) -> None:
    answer = site.post("/api/batches/1/stop", headers={"Idempotency-Key": key})

    assert (answer.status_code, "one line of at most 255" in answer.json()["detail"]) == (400, True)


def test_a_request_interrupted_by_a_crash_is_not_run_again_and_says_so(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "_ANSWER_SECONDS_MAX", 0.05)

    def run() -> StoredResponse:
        session.store.intake.enqueue(NewJob("a"))
        raise KeyboardInterrupt  # like a crash: nothing more is written

    with pytest.raises(KeyboardInterrupt):
        idempotency.run_once(session, "key", "request", run)

    with pytest.raises(AnswerUnknown, match="look for what it has created"):
        idempotency.run_once(session, "key", "request", run)
    assert len(all_jobs(session)) == 1


def test_the_second_of_two_concurrent_requests_changes_nothing(session: Session) -> None:
    first, second = session.store.idempotency_keys, session.store.intake

    def enqueue_with_key() -> Any:
        with first.granting("key", "request"):
            second.enqueue(NewJob("a"))

    enqueue_with_key()
    with pytest.raises(IdempotencyConflict):
        enqueue_with_key()

    assert len(all_jobs(session)) == 1


def test_a_key_is_forgotten_after_a_month(session: Session) -> None:
    session.store.idempotency_keys.store_response("old", "request", 200, "{}", None)
    later = add_duration(session.clock(), timedelta(days=31))
    session.store.database.clock = lambda: later
    session.store.idempotency_keys.store_response("new", "request", 200, "{}", None)

    assert session.store.idempotency_keys.find("old") is None
    found = session.store.idempotency_keys.find("new")
    assert found is not None
    assert found.at == as_text(later)
