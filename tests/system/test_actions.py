"""What follows documents and jobs, with a real daemon that is killed again and again while they end."""

from __future__ import annotations

import json
import signal
from collections import Counter

from tests.kit.system import System, wait_until
from worker_service.jobs.documents import DeferredAction, DocumentRequest, IndexStatus, OnEnd
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector

DOCUMENTS = 10


def followed(system: System) -> Counter[int]:
    jobs = system.store.job_queries.list(Selector(job_types=("noop",)), most=1000)
    return Counter(json.loads(job.payload or "")["n"] for job in jobs)


def wait_for_followed(system: System, number: int) -> None:
    wait_until(lambda: len(followed(system)) >= number, f"{number} are followed")


def test_each_document_is_followed_once_wherever_the_daemon_is_killed(system: System) -> None:
    follows = [DeferredAction("noop", '{"n":"{document_id}"}')]
    wishes = [DocumentRequest(f"/{number}.pdf", f"{number}.pdf", "ab", actions=follows) for number in range(DOCUMENTS)]
    jobs = [NewJob("read", payload=json.dumps({"pages": 1}), document=wish) for wish in wishes]
    documents = [one.document_id for one in system.store.intake.enqueue_many(jobs)]
    for done in range(2, DOCUMENTS, 4):
        daemon = system.start()
        wait_for_followed(system, done)
        daemon.signal(signal.SIGKILL)
        daemon.ends()

    system.start()
    wait_for_followed(system, DOCUMENTS)
    wait_until(
        lambda: not system.store.job_queries.count(Selector(statuses=(Status.PENDING, Status.RUNNING))), "all has ended"
    )

    assert followed(system) == Counter(documents)
    assert system.store.library.counts_by_state()[IndexStatus.SUCCESS] == DOCUMENTS
    told = system.sqlite3("SELECT count(*), count(DISTINCT document_id) FROM notice WHERE kind = 'action.fired'").stdout
    assert told == f"{DOCUMENTS}|{DOCUMENTS}\n"
    system.assert_sound()


def test_each_failure_is_followed_once_wherever_the_daemon_is_killed(system: System) -> None:
    follows = [DeferredAction("noop", '{"n":"{job_id}"}')]
    jobs = [NewJob("fail", payload='{"how":"permanent"}', on_failure=follows) for _ in range(DOCUMENTS)]
    failing = [one.job_id for one in system.store.intake.enqueue_many(jobs)]
    for done in range(2, DOCUMENTS, 4):
        daemon = system.start()
        wait_for_followed(system, done)
        daemon.signal(signal.SIGKILL)
        daemon.ends()

    system.start()
    wait_for_followed(system, DOCUMENTS)

    assert followed(system) == Counter(failing)
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


def test_a_document_whose_reading_goes_on_is_never_failed_in_between(system: System) -> None:
    system.install("stages", IN_TWO_STAGES)
    reaction = DeferredAction("noop", on_end=OnEnd.FAILURE)
    wishes = [DocumentRequest(f"/{number}.pdf", f"{number}.pdf", "ab", actions=[reaction]) for number in range(60)]
    system.store.intake.enqueue_many([NewJob("begin", document=wish) for wish in wishes])

    system.start()

    read = system.store.library.counts_by_state
    wait_until(lambda: read().get(IndexStatus.SUCCESS) == 60, "all are read")
    failures = "SELECT count(*) FROM notice WHERE kind = 'document.failed'"
    reactions = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'noop'"
    assert system.sqlite3(f"SELECT ({failures}), ({reactions})").stdout == "0|0\n"
    system.assert_sound()
