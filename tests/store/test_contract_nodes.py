"""What a store promises of nodes: their slots are a class of their own, and what they lose is taken back."""

from __future__ import annotations

import pytest

from tests.store.kit import MovableClock, claim_one, claimed_ids, codes, ids
from worker_service.errors import LeaseLost, WorkerUnknown
from worker_service.jobs.model import (
    NODE,
    Child,
    Failure,
    HandlerFacts,
    Lease,
    NewJob,
    NodeState,
    Report,
    Status,
    Worker,
)
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.store.store import Store

LOST = Failure("NODE_LOST", "node n1 was not heard for 9.1 s")


@pytest.fixture
def head(store: Store) -> Store:
    """A worker that reads pages on nodes, and looks at files itself."""
    facts = [
        HandlerFacts("ocr_pages", NODE),
        HandlerFacts("send", NODE, at_most_once=True),
        HandlerFacts("ingest", "cpu"),
    ]
    store.leases.register(Worker("h", "here", "boot", 1, "0", 2, 2, facts, 0, 9.0))
    return store


def has(store: Store, **slots: int) -> None:
    store.leases.set_nodes("h", [NodeState(name, "up" if most else "down", most) for name, most in slots.items()])


def enqueue(store: Store, job_type: str = "ocr_pages") -> int:
    return store.intake.enqueue(NewJob(job_type)).job_id


def taken(store: Store) -> Lease:
    has(store, n1=1)
    return claim_one(store, "h", NODE).lease


def test_p8_as_many_run_as_the_nodes_have_slots_and_the_class_of_others_is_left_alone(head: Store) -> None:
    jobs = [enqueue(head) for _ in range(4)]
    has(head, n1=2, n2=1)

    assert claimed_ids(head, "h", 10, "cpu") == []
    assert claimed_ids(head, "h", 10, NODE) == jobs[:3]
    assert codes(head, jobs[3]) == ["SLOTS_FULL"]
    ingest = enqueue(head, "ingest")
    assert claimed_ids(head, "h", 10, "cpu") == [ingest]


def test_p12_without_a_node_nothing_is_claimed_and_the_gate_says_so(head: Store) -> None:
    job = enqueue(head)
    has(head, n1=0)

    assert claimed_ids(head, "h", 1, NODE) == []
    assert codes(head, job) == ["NO_NODE"]
    has(head, n1=1)
    assert codes(head, job) == []
    assert claimed_ids(head, "h", 1, NODE) == [job]


def test_who_does_not_know_the_type_is_not_asked_why_it_waits(head: Store) -> None:
    """As beside every daemon that reads documents there is one for a person's own programs."""
    head.leases.register(Worker("commands", "here", "boot", 2, "0", 2, 2, [HandlerFacts("command")]))
    has(head, n1=0)
    job = enqueue(head)

    for dead in ([], ["commands"]):
        assert [gate.code for gate in head.reading.explain(job, dead=dead)] == ["NO_NODE"]
        assert [gate.code for gate in head.reading.standstill(dead=dead)] == ["NO_NODE"]
    assert [gate.code for gate in head.reading.explain(job, dead=["h"])] == ["WORKER_DOWN"]
    unknown = enqueue(head, "brew_tea")
    [gate] = head.reading.explain(unknown, dead=["commands"])
    assert gate.detail == "worker h has no handler for brew_tea"
    ingests = [enqueue(head, "ingest") for _ in range(3)]
    assert claimed_ids(head, "h", 2, "cpu") == ingests[:2]
    assert codes(head, ingests[2]) == ["SLOTS_FULL"]


def test_what_could_begin_is_what_waits_for_room_alone(head: Store, clock: MovableClock) -> None:
    def could() -> int:
        return head.reading.could_begin("h", NODE, most=6)

    assert could() == 0
    pages = [enqueue(head) for _ in range(4)]
    enqueue(head, "ingest")
    head.intake.enqueue(NewJob("ocr_pages", run_at=clock.after(60)))
    assert could() == 4
    clock.advance(61)
    assert could() == 5, "nobody has claimed since it came due"
    has(head, n1=1)
    assert claimed_ids(head, "h", 1, NODE) == pages[:1]
    assert could() == 4
    for _ in range(4):
        enqueue(head, "send")
    assert could() == 6, "nobody counts further"
    head.leases.set_worker_state("h", draining=True, disk_low=False)
    assert could() == 0


def test_what_could_begin_keeps_within_each_limit_and_passes_over_what_is_paused(head: Store) -> None:
    def could() -> int:
        return head.reading.could_begin("h", NODE, most=100)

    for owner in ("ann", "bob"):
        for job_type in ("ocr_pages", "send"):
            head.intake.enqueue_many([NewJob(job_type, owner=owner) for _ in range(5)])
    has(head, n1=1)
    [job] = claimed_ids(head, "h", 1, NODE)
    assert head.reading.get(job).job_type == "ocr_pages"
    assert could() == 19

    head.leases.set_limits("type", {"ocr_pages": 3})
    assert could() == 2 + 10
    head.leases.set_limits("class", {NODE: 5})
    assert could() == 4
    head.leases.set_limits("class", {})
    head.leases.set_limits("owner", {"bob": 2})
    assert could() == 2 + 5 + 2
    head.leases.set_limits("type", {})
    head.steering.pause("type", "send")
    assert could() == 4 + 2
    head.steering.pause("all", "")
    assert could() == 0


