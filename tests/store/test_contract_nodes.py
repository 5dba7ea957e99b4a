"""Cluster nodes: slots of class `node`, and jobs of a lost node, which lose no retry."""

from __future__ import annotations

import pytest

from tests.store.kit import claim_one, claimed_ids, gate_codes, jobs_with_ids
from worker_service.base.errors import LeaseLost, WorkerUnknown
from worker_service.jobs.attempts import ChildProcess, Failure, Report
from worker_service.jobs.job import Lease, NewJob, Status
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.jobs.workers import NODE, HandlerFacts, NodeState, Worker
from worker_service.store.store import Store

LOST = Failure("NODE_LOST", "n1 was lost: Ray has given it up")


@pytest.fixture
def head(store: Store) -> Store:
    """A store with a worker that runs ocr_pages on nodes and ingest itself."""
    facts = [
        HandlerFacts("ocr_pages", NODE),
        HandlerFacts("ingest", "cpu"),
    ]
    store.workers.register(Worker("h", "here", "boot", 1, "0", 2, 2, facts))
    return store


def has(store: Store, **slots: int) -> None:
    store.workers.set_nodes("h", [NodeState(name, "up" if most else "down", most) for name, most in slots.items()])


def enqueue(store: Store, job_type: str = "ocr_pages") -> int:
    return store.intake.enqueue(NewJob(job_type)).job_id


def claim_on_node(store: Store) -> Lease:
    has(store, n1=1)
    return claim_one(store, "h", NODE).lease


def test_p8_node_slots_limit_only_jobs_of_class_node(head: Store) -> None:
    jobs = [enqueue(head) for _ in range(4)]
    has(head, n1=2, n2=1)

    assert claimed_ids(head, "h", 10, "cpu") == []
    assert claimed_ids(head, "h", 10, NODE) == jobs[:3]
    assert gate_codes(head, jobs[3]) == ["SLOTS_FULL"]
    ingest = enqueue(head, "ingest")
    assert claimed_ids(head, "h", 10, "cpu") == [ingest]


def test_p12_without_a_node_nothing_is_claimed_and_the_gate_is_no_node(head: Store) -> None:
    job = enqueue(head)
    has(head, n1=0)

    assert claimed_ids(head, "h", 1, NODE) == []
    assert gate_codes(head, job) == ["NO_NODE"]
    has(head, n1=1)
    assert gate_codes(head, job) == []
    assert claimed_ids(head, "h", 1, NODE) == [job]


def test_workers_without_the_type_do_not_hide_the_gates_of_the_others(head: Store) -> None:
    head.workers.register(Worker("commands", "here", "boot", 2, "0", 2, 2, [HandlerFacts("command")]))
    has(head, n1=0)
    job = enqueue(head)

    for dead in ([], ["commands"]):
        assert [gate.code for gate in head.gates.explain(job, dead_workers=dead)] == ["NO_NODE"]
        assert [gate.code for gate in head.gates.standstill(dead_workers=dead)] == ["NO_NODE"]
    assert [gate.code for gate in head.gates.explain(job, dead_workers=["h"])] == ["WORKER_DOWN"]
    unknown = enqueue(head, "brew_tea")
    [gate] = head.gates.explain(unknown, dead_workers=["commands"])
    assert gate.detail == "worker h has no handler for brew_tea"
    ingests = [enqueue(head, "ingest") for _ in range(3)]
    assert claimed_ids(head, "h", 2, "cpu") == ingests[:2]
    assert gate_codes(head, ingests[2]) == ["SLOTS_FULL"]


def test_the_rows_of_nodes_follow_the_newest_report_and_a_drain_stays(head: Store) -> None:
    head.workers.set_nodes("h", [NodeState("n1", "up", 2, "1"), NodeState("n2", "down")])
    assert head.job_control.drain_node("n1", is_draining=True)
    assert not head.job_control.drain_node("n9", is_draining=True)

    head.workers.set_nodes("h", [NodeState("n1", "draining", 1)])

    [n1] = head.overview.nodes()
    assert (n1.state, n1.slots, n1.is_draining, n1.worker_id) == ("draining", 1, True, "h")
    assert [worker.node_slots for worker in head.overview.workers()] == [1]
    head.workers.set_nodes("h", [])
    assert [(node.state, node.slots, node.is_draining) for node in head.overview.nodes()] == [("down", 0, True)]
    assert head.job_control.drain_node("n1", is_draining=False)
    head.workers.set_nodes("h", [])
    assert head.overview.nodes() == []
    with pytest.raises(WorkerUnknown):
        head.workers.set_nodes("nobody", [])


def test_an_attempt_records_its_node(head: Store) -> None:
    job = enqueue(head)
    lease = claim_on_node(head)

    head.leases.report([Report(lease, node="n1"), Report(lease, child=ChildProcess(5, 6, "landlock"))])

    [attempt] = head.history.attempts(job)
    assert (attempt.node, attempt.pid) == ("n1", 5)
    assert [(work.node, work.job_id) for work in head.overview.work_on_nodes()] == [("n1", job)]


def test_p6_a_lost_node_costs_no_retry_and_is_capped(head: Store) -> None:
    job = enqueue(head)

    for number in range(1, REQUEUES_MAX + 1):
        assert head.leases.requeue_one(claim_on_node(head), LOST) is Status.PENDING
        assert (head.job_queries.get(job).requeue_count, head.job_queries.get(job).retry_count) == (number, 0)
    assert head.leases.requeue_one(claim_on_node(head), LOST) is Status.FAILED

    ended = head.job_queries.get(job)
    assert (ended.error_code, ended.requeue_count) == ("REQUEUED_TOO_OFTEN", REQUEUES_MAX)
    assert [attempt.error_code for attempt in head.history.attempts(job)] == ["NODE_LOST"] * REQUEUES_MAX + [
        "REQUEUED_TOO_OFTEN"
    ]
    assert head.integrity.audit() == []


def test_p7_a_job_asked_to_stop_ends_cancelled_when_its_node_is_lost(head: Store) -> None:
    enqueue(head)
    lease = claim_on_node(head)
    head.job_control.cancel(jobs_with_ids(lease.job_id), actor="ann")

    assert head.leases.requeue_one(lease, LOST) is Status.CANCELLED


def test_p2_a_lease_that_has_moved_on_takes_nothing_back(head: Store) -> None:
    enqueue(head)
    lease = claim_on_node(head)
    head.leases.release(lease)
    newer = claim_on_node(head)

    with pytest.raises(LeaseLost):
        head.leases.requeue_one(lease, LOST)
    assert head.job_queries.get(newer.job_id).status is Status.RUNNING


def test_a_requeue_returns_jobs_from_nodes_and_marks_the_nodes_down(head: Store) -> None:
    jobs = [enqueue(head) for _ in range(2)]
    has(head, n1=2)
    leases = [job.lease for job in head.leases.claim("h", 2, NODE)]
    head.leases.report([Report(leases[0], node="n1")])

    assert [job.id for job in head.leases.requeue("h")] == jobs
    assert head.overview.workers() == []
    assert [node.state for node in head.overview.nodes()] == ["down"]
