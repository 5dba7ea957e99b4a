"""Services take plain values and return values that `as_object` converts to JSON."""

from __future__ import annotations

import json

import pytest

from tests.cli.stored_documents import Shelf
from tests.store.kit import MovableClock, work_as
from worker_service.base.errors import BadInput, JobNotFound
from worker_service.jobs.job import Status
from worker_service.jobs.search import SearchRequest
from worker_service.services.enqueue import enqueue
from worker_service.services.job_advice import why
from worker_service.services.job_control import apply_plan, make_plan
from worker_service.services.job_details import get_job_details
from worker_service.services.jobs import list_jobs
from worker_service.services.overview import Overview, statistics
from worker_service.services.parse import read_selector
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.services.undo import find_undoable, undo_action


def enqueue_job(session: Session, **words: object) -> int:
    return enqueue(session, {"job_type": "ocr_pages", **words}, lambda most: b"{}").job_id


def test_a_page_of_jobs_has_the_cursor_of_the_next_one(session: Session) -> None:
    first, second, third = (enqueue_job(session, owner="alice") for _ in range(3))
    enqueue_job(session, owner="bob")
    of_alice = read_selector(now=session.clock(), owners=["alice"])

    page = list_jobs(session, of_alice, limit=2)
    next_page = list_jobs(session, of_alice, limit=2, before_id=page.next)

    assert ([job.id for job in page.items], page.next) == ([third, second], second)
    assert ([job.id for job in next_page.items], next_page.next) == ([first], None)
    assert json.loads(json.dumps(as_object(page)))["items"][0]["state"] == "pending"


def test_an_empty_word_means_the_default_or_is_refused(session: Session) -> None:
    job = session.job_queries.get(enqueue_job(session, platform="", owner="", account=""))

    assert (job.platform, job.owner, job.account) == ("local", "", "")
    with pytest.raises(BadInput, match="--platform is empty"):
        enqueue_job(session, platform=" ")
    with pytest.raises(BadInput, match="--name is empty"):
        enqueue_job(session, name="")


def test_a_plan_counts_the_jobs_of_a_change_which_can_be_undone(session: Session) -> None:
    ids = [enqueue_job(session, platform="instagram") for _ in range(7)]
    enqueue_job(session)
    plan = make_plan(session, "cancel", read_selector(now=session.clock(), platforms=["instagram"]))
    assert (plan.jobs, len(plan.sample), plan.is_single) == (7, 5, False)
    assert all(session.job_queries.get(job_id).status is Status.PENDING for job_id in ids)

    changed = apply_plan(session, plan)

    assert sorted(changed.job_ids) == ids
    assert {session.job_queries.get(job_id).status for job_id in ids} == {Status.CANCELLED}
    assert [(action.actor, action.verb, action.jobs) for action in session.history.actions()] == [("ann", "cancel", 7)]
    undo_action(session, find_undoable(session, None))
    assert Overview(session).counts.by_status[Status.PENDING] == 8


def test_why_returns_each_gate_with_a_next_move(session: Session, clock: MovableClock) -> None:
    job_id = enqueue_job(session)
    clock.advance(3600)  # its worker is silent

    reasons = why(session, job_id)

    assert [(gate.code, gate.next.partition(",")[0]) for gate in reasons.gates] == [
        ("WORKER_DOWN", "to start a daemon: pagemill run")
    ]
    assert json.loads(json.dumps(as_object(reasons)))["gates"][0]["code"] == "WORKER_DOWN"


def test_a_change_of_unknown_or_unnamed_jobs_is_refused(session: Session) -> None:
    now = session.clock()
    with pytest.raises(JobNotFound, match="no job 42"):
        make_plan(session, "cancel", read_selector(now=now, ids=[42]))
    with pytest.raises(BadInput, match="say which jobs to retry"):
        make_plan(session, "retry", read_selector(now=now))
    with pytest.raises(BadInput, match="only jobs that are pending or running can be reprioritised"):
        make_plan(session, "priority", read_selector(now=now, statuses=["failed"]), priority=1)


def test_every_nested_value_becomes_json(session: Session) -> None:
    job_id = enqueue_job(
        session, payload='{"created_at": "2026-01-01 10:00", "most": 1e999, "pages": [1, {"a": null}]}'
    )
    deep = enqueue_job(session, payload=f"{'[' * 500}{']' * 500}")

    details, counts = as_object(get_job_details(session, job_id)), as_object(statistics(session))

    assert json.loads(json.dumps([details, counts])) == [details, counts]
    assert details["job"]["payload"] == {"created_at": "2026-01-01 10:00", "most": "1e999", "pages": [1, {"a": None}]}
    assert details["job"]["state"] == "pending"
    assert details["job"]["created_at"].endswith("Z")
    assert details["events"] == []
    assert counts["items"][0]["pending"] == 2
    assert as_object(as_object([session.job_queries.get(deep)]))[0]["payload"] == json.loads("[" * 500 + "]" * 500)


def test_a_hit_is_marked_without_changing_the_text(session: Session) -> None:
    work_as(session.store)
    Shelf(session.store, session.settings.workspace).read("a.pdf", 'They say "climate risk" is "near".')

    [document] = session.search.find(SearchRequest("climate")).items

    assert document.best_pages[0].snippet == 'They say "[climate] risk" is "near".'
