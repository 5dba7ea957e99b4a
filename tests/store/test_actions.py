"""Deferred actions: added and never replaced, and run once for each generation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.store.kit import ByHand, ask_for, claim, ids, publish, settle, wish, work_as
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.batches import BatchState, NewBatch, OwnerPolicy
from worker_service.jobs.documents import Decision, DeferredAction, OnEnd
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

BROKEN = Failure("BROKEN", "it broke")
HOOK = DeferredAction("action", '{"url":"a"}')
OTHER = DeferredAction("action", '{"url":"b"}')
CALL = DeferredAction("action", '{"call":"ann"}', OnEnd.FAILURE)


@pytest.fixture(autouse=True)
def worker_is_there(store: Store) -> None:
    work_as(store)


def fired(store: Store) -> list[Any]:
    """The payloads of what has followed, in its order."""
    jobs = store.job_queries.list(Selector(job_types=("action",)))
    return [json.loads(job.payload or "null") for job in sorted(jobs, key=lambda job: job.id)]


def publish_it(store: Store) -> Job:
    job = claim(store, "ingest")
    assert store.leases.complete_many([Completion(job.lease, publishes=True)]) == []
    return job


def run_what_follows(store: Store) -> None:
    settle(store)
    while jobs := store.leases.claim("w1", 9, only=["action"]):
        for job in jobs:
            store.leases.complete(job.lease)


def fail_it(store: Store) -> Job:
    job = claim(store, "ingest")
    store.leases.fail(job.lease, BROKEN, retry_at=None)
    return job


# ── Of a document ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_wish_adds_to_the_first_and_the_same_twice_is_one(store: Store) -> None:
    ask_for(store, actions=[HOOK])
    again = ask_for(store, actions=[OTHER, HOOK])

    publish_it(store)

    assert again.decision is Decision.UNDER_WAY
    assert fired(store) == [{"url": "a"}, {"url": "b"}]


def test_on_a_document_that_is_read_it_follows_at_once_and_reads_nothing_again(store: Store) -> None:
    document_id = publish(store)

    asked = ask_for(store, actions=[HOOK])
    same = ask_for(store, actions=[HOOK])

    assert (asked.decision, same.decision) == (Decision.UNCHANGED, Decision.UNCHANGED)
    assert fired(store) == [{"url": "a"}]
    assert store.library.document(document_id).index_generation == 1


def test_only_what_stands_follows_the_next_generation_as_well(store: Store) -> None:
    standing = DeferredAction("action", '{"url":"always"}', is_standing=True)
    publish(store, actions=[HOOK, standing])
    for _ in range(2):
        run_what_follows(store)
        ask_for(store, is_forced=True)
        publish_it(store)

    assert fired(store) == [{"url": "a"}, {"url": "always"}, {"url": "always"}, {"url": "always"}]


def test_what_has_not_followed_an_older_generation_does_not_follow_a_newer_one(store: Store) -> None:
    ask_for(store, actions=[HOOK])
    ask_for(store, content="c2")

    publish_it(store)

    assert fired(store) == []


@pytest.mark.parametrize("taken_by", ["the other batch", "a newer batch"])
def test_what_was_asked_for_follows_though_another_batch_has_taken_the_document_over(
    store: Store, taken_by: str
) -> None:
    if taken_by == "the other batch":
        first = store.batches.add(NewBatch("ann"), [wish("a")]).batch
        store.batches.add(NewBatch("ann"), [wish("a", actions=(HOOK,))], policy=OwnerPolicy.OFF)
        store.batches.stop(first.id, actor="ann")
    else:
        store.batches.add(NewBatch("ann"), [wish("a", actions=(HOOK,))])
        store.batches.add(NewBatch("ann"), [wish("a")])

    publish_it(store)
    settle(store)

    assert fired(store) == [{"url": "a"}]


def test_after_a_failure_follows_what_was_asked_for_that_and_once(store: Store) -> None:
    ask_for(store, actions=[HOOK, CALL])
    failed = fail_it(store)
    settle(store)
    assert fired(store) == [{"call": "ann"}]
    run_what_follows(store)

    store.job_control.retry(ids(failed.id), actor="ann")
    fail_it(store)
    settle(store)

    assert fired(store) == [{"call": "ann"}]


def test_a_document_that_is_read_after_it_had_failed_is_followed_by_both(store: Store) -> None:
    ask_for(store, actions=[HOOK, CALL])
    failed = fail_it(store)
    run_what_follows(store)
    store.job_control.retry(ids(failed.id), actor="ann")

    publish_it(store)

    assert fired(store) == [{"call": "ann"}, {"url": "a"}]


def test_a_completion_that_is_refused_is_followed_by_nothing(store: Store) -> None:
    ask_for(store, actions=[HOOK])
    job = claim(store, "ingest")
    store.job_control.cancel(ids(job.id), actor="ann")

    assert store.leases.complete_many([Completion(job.lease, publishes=True)]) == [job.lease]

    assert fired(store) == []


def test_what_follows_is_of_the_owner_the_document_and_the_batch_and_as_urgent(store: Store) -> None:
    added = store.batches.add(NewBatch(owner="ann"), [wish(owner="ann", actions=[HOOK])])
    store.job_control.priority(Selector(batch_ids=(added.batch.id,)), 2, actor="ann")
    publish_it(store)

    [job] = store.job_queries.list(Selector(job_types=("action",)))

    assert (job.owner, job.batch_id, job.priority, job.document_id, job.generation) == (
        "ann",
        added.batch.id,
        2,
        1,
        None,
    )
    assert store.batches.get(added.batch.id).state is BatchState.ACTIVE, "it is of the batch, and lives"
    [action] = store.library.actions_of(1)
    assert (action.job_id, action.generation) == (job.id, 1)
    assert action.fired_at is not None


def test_a_word_in_a_payload_stands_for_what_has_ended(store: Store) -> None:
    words = '{"document":"{document_id}","text":"{document_id} is {state}","list":["{error_code}"],"other":"{else}"}'
    publish(store, actions=[DeferredAction("action", words)])

    assert fired(store) == [{"document": 1, "text": "1 is success", "list": [None], "other": "{else}"}]


def test_a_payload_can_name_the_document_its_owner_its_batch_and_its_generation(store: Store) -> None:
    words = '{"of":"{owner}: {name}","batch":"{batch_id}","generation":"{generation}"}'
    store.batches.add(
        NewBatch(owner="ann"), [wish("{owner}.pdf", owner="ann", actions=[DeferredAction("action", words)])]
    )
    publish_it(store)

    assert fired(store) == [{"of": "ann: {owner}.pdf of ann", "batch": 1, "generation": 1}]


def test_each_that_is_fired_is_told(store: Store, by_hand: ByHand) -> None:
    publish(store, actions=[HOOK])

    [told] = by_hand("SELECT document_id, job_id, code FROM notice WHERE kind = 'action.fired'")
    assert told == {"document_id": 1, "job_id": 2, "code": "action"}


def test_with_its_document_goes_what_would_have_followed(store: Store, by_hand: ByHand) -> None:
    document_id = publish(store, actions=[HOOK])
    run_what_follows(store)

    store.removal.remove_documents([document_id], actor="ann")

    assert by_hand("SELECT * FROM deferred_action") == []


# ── Of documents with a tag ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_action_of_a_tag_follows_each_document_with_it(store: Store) -> None:
    assert store.tags.add_action("invoice", HOOK, owner="")
    assert not store.tags.add_action("invoice", HOOK, owner=""), "the tag has it already"
    store.tags.add_action("invoice", CALL, owner="")

    publish(store, "b.pdf", tags=["paid"])
    publish(store, "a.pdf", tags=["invoice", "paid"])
    settle(store)
    assert fired(store) == [{"url": "a"}]
    run_what_follows(store)

    ask_for(store, "c.pdf", tags=["invoice"])
    fail_it(store)
    settle(store)
    assert fired(store) == [{"url": "a"}, {"call": "ann"}]


def test_the_action_of_an_owner_s_tag_leaves_other_owners_alone(store: Store) -> None:
    store.tags.add_action("invoice", HOOK, owner="ann")

    publish(store, "a.pdf", owner="bob", tags=["invoice"])
    assert fired(store) == []
    publish(store, "a.pdf", owner="ann", tags=["invoice"])

    assert fired(store) == [{"url": "a"}]
    assert [one.tag for one in store.tags.actions("ann")] == ["invoice"]
    assert store.tags.actions("bob") == []


def test_tagging_a_document_that_is_read_starts_the_action_once_per_generation(store: Store) -> None:
    store.tags.add_action("invoice", HOOK, owner="")
    document_id = publish(store, "a.pdf")

    assert store.tags.add([document_id], ["invoice", "paid"]) == [document_id]
    assert store.tags.add([document_id], ["invoice"]) == []
    assert store.tags.remove([document_id], ["invoice"]) == [document_id]
    store.tags.add([document_id], ["invoice"])
    assert fired(store) == [{"url": "a"}]
    run_what_follows(store)

    ask_for(store, "a.pdf", is_forced=True)
    publish_it(store)
    assert fired(store) == [{"url": "a"}, {"url": "a"}], "a new generation starts it again"


def test_a_tag_given_with_a_request_for_a_known_document_starts_its_action(store: Store) -> None:
    store.tags.add_action("invoice", HOOK, owner="")
    publish(store, "a.pdf", tags=["old"])

    assert ask_for(store, "a.pdf", tags=["invoice"]).decision is Decision.UNCHANGED

    assert fired(store) == [{"url": "a"}]


def test_a_new_action_starts_with_what_is_read_or_tagged_from_then_on(store: Store) -> None:
    document_id = publish(store, "a.pdf", tags=["invoice"])
    store.tags.add_action("invoice", HOOK, owner="")

    store.tags.add([document_id], ["invoice", "paid"])
    assert fired(store) == [], "it had the tag before"
    assert store.tags.remove_action("invoice", HOOK, owner="")
    assert not store.tags.remove_action("invoice", HOOK, owner="")
    publish(store, "b.pdf", tags=["invoice"])

    assert fired(store) == []
    assert store.tags.actions(None) == []


# ── Of a job ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_a_job_has_failed_for_good_follows_what_was_asked_for_that(store: Store) -> None:
    store.intake.enqueue(
        NewJob("download", owner="ann", on_failure=[CALL, DeferredAction("action", '{"job":"{job_id}"}')])
    )
    job = claim(store, "download")
    store.leases.fail(job.lease, BROKEN, retry_at=store.database.clock())
    assert fired(store) == [], "it is tried again"

    store.leases.fail(claim(store, "download").lease, BROKEN, retry_at=None)

    assert sorted(map(str, fired(store))) == sorted(map(str, [{"call": "ann"}, {"job": job.id}]))
    for follows in store.job_queries.list(Selector(job_types=("action",))):
        assert (follows.parent_id, follows.owner) == (job.id, "ann")


def test_a_failure_that_is_undone_and_comes_again_is_another(store: Store) -> None:
    store.intake.enqueue(NewJob("download", on_failure=[CALL]))
    for _ in range(2):
        job = claim(store, "download")
        store.leases.fail(job.lease, BROKEN, retry_at=None)
        run_what_follows(store)
        store.job_control.retry(ids(job.id), actor="ann")

    assert fired(store) == [{"call": "ann"}, {"call": "ann"}]
    store.leases.complete(claim(store, "download").lease)
    settle(store)
    assert len(fired(store)) == 2


def test_a_job_that_goes_takes_along_what_would_have_followed(store: Store, by_hand: ByHand) -> None:
    job_id = store.intake.enqueue(NewJob("download", on_failure=[CALL])).job_id

    store.job_control.delete(ids(job_id), actor="ann")

    assert by_hand("SELECT * FROM failure_action") == []


# ── Of a batch ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_a_batch_it_follows_once_for_each_time_that_it_ends(store: Store) -> None:
    actions = json.dumps([{"job_type": "action", "payload": {"batch": "{batch_id}", "state": "{state}"}}])
    batch = store.batches.add(NewBatch(owner="ann", actions=actions), [NewJob("download"), NewJob("download")]).batch
    first, second = store.leases.claim("w1", 2, "io")
    store.leases.complete(first.lease)
    assert fired(store) == []

    store.leases.fail(second.lease, BROKEN, retry_at=None)
    settle(store)
    assert fired(store) == [{"batch": batch.id, "state": "failed"}]
    run_what_follows(store)
    settle(store)
    assert len(fired(store)) == 1, "what follows is not of the batch"

    store.batches.retry(batch.id, actor="ann")
    store.leases.complete(claim(store, "download").lease)
    settle(store)
    assert fired(store)[1:] == [{"batch": batch.id, "state": "done"}]


def test_what_is_there_tells_whether_it_has_followed(store: Store) -> None:
    ask_for(store, actions=[HOOK, CALL])

    assert [(one.on_end, one.fired_at) for one in store.library.actions_of(1)] == [
        (OnEnd.SUCCESS, None),
        (OnEnd.FAILURE, None),
    ]
