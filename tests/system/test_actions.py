from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from tests.kit.system import System, wait_until
from worker_service.jobs.documents import DeferredAction, DocumentRequest, IndexStatus, OnEnd
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector

DOCUMENTS = 10


def runs_by_id(system: System) -> Counter[int]:
    """Count the jobs that actions have started, by the document or job that they follow."""
    jobs = system.store.job_queries.list(Selector(job_types=("noop",)), most=1000)
    return Counter(json.loads(job.payload or "")["n"] for job in jobs)


def wait_for_actions(system: System, number: int) -> None:
    wait_until(lambda: len(runs_by_id(system)) >= number, f"{number} actions have run")


def enqueue_documents(system: System) -> list[int | None]:
    follow_ups = [DeferredAction("noop", '{"n":"{document_id}"}')]
    requests = [
        DocumentRequest(f"/{number}.pdf", f"{number}.pdf", "ab", actions=follow_ups) for number in range(DOCUMENTS)
    ]
    jobs = [NewJob("read", payload='{"pages": 1}', document=request) for request in requests]
    return [enqueued.document_id for enqueued in system.store.intake.enqueue_many(jobs)]


def enqueue_failing_jobs(system: System) -> list[int | None]:
    follow_ups = [DeferredAction("noop", '{"n":"{job_id}"}')]
    jobs = [NewJob("fail", payload='{"how":"permanent"}', on_failure=follow_ups) for _ in range(DOCUMENTS)]
    return [enqueued.job_id for enqueued in system.store.intake.enqueue_many(jobs)]


@pytest.mark.parametrize("enqueue", [enqueue_documents, enqueue_failing_jobs])
def test_each_action_runs_once_wherever_the_daemon_is_killed(
    system: System, enqueue: Callable[[System], list[int | None]]
) -> None:
    ids = enqueue(system)
    for actions_before_kill in range(2, DOCUMENTS, 4):
        daemon = system.start()
        wait_for_actions(system, actions_before_kill)
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()

    system.start()
    wait_for_actions(system, DOCUMENTS)

    live = Selector(statuses=(Status.PENDING, Status.RUNNING))
    wait_until(lambda: not system.store.job_queries.count(live), "all jobs have ended")
    assert runs_by_id(system) == Counter(ids)
    system.assert_sound()


IN_TWO_STAGES = """
from worker_service.handlers import Done, File, Handler, NewJob

def finish(context):
    (context.staging / "all.txt").write_text("read")
    return Done(files=[File("all.txt", "text")], publishes=True)

def begin(context):
    return Done(follow_ups=[NewJob("part"), NewJob("finish", after_earlier=True)])

handlers = [
    Handler("begin", begin, dict, reuse=100),
    Handler("part", lambda context: Done(), dict, reuse=100),
    Handler("finish", finish, dict, reuse=100),
]
"""


def test_a_document_does_not_fail_between_two_jobs_of_its_reading(system: System) -> None:
    system.install("stages", IN_TWO_STAGES)
    action = DeferredAction("noop", on_end=OnEnd.FAILURE)
    requests = [DocumentRequest(f"/{number}.pdf", f"{number}.pdf", "ab", actions=[action]) for number in range(60)]
    system.store.intake.enqueue_many([NewJob("begin", document=request) for request in requests])

    system.start()

    counts_by_state = system.store.library.counts_by_state
    wait_until(lambda: counts_by_state().get(IndexStatus.SUCCESS) == 60, "all documents are read")
    failures = "SELECT count(*) FROM notice WHERE kind = 'document.failed'"
    actions = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'noop'"
    assert system.sqlite3(f"SELECT ({failures}), ({actions})").stdout == "0|0\n"
    system.assert_sound()
