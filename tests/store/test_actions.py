"""Actions that follow documents, tags, jobs and batches: added, never replaced, and run once for each end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.store.kit import BROKEN, ByHand, claim, jobs_with_ids, publish, reading_job, request_document, settle
from worker_service.jobs.attempts import Completion
from worker_service.jobs.batches import BatchState, NewBatch, OwnerPolicy
from worker_service.jobs.documents import Decision, DeferredAction, OnEnd
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

HOOK = DeferredAction("action", '{"url":"a"}')
OTHER = DeferredAction("action", '{"url":"b"}')
CALL = DeferredAction("action", '{"call":"ann"}', OnEnd.FAILURE)


pytestmark = pytest.mark.usefixtures("document_worker")


def action_payloads(store: Store) -> list[Any]:
    """Return the payloads of the inserted action jobs, oldest first."""
    jobs = store.job_queries.list(Selector(job_types=("action",)))
    return [json.loads(job.payload or "null") for job in sorted(jobs, key=lambda job: job.id)]


def publish_reading(store: Store) -> Job:
    job = claim(store, "ingest")
    assert store.leases.complete_many([Completion(job.lease, publishes=True)]) == []
    return job


def run_action_jobs(store: Store) -> None:
    settle(store)
    while jobs := store.leases.claim("w1", 9, only=["action"]):
        for job in jobs:
            store.leases.complete(job.lease)


def fail_reading(store: Store) -> Job:
    job = claim(store, "ingest")
    store.leases.fail(job.lease, BROKEN, retry_at=None)
    return job


# ── Of a document ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_actions_of_a_second_request_are_added_and_equal_ones_run_once(store: Store) -> None:
    request_document(store, actions=[HOOK])
    again = request_document(store, actions=[OTHER, HOOK])

    publish_reading(store)

    assert again.decision is Decision.UNDER_WAY
    assert action_payloads(store) == [{"url": "a"}, {"url": "b"}]


def test_an_action_for_a_document_already_read_runs_at_once(store: Store) -> None:
    document_id = publish(store)

    requested = request_document(store, actions=[HOOK])
    same = request_document(store, actions=[HOOK])

    assert (requested.decision, same.decision) == (Decision.UNCHANGED, Decision.UNCHANGED)
    assert action_payloads(store) == [{"url": "a"}]
    assert store.library.document(document_id).index_generation == 1


def test_only_standing_actions_run_for_each_generation(store: Store) -> None:
    standing = DeferredAction("action", '{"url":"always"}', is_standing=True)
    publish(store, actions=[HOOK, standing])
    for _ in range(2):
        run_action_jobs(store)
        request_document(store, is_forced=True)
        publish_reading(store)

    assert action_payloads(store) == [{"url": "a"}, {"url": "always"}, {"url": "always"}, {"url": "always"}]


def test_an_action_of_a_stale_generation_does_not_run_for_a_newer_one(store: Store) -> None:
    request_document(store, actions=[HOOK])
    request_document(store, content="c2")

    publish_reading(store)

    assert action_payloads(store) == []


@pytest.mark.parametrize("taken_by", ["the other batch", "a newer batch"])
def test_actions_run_even_if_another_batch_takes_the_document_over(store: Store, taken_by: str) -> None:
    if taken_by == "the other batch":
        first = store.batches.add(NewBatch("ann"), [reading_job("a")]).batch
        store.batches.add(NewBatch("ann"), [reading_job("a", actions=(HOOK,))], policy=OwnerPolicy.OFF)
        store.batches.stop(first.id, actor="ann")
    else:
        store.batches.add(NewBatch("ann"), [reading_job("a", actions=(HOOK,))])
        store.batches.add(NewBatch("ann"), [reading_job("a")])

    publish_reading(store)
    settle(store)

    assert action_payloads(store) == [{"url": "a"}]


def test_a_failure_action_of_a_document_runs_once(store: Store) -> None:
    request_document(store, actions=[HOOK, CALL])
    assert [(action.on_end, action.fired_at) for action in store.library.actions_of(1)] == [
        (OnEnd.SUCCESS, None),
        (OnEnd.FAILURE, None),
    ]
    failed = fail_reading(store)
    settle(store)
    assert action_payloads(store) == [{"call": "ann"}]
    run_action_jobs(store)

    store.job_control.retry(jobs_with_ids(failed.id), actor="ann")
    fail_reading(store)
    settle(store)

    assert action_payloads(store) == [{"call": "ann"}]


def test_both_actions_run_for_a_document_that_fails_and_is_then_read(store: Store) -> None:
    request_document(store, actions=[HOOK, CALL])
    failed = fail_reading(store)
    run_action_jobs(store)
    store.job_control.retry(jobs_with_ids(failed.id), actor="ann")

    publish_reading(store)

    assert action_payloads(store) == [{"call": "ann"}, {"url": "a"}]


def test_a_completion_that_is_refused_is_followed_by_nothing(store: Store) -> None:
    request_document(store, actions=[HOOK])
    job = claim(store, "ingest")
    store.job_control.cancel(jobs_with_ids(job.id), actor="ann")

    assert store.leases.complete_many([Completion(job.lease, publishes=True)]) == [job.lease]

    assert action_payloads(store) == []


def test_an_action_job_inherits_owner_document_batch_and_priority(store: Store) -> None:
    added = store.batches.add(NewBatch(owner="ann"), [reading_job(owner="ann", actions=[HOOK])])
    store.job_control.priority(Selector(batch_ids=(added.batch.id,)), 2, actor="ann")
    publish_reading(store)

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


def test_placeholders_in_a_payload_are_replaced_by_facts_about_the_document(store: Store) -> None:
    payload = (
        '{"document":"{document_id}","text":"{document_id} is {state}","list":["{error_code}"],"other":"{else}",'
        '"of":"{owner}: {name}","batch":"{batch_id}","generation":"{generation}"}'
    )
    request = reading_job("{owner}.pdf", owner="ann", actions=[DeferredAction("action", payload)])
    store.batches.add(NewBatch(owner="ann"), [request])
    publish_reading(store)

    assert action_payloads(store) == [
        {
            "document": 1,
            "text": "1 is success",
            "list": [None],
            "other": "{else}",
            "of": "ann: {owner}.pdf of ann",
            "batch": 1,
            "generation": 1,
        }
    ]


def test_each_fired_action_writes_a_notice(store: Store, by_hand: ByHand) -> None:
    publish(store, actions=[HOOK])

    [notice] = by_hand("SELECT document_id, job_id, code FROM notice WHERE kind = 'action.fired'")
    assert notice == {"document_id": 1, "job_id": 2, "code": "action"}


def test_the_actions_and_tags_of_a_removed_document_are_removed(store: Store, by_hand: ByHand) -> None:
    document_id = publish(store, actions=[HOOK], tags=["invoice"])
    run_action_jobs(store)

    store.removal.remove_documents([document_id], actor="ann")

    assert by_hand("SELECT * FROM deferred_action") == by_hand("SELECT * FROM document_tag") == []


# ── Of documents with a tag ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_action_of_a_tag_follows_each_document_with_it(store: Store) -> None:
    assert store.tags.add_action("invoice", HOOK, owner="")
    assert not store.tags.add_action("invoice", HOOK, owner=""), "the tag has it already"
    store.tags.add_action("invoice", CALL, owner="")

    publish(store, "b.pdf", tags=["paid"])
    publish(store, "a.pdf", tags=["invoice", "paid"])
    settle(store)
    assert action_payloads(store) == [{"url": "a"}]
    run_action_jobs(store)

    request_document(store, "c.pdf", tags=["invoice"])
    fail_reading(store)
    settle(store)
    assert action_payloads(store) == [{"url": "a"}, {"call": "ann"}]


def test_the_action_of_an_owner_s_tag_leaves_other_owners_alone(store: Store) -> None:
    store.tags.add_action("invoice", HOOK, owner="ann")

    publish(store, "a.pdf", owner="bob", tags=["invoice"])
    assert action_payloads(store) == []
    publish(store, "a.pdf", owner="ann", tags=["invoice"])

    assert action_payloads(store) == [{"url": "a"}]
    assert [tag_action.tag for tag_action in store.tags.actions("ann")] == ["invoice"]
    assert store.tags.actions("bob") == []


def test_tagging_a_document_that_is_read_starts_the_action_once_per_generation(store: Store) -> None:
    store.tags.add_action("invoice", HOOK, owner="")
    document_id = publish(store, "a.pdf")

    assert store.tags.add([document_id], ["invoice", "paid"]) == [document_id]
    assert store.tags.add([document_id], ["invoice"]) == []
    assert store.tags.remove([document_id], ["invoice"]) == [document_id]
    store.tags.add([document_id], ["invoice"])
    assert action_payloads(store) == [{"url": "a"}]
    run_action_jobs(store)

    request_document(store, "a.pdf", is_forced=True)
    publish_reading(store)
    assert action_payloads(store) == [{"url": "a"}, {"url": "a"}], "a new generation starts it again"


def test_a_tag_given_with_a_request_for_a_known_document_starts_its_action(store: Store) -> None:
    store.tags.add_action("invoice", HOOK, owner="")
    publish(store, "a.pdf", tags=["old"])

    assert request_document(store, "a.pdf", tags=["invoice"]).decision is Decision.UNCHANGED

    assert action_payloads(store) == [{"url": "a"}]


def test_a_new_tag_action_applies_only_to_documents_read_or_tagged_later(store: Store) -> None:
    document_id = publish(store, "a.pdf", tags=["invoice"])
    store.tags.add_action("invoice", HOOK, owner="")

    store.tags.add([document_id], ["invoice", "paid"])
    assert action_payloads(store) == [], "it had the tag before"
    assert store.tags.remove_action("invoice", HOOK, owner="")
    assert not store.tags.remove_action("invoice", HOOK, owner="")
    publish(store, "b.pdf", tags=["invoice"])

    assert action_payloads(store) == []
    assert store.tags.actions(None) == []


# ── Of a job ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_failure_actions_of_a_job_run_after_its_last_retry(store: Store) -> None:
    store.intake.enqueue(
        NewJob("download", owner="ann", on_failure=[CALL, DeferredAction("action", '{"job":"{job_id}"}')])
    )
    job = claim(store, "download")
    store.leases.fail(job.lease, BROKEN, retry_at=store.database.clock())
    assert action_payloads(store) == [], "it is tried again"

    store.leases.fail(claim(store, "download").lease, BROKEN, retry_at=None)

    assert sorted(map(str, action_payloads(store))) == sorted(map(str, [{"call": "ann"}, {"job": job.id}]))
    for follows in store.job_queries.list(Selector(job_types=("action",))):
        assert (follows.parent_id, follows.owner) == (job.id, "ann")


def test_the_failure_action_runs_again_when_a_retried_job_fails_again(store: Store) -> None:
    store.intake.enqueue(NewJob("download", on_failure=[CALL]))
    for _ in range(2):
        job = claim(store, "download")
        store.leases.fail(job.lease, BROKEN, retry_at=None)
        run_action_jobs(store)
        store.job_control.retry(jobs_with_ids(job.id), actor="ann")

    assert action_payloads(store) == [{"call": "ann"}, {"call": "ann"}]
    store.leases.complete(claim(store, "download").lease)
    settle(store)
    assert len(action_payloads(store)) == 2


def test_deleting_a_job_deletes_its_failure_actions(store: Store, by_hand: ByHand) -> None:
    job_id = store.intake.enqueue(NewJob("download", on_failure=[CALL])).job_id

    store.job_control.delete(jobs_with_ids(job_id), actor="ann")

    assert by_hand("SELECT * FROM failure_action") == []


# ── Of a batch ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_action_runs_once_each_time_the_batch_ends(store: Store) -> None:
    actions = json.dumps([{"job_type": "action", "payload": {"batch": "{batch_id}", "state": "{state}"}}])
    batch = store.batches.add(NewBatch(owner="ann", actions=actions), [NewJob("download"), NewJob("download")]).batch
    first, second = store.leases.claim("w1", 2, "io")
    store.leases.complete(first.lease)
    assert action_payloads(store) == []

    store.leases.fail(second.lease, BROKEN, retry_at=None)
    settle(store)
    assert action_payloads(store) == [{"batch": batch.id, "state": "failed"}]
    run_action_jobs(store)
    settle(store)
    assert len(action_payloads(store)) == 1, "what follows is not of the batch"

    store.batches.retry(batch.id, actor="ann")
    store.leases.complete(claim(store, "download").lease)
    settle(store)
    assert action_payloads(store)[1:] == [{"batch": batch.id, "state": "done"}]