def test_the_rows_of_nodes_follow_what_was_told_last_and_a_wish_stays(head: Store, clock: MovableClock) -> None:
    head.leases.set_nodes("h", [NodeState("n1", "up", 2, 1, 3.0, "1", bytes_sent=7), NodeState("n2", "down")])
    assert head.steering.wish_of_node("n1", "drain")
    assert not head.steering.wish_of_node("n9", "drain")

    head.leases.set_nodes("h", [NodeState("n1", "silent", 1, 1, 9.0)])

    [n1] = head.reading.nodes()
    assert (n1.state, n1.slots, n1.wish, n1.worker_id) == ("silent", 1, "drain", "h")
    assert [worker.node_slots for worker in head.reading.workers()] == [1]
    assert head.steering.wish_of_node("n1", "remove")
    head.leases.set_nodes("h", [])
    assert [(one.state, one.slots, one.wish) for one in head.reading.nodes()] == [("removed", 0, "remove")]
    assert head.steering.wish_of_node("n1", "")
    head.leases.set_nodes("h", [])
    assert head.reading.nodes() == []
    with pytest.raises(WorkerUnknown):
        head.leases.set_nodes("nobody", [])


def test_of_many_nodes_the_rows_are_written_that_have_changed(head: Store) -> None:
    head.leases.set_nodes("h", [NodeState("n1", "up", 2), NodeState("n2", "up", 2), NodeState("n3", "up", 2)])

    head.leases.set_nodes("h", [NodeState("n1", "up", 2, 2), NodeState("n2", "down")], only=["n2"])

    assert [(one.name, one.state, one.running) for one in head.reading.nodes()] == [("n1", "up", 0), ("n2", "down", 0)]
    assert [worker.node_slots for worker in head.reading.workers()] == [2]


def test_an_attempt_says_where_it_ran(head: Store) -> None:
    job = enqueue(head)
    lease = taken(head)

    head.leases.report([Report(lease, node="n1"), Report(lease, child=Child(5, 6, "landlock"))])

    [attempt] = head.reading.attempts(job)
    assert (attempt.node, attempt.pid) == ("n1", 5)
    assert [(one.node, one.job_id) for one in head.reading.on_nodes()] == [("n1", job)]


def test_p6_a_lost_node_costs_no_retry_and_is_capped(head: Store) -> None:
    job = enqueue(head)

    for number in range(1, REQUEUES_MAX + 1):
        assert head.leases.requeue_one(taken(head), LOST) is Status.PENDING
        assert (head.reading.get(job).requeue_count, head.reading.get(job).retry_count) == (number, 0)
    assert head.leases.requeue_one(taken(head), LOST) is Status.FAILED

    ended = head.reading.get(job)
    assert (ended.error_code, ended.requeue_count) == ("REQUEUED_TOO_OFTEN", REQUEUES_MAX)
    assert [one.error_code for one in head.reading.attempts(job)] == ["NODE_LOST"] * REQUEUES_MAX + [
        "REQUEUED_TOO_OFTEN"
    ]
    assert head.upkeep.audit() == []


def test_what_may_run_at_most_once_does_not_begin_again_after_its_node(head: Store) -> None:
    job = enqueue(head, "send")

    assert head.leases.requeue_one(taken(head), LOST) is Status.FAILED
    assert (head.reading.get(job).error_code, head.reading.get(job).fence) == ("MAY_HAVE_RUN", 1)


def test_p7_what_was_asked_to_stop_ends_cancelled_with_its_node(head: Store) -> None:
    enqueue(head)
    lease = taken(head)
    head.steering.cancel(ids(lease.job_id), actor="ann")

    assert head.leases.requeue_one(lease, LOST) is Status.CANCELLED


def test_p2_a_lease_that_has_moved_on_takes_nothing_back(head: Store) -> None:
    enqueue(head)
    lease = taken(head)
    head.leases.release(lease)
    newer = taken(head)

    with pytest.raises(LeaseLost):
        head.leases.requeue_one(lease, LOST)
    assert head.reading.get(newer.job_id).status is Status.RUNNING


def test_of_a_dead_worker_what_ran_on_one_node_comes_back_while_another_one_may_still_run_it(head: Store) -> None:
    jobs = [enqueue(head) for _ in range(3)]
    has(head, n1=2, n2=1)
    leases = [job.lease for job in head.leases.claim("h", 3, NODE)]
    head.leases.report([Report(lease, node=node) for lease, node in zip(leases, ("n1", "n2"), strict=False)])

    assert [job.id for job in head.leases.requeue("h", but_nodes=["n2"])] == [jobs[0]]
    assert head.leases.requeue("h", but_nodes=None) == []
    assert [worker.id for worker in head.reading.workers()] == ["h"]
    assert [job.id for job in head.leases.requeue("h")] == jobs[1:]
    assert head.reading.workers() == []


def test_of_a_dead_worker_what_ran_on_nodes_waits_with_its_row(head: Store) -> None:
    far, near = enqueue(head), enqueue(head, "ingest")
    taken(head)
    claim_one(head, "h", "cpu")

    back = head.leases.requeue("h", but_nodes=None)

    assert [job.id for job in back] == [near]
    assert head.reading.get(far).status is Status.RUNNING
    assert [worker.id for worker in head.reading.workers()] == ["h"]
    assert head.leases.requeue("h", but_nodes=["n1"]) == [], "nobody has said yet where it is"
    assert [job.id for job in head.leases.requeue("h")] == [far]
    assert head.reading.workers() == []
    assert [node.state for node in head.reading.nodes()] == ["down"]
