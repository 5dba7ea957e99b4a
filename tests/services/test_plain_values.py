"""What a person can do, without a command line: by plain values, and with answers that are JSON as they stand."""

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


def put(session: Session, **words: object) -> int:
    return enqueue(session, {"job_type": "ocr_pages", **words}, lambda most: b"{}").job_id


def test_a_page_of_jobs_says_where_the_next_begins(session: Session) -> None:
    first, second, third = (put(session, owner="alice") for _ in range(3))
    put(session, owner="bob")
    hers = read_selector(now=session.clock(), owners=["alice"])

    page = list_jobs(session, hers, limit=2)
    rest = list_jobs(session, hers, limit=2, before_id=page.next)

    assert ([one.id for one in page.items], page.next) == ([third, second], second)
    assert ([one.id for one in rest.items], rest.next) == ([first], None)
    assert json.loads(json.dumps(as_object(page)))["items"][0]["state"] == "pending"


def test_an_empty_word_is_the_default_where_there_is_one_and_refused_where_something_has_to_stand(
    session: Session,
) -> None:
    found = session.job_queries.get(put(session, platform="", owner="", account=""))

    assert (found.platform, found.owner, found.account) == ("local", "", "")
    with pytest.raises(BadInput, match="--platform is empty"):
        put(session, platform=" ")
    with pytest.raises(BadInput, match="--name is empty"):
        put(session, name="")


def test_a_plan_tells_what_a_change_would_do_and_what_was_done_can_be_undone(session: Session) -> None:
    ids = [put(session, platform="instagram") for _ in range(7)]
    put(session)
    planned = make_plan(session, "cancel", read_selector(now=session.clock(), platforms=["instagram"]))
    assert (planned.jobs, len(planned.sample), planned.is_single) == (7, 5, False)
    assert all(session.job_queries.get(job_id).status is Status.PENDING for job_id in ids)

    changed = apply_plan(session, planned)

    assert sorted(changed.job_ids) == ids
    assert {session.job_queries.get(job_id).status for job_id in ids} == {Status.CANCELLED}
    assert [(one.actor, one.verb, one.jobs) for one in session.history.actions()] == [("ann", "cancel", 7)]
    undo_action(session, find_undoable(session, None))
    assert Overview(session).counts.by_status[Status.PENDING] == 8


def test_why_answers_with_gates_and_the_next_move_of_each(session: Session, clock: MovableClock) -> None:
    job_id = put(session)
    clock.advance(3600)  # its worker is silent

    found = why(session, job_id)

    assert [(gate.code, gate.next.partition(",")[0]) for gate in found.gates] == [
        ("WORKER_DOWN", "to start a daemon: pagemill run")
    ]
    assert json.loads(json.dumps(as_object(found)))["gates"][0]["code"] == "WORKER_DOWN"


def test_what_is_not_there_or_says_nothing_is_refused(session: Session) -> None:
    now = session.clock()
    with pytest.raises(JobNotFound, match="no job 42"):
        make_plan(session, "cancel", read_selector(now=now, ids=[42]))
    with pytest.raises(BadInput, match="say which jobs to retry"):
        make_plan(session, "retry", read_selector(now=now))
    with pytest.raises(BadInput, match="only jobs that are pending or running can be reprioritised"):
        make_plan(session, "priority", read_selector(now=now, statuses=["failed"]), priority=1)


def test_what_an_operation_answers_is_json_all_the_way_down(session: Session) -> None:
    job_id = put(session, payload='{"created_at": "2026-01-01 10:00", "most": 1e999, "pages": [1, {"a": null}]}')
    deep = put(session, payload=f"{'[' * 500}{']' * 500}")

    whole, numbers = as_object(get_job_details(session, job_id)), as_object(statistics(session))

    assert json.loads(json.dumps([whole, numbers])) == [whole, numbers]
    assert whole["job"]["payload"] == {"created_at": "2026-01-01 10:00", "most": "1e999", "pages": [1, {"a": None}]}
    assert whole["job"]["state"] == "pending"
    assert whole["job"]["created_at"].endswith("Z")
    assert whole["events"] == []
    assert numbers["items"][0]["pending"] == 2
    assert as_object(as_object([session.job_queries.get(deep)]))[0]["payload"] == json.loads("[" * 500 + "]" * 500)


def test_a_former_error_code_selects_the_jobs_with_the_code_of_today(session: Session) -> None:
    assert read_selector(now=session.clock(), error_code="FORK_SERVER_DIED").error_code == "FORK_SERVER_DIED"


def test_a_hit_is_marked_without_changing_the_text(session: Session) -> None:
    work_as(session.store)
    Shelf(session.store, session.settings.workspace).read("a.pdf", 'They say "climate risk" is "near".')

    [document] = session.search.find(SearchRequest("climate")).items

    assert document.best_pages[0].snippet == 'They say "[climate] risk" is "near".'
