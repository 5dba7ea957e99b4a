from __future__ import annotations

import json
import os
import signal

import pytest

from tests.kit.system import System, wait_until
from worker_service.jobs.documents import DocumentPages, DocumentRequest
from worker_service.jobs.job import Job, NewJob, Status


def enqueue(system: System, *, forced: bool = False, **payload: object) -> Job:
    request = DocumentRequest("/paper.pdf", "paper.pdf", "ab", is_forced=forced)
    return system.job(system.store.intake.enqueue(NewJob("read", payload=json.dumps(payload), document=request)).job_id)


def pages(system: System, job: Job) -> list[int]:
    lease = system.job(job.id).lease
    return [page.number for page in system.store.attempts.answer(lease, DocumentPages(1, 10)).pages]


@pytest.mark.parametrize("victim", ["daemon", "fork-server"])
def test_pages_saved_before_a_crash_are_not_read_again(system: System, victim: str) -> None:
    job = enqueue(system, pages=4, stop_before=4)
    daemon = system.start()
    wait_until(lambda: system.status(job.id) is Status.RUNNING and len(pages(system, job)) == 3, "three pages")
    wait_until(lambda: system.store.attempts.checkpoint_of(job.id) == "[1, 2, 3]", "the third checkpoint")

    if victim == "daemon":
        daemon.signal(signal.SIGKILL)
        daemon.wait_for_exit()
        system.start()
    else:
        for fork_server in daemon.fork_server_pids():
            os.kill(fork_server, signal.SIGKILL)

    result = system.wait_for(job.id, Status.COMPLETED).result
    assert json.loads(result or "") == {"known": 3, "begun_with": [1, 2, 3], "inputs": []}
    [text] = system.store.attempts.inputs(job.document_id or 0)
    assert (system.workspace / text.path).read_text() == "page 1 page 2 page 3 page 4"
    system.assert_sound()


def test_published_files_are_the_inputs_of_the_next_job(system: System) -> None:
    first = enqueue(system, pages=2)
    system.start()
    system.wait_for(first.id, Status.COMPLETED)

    again = enqueue(system, pages=2, forced=True)

    result = json.loads(system.wait_for(again.id, Status.COMPLETED).result or "")
    assert (again.generation, result["known"], result["inputs"]) == (2, 2, ["text"])
