"""Documents: which generation is read, what a completion publishes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.full_length import short
from tests.store.kit import (
    ByHand,
    MovableClock,
    claim,
    document_row,
    document_state,
    jobs_with_ids,
    page_range_jobs,
    pages_of,
    publish,
    reading_job,
    request_document,
    save,
    start_reading,
    status_of,
    undo,
)
from worker_service.base.errors import CancelRequested, LeaseLost, Refused, RuleBroken
from worker_service.jobs.attempts import Checkpoint, Completion, Failure
from worker_service.jobs.documents import (
    CrawlItem,
    CrawlItems,
    CrawlPage,
    Decision,
    DeferredAction,
    DocumentFacts,
    DocumentPages,
    DocumentRequest,
    IndexStatus,
    IsCurrent,
    KnownDigests,
    KnownDocument,
    KnownPages,
    NewFile,
    OnEnd,
    PageResult,
    RepublishedFile,
    SameContent,
    TakeoverPatience,
)
from worker_service.jobs.generations import decide
from worker_service.jobs.job import Enqueued, Job, NewJob, Status
from worker_service.jobs.library import DocumentSelector, OwnerSize, Removed, Weight
from worker_service.jobs.search import SearchRequest
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
DOCUMENTS = short(150, full=1000)


pytestmark = pytest.mark.usefixtures("document_worker")


def ended_as(store: Store, job_id: int) -> tuple[Status, str | None]:
    job = store.job_queries.get(job_id)
    return job.status, job.error_code


def share_original(store: Store, texts: tuple[list[str], list[str]] = ([], []), **second_completion: Any) -> None:
    """Publish documents 1 of ann and 2 of bob with one original."""
    download(store)
    [original] = store.attempts.inputs(1)
    request_document(store, "b.pdf", owner="bob")
    first, second = sorted(store.leases.claim("w1", 2), key=lambda job: job.document_id or 0)
    save(store, first.lease, *texts[0])
    save(store, second.lease, *texts[1], first=2)
    files = [RepublishedFile(original.id, "original", "b.pdf"), *second_completion.pop("files", ())]
    done = Completion(second.lease, files=files, publishes=True, **second_completion)
    assert store.leases.complete_many([Completion(first.lease, publishes=True), done]) == []


# ── A wish ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "still", "same", "forced", "decision"),
    [
        ("not_indexed", 0, True, False, Decision.ACCEPTED),
        ("queued", 599, True, False, Decision.UNDER_WAY),
        ("queued", 600, True, False, Decision.TAKEN_OVER),
        ("queued", 0, False, False, Decision.ACCEPTED),
        ("queued", 0, True, True, Decision.UNDER_WAY),
        ("queued", -3600, True, False, Decision.UNDER_WAY),
        ("indexing", 600, True, False, Decision.UNDER_WAY),
        ("indexing", 2700, True, False, Decision.TAKEN_OVER),
        ("indexing", 0, False, False, Decision.ACCEPTED),
        ("success", 99999, True, False, Decision.UNCHANGED),
        ("success", 0, True, True, Decision.ACCEPTED),
        ("success", 0, False, False, Decision.ACCEPTED),
        ("failed", 0, True, False, Decision.ACCEPTED),
    ],
)
def test_the_decision_about_a_request(status: str, still: float, same: bool, forced: bool, decision: Decision) -> None:
    decided = decide(
        IndexStatus(status),
        seconds_without_progress=still,
        is_same=same,
        is_held_up=False,
        is_forced=forced,
        patience=TakeoverPatience(),
    )

    assert decided is decision


def test_a_first_request_starts_generation_one_and_inserts_its_job(store: Store, by_hand: ByHand) -> None:
    requested = request_document(store, owner="ann")

    job = store.job_queries.get(requested.job_id)
    assert (requested.decision, requested.existing) == (Decision.ACCEPTED, False)
    assert (job.document_id, job.generation, job.owner) == (requested.document_id, 1, "ann")
    assert document_state(by_hand) == ("queued", 1, None, None)


def test_a_document_can_be_recorded_without_a_request_to_read_it(store: Store, by_hand: ByHand) -> None:
    request = DocumentRequest("/srv/a.pdf", "a.pdf", "c1")

    recorded = [store.intake.record_document(request, platform="local", owner="ann") for _ in range(2)]

    assert recorded == [1, 1]
    assert document_state(by_hand) == ("not_indexed", 0, None, None)
    requested = store.intake.enqueue(NewJob("ingest", platform="local", owner="ann", document=request))
    assert (requested.document_id, requested.decision) == (1, Decision.ACCEPTED)


def test_a_second_request_finds_the_first_under_way(store: Store, by_hand: ByHand) -> None:
    first = request_document(store)

    again, other = store.intake.enqueue_many([reading_job(), reading_job("other.pdf")])

    assert (again.job_id, again.existing, again.decision) == (first.job_id, True, Decision.UNDER_WAY)
    assert other.decision is Decision.ACCEPTED
    assert by_hand.value("SELECT count(*) FROM worker_job_queue") == 2


def test_the_same_source_of_another_owner_is_another_document(store: Store) -> None:
    assert request_document(store, owner="ann").document_id != request_document(store, owner="bob").document_id


@pytest.mark.parametrize("fields", [{"content": "c2"}, {"settings": '{"s":2}'}, {"is_forced": True}])
def test_a_success_is_read_again_only_if_changed_or_forced(
    store: Store, by_hand: ByHand, fields: dict[str, Any]
) -> None:
    publish(store, "report.pdf", "text")

    same = request_document(store)
    changed = request_document(store, **fields)

    assert (same.job_id, same.decision) == (0, Decision.UNCHANGED)
    assert changed.decision is Decision.ACCEPTED
    assert document_state(by_hand) == ("queued", 2, 1, None)


def as_json(**settings: object) -> str:
    return json.dumps(settings)


@pytest.mark.parametrize(
    ("before", "settings", "expected"),
    [
        # `before`: settings of successful readings, and those of the last one, which failed.
        ((), {"lang": "deu"}, {"lang": "deu"}),
        (([{"lang": "deu"}], None), {}, {"lang": "deu"}),
        (([{"lang": "deu"}], None), {"hocr": True}, {"lang": "deu", "hocr": True}),
        (([{"lang": "deu"}], None), {"lang": None}, {}),
        (([{"lang": "deu"}], {"lang": "fra", "best": True}), {}, {"lang": "deu"}),
        (([{"lang": "deu"}, {"best": True}], {"lang": "fra"}), {"hocr": 1}, {"lang": "deu", "best": True, "hocr": 1}),
        (([], {"lang": "deu"}), {"password": "p"}, {"lang": "deu", "password": "p"}),
    ],
)
def test_a_request_changes_only_the_settings_it_names_and_settings_that_failed_are_dropped(
    store: Store, by_hand: ByHand, before: Any, settings: dict[str, object], expected: dict[str, object]
) -> None:
    worked, failed = before or ([], None)
    for settings_before in worked:
        publish(store, "report.pdf", "text", settings=as_json(**settings_before))
    if failed:
        request_document(store, settings=as_json(**failed))
        store.leases.fail(claim(store).lease, Failure("LANGUAGE_MISSING", "no data"), retry_at=None)

    request_document(store, settings=as_json(**settings), is_forced=True)

    assert claim(store).payload is None
    assert json.loads(str(document_row(by_hand)["settings"])) == expected
    assert json.loads(store.attempts.known_document(1).settings) == expected


def test_a_request_without_settings_keeps_the_settings_of_the_document(store: Store) -> None:
    request_document(store, settings=as_json(lang="deu"))
    assert request_document(store).decision is Decision.UNDER_WAY
    job = claim(store)
    store.leases.complete_many([Completion(job.lease, publishes=True)])

    assert request_document(store).decision is Decision.UNCHANGED
    assert request_document(store, settings=as_json(lang="deu")).decision is Decision.UNCHANGED
    assert request_document(store, content="c2").decision is Decision.ACCEPTED
    assert json.loads(store.attempts.known_document(claim(store).document_id or 0).settings) == {"lang": "deu"}


def test_settings_of_a_standing_request_do_not_override_those_of_a_user(store: Store) -> None:
    standing: dict[str, Any] = {"settings": as_json(lang="eng", hocr=True), "is_standing": True}
    publish(store, "report.pdf", "text", **standing)
    publish(store, "report.pdf", "text", settings=as_json(lang="deu"))

    request_document(store, content="c2", **standing)

    known = store.attempts.known_document(claim(store).document_id or 0)
    assert json.loads(known.settings) == {"lang": "deu", "hocr": True}


def test_a_job_can_ask_for_the_facts_of_its_document(store: Store) -> None:
    request_document(store, settings=as_json(lang="deu"))
    job = claim(store)
    settings = as_json(lang="deu").replace(" ", "")
    known = KnownDocument(
        settings=settings, status="indexing", source_key="report.pdf", name="report.pdf of nobody", generation=1
    )
    assert store.attempts.known_document(1) == known

    original = NewFile("a.pdf", "objects/1-1/a.pdf", "original", 3, "c" * 64)
    facts = DocumentFacts(kind="pdf", pages=3)
    store.leases.complete_many([Completion(job.lease, files=[original], document=facts, follow_ups=[NewJob("next")])])

    assert store.attempts.known_document(1) == replace(known, content="c" * 64, kind="pdf", pages=3)
    assert store.attempts.known_document(77) == KnownDocument()


def test_p11_a_new_generation_cancels_pending_jobs_and_stops_running_ones(store: Store, by_hand: ByHand) -> None:
    ingest = start_reading(store)
    store.attempts.checkpoint(ingest.lease, Checkpoint("1", page_range_jobs((1, 12))))
    save(store, ingest.lease, "old")

    newer = request_document(store, content="c2")

    waiting = [job for job in store.job_queries.list(Selector()) if job.parent_id == ingest.id]
    assert {(job.status, job.error_code) for job in waiting} == {(CANCELLED, "STALE_GENERATION")}
    assert [lease.job_id for lease in store.leases.beat("w1", [ingest.lease]).to_cancel] == [ingest.id]
    assert store.leases.complete_many([Completion(ingest.lease, publishes=True)]) == [ingest.lease]
    assert save(store, ingest.lease, "late", first=2) == [ingest.lease]
    with pytest.raises(CancelRequested, match="older generation"):
        store.attempts.checkpoint(ingest.lease, Checkpoint("2"))
    assert not store.attempts.answer(ingest.lease, IsCurrent()).is_current
    store.leases.confirm_cancel(ingest.lease)
    assert ended_as(store, ingest.id) == (CANCELLED, "STALE_GENERATION")
    assert document_state(by_hand) == ("queued", 2, None, None)
    assert status_of(store, newer.job_id) is PENDING
    assert store.integrity.audit() == []


def test_p11_the_stale_job_of_a_dead_worker_ends_cancelled(store: Store) -> None:
    ingest = start_reading(store)
    request_document(store, content="c2")

    store.leases.requeue("w1")

    assert ended_as(store, ingest.id) == (CANCELLED, "STALE_GENERATION")


def test_a_document_without_progress_is_taken_over(store: Store, clock: MovableClock, by_hand: ByHand) -> None:
    first = request_document(store)
    clock.advance(599)
    assert request_document(store).decision is Decision.UNDER_WAY

    clock.advance(1)

    assert request_document(store).decision is Decision.TAKEN_OVER
    assert status_of(store, first.job_id) is CANCELLED
    assert document_state(by_hand) == ("queued", 2, None, None)


def test_each_stored_page_counts_as_progress_of_the_document(store: Store, clock: MovableClock) -> None:
    ingest = start_reading(store)
    clock.advance(2699)
    save(store, ingest.lease, "one")

    clock.advance(2699)
    assert request_document(store).decision is Decision.UNDER_WAY

    clock.advance(1)
    assert request_document(store).decision is Decision.TAKEN_OVER


def test_a_job_of_an_older_generation_is_not_retried(store: Store) -> None:
    first = request_document(store)
    request_document(store, content="c2")

    changed = store.job_control.retry(jobs_with_ids(first.job_id), actor="ann")

    assert "pagemill reindex 1" in changed.refused[first.job_id]
    assert status_of(store, first.job_id) is CANCELLED


# ── A document follows its jobs ─────────────────────────────────────────────────────────────────────────────────────


def read_up_to(store: Store) -> tuple[Job, Job]:
    """Return two running jobs that read page ranges of one document."""
    ingest = start_reading(store)
    facts = DocumentFacts(kind="pdf", pages=24)
    done = Completion(ingest.lease, follow_ups=page_range_jobs((1, 12), (13, 24)), document=facts)
    assert store.leases.complete_many([done]) == []
    return claim(store, "ocr_pages"), claim(store, "ocr_pages")


def test_a_document_goes_from_queued_to_success(store: Store, by_hand: ByHand) -> None:
    first, second = read_up_to(store)
    assert document_state(by_hand) == ("indexing", 1, None, None)
    assert (first.document_id, first.generation) == (1, 1)
    save(store, first.lease, *("text" for _ in range(12)))
    assert by_hand.value("SELECT percent FROM v_documents") == 50

    store.leases.complete_many([Completion(first.lease), Completion(second.lease)])
    assembling = claim(store, "assemble")
    files = [NewFile("report.txt", "objects/4-1/report.txt", "text", 3)]
    actions = [NewJob("action")]
    store.leases.complete_many([Completion(assembling.lease, files=files, follow_ups=actions, publishes=True)])

    assert document_state(by_hand) == ("success", 1, 1, None)
    assert by_hand.value("SELECT percent FROM v_documents") == 100
    store.leases.fail(claim(store, "action").lease, Failure("X", "x"), retry_at=None)
    store.job_control.retry(Selector(job_types=("action",)), actor="ann")
    assert document_state(by_hand) == ("success", 1, 1, None)
    assert store.integrity.audit() == []


def test_a_failed_range_fails_the_document_until_it_is_retried(store: Store, by_hand: ByHand) -> None:
    first, second = read_up_to(store)
    store.leases.complete(first.lease)

    store.leases.fail(second.lease, Failure("PAGE_BROKEN", "it broke"), retry_at=None)

    row = document_row(by_hand)
    assert document_state(by_hand) == ("failed", 1, None, "PAGE_BROKEN")
    assert row["error_message"] == "pages 13-24: it broke"
    assert store.integrity.audit() == []

    store.job_control.retry(jobs_with_ids(second.id), actor="ann")
    assert document_state(by_hand) == ("indexing", 1, None, None)
    store.leases.complete(claim(store, "ocr_pages").lease)
    assembling = claim(store, "assemble")
    files = [NewFile("report.txt", "objects/4-1/report.txt", "text", 3)]
    store.leases.complete_many([Completion(assembling.lease, files=files, publishes=True)])
    assert document_state(by_hand) == ("success", 1, 1, None)
    assert store.integrity.audit() == []


def test_a_job_with_a_retry_left_does_not_fail_its_document(store: Store, by_hand: ByHand, clock: MovableClock) -> None:
    first, _ = read_up_to(store)

    store.leases.fail(first.lease, Failure("X", "x"), retry_at=clock.after(5))

    assert document_state(by_hand) == ("indexing", 1, None, None)


def test_a_document_stays_failed_until_all_its_failed_ranges_are_retried(store: Store, by_hand: ByHand) -> None:
    first, second = read_up_to(store)
    for job in (first, second):
        store.leases.fail(job.lease, Failure("X", "x"), retry_at=None)

    store.job_control.retry(jobs_with_ids(first.id), actor="ann")
    store.leases.complete(claim(store, "ocr_pages").lease)

    assert document_state(by_hand) == ("failed", 1, None, "X")
    assert str(document_row(by_hand)["error_message"]).startswith("pages 13-24")
    assert store.integrity.audit() == []


@pytest.mark.parametrize("is_running", [False, True])
def test_a_cancelled_job_fails_its_document_until_a_retry(store: Store, by_hand: ByHand, is_running: bool) -> None:
    requested = request_document(store)
    job = claim(store) if is_running else None
    action = store.job_control.cancel(jobs_with_ids(requested.job_id), actor="ann").action_id
    if job is not None:
        store.leases.confirm_cancel(job.lease)

    assert document_state(by_hand) == ("failed", 1, None, "CANCELLED")

    if is_running:
        store.job_control.retry(jobs_with_ids(requested.job_id), actor="ann")
        assert document_state(by_hand) == ("indexing", 1, None, None)
    else:
        undo(store, action)
        assert document_state(by_hand) == ("queued", 1, None, None)
    assert store.integrity.audit() == []


def test_a_deleted_job_fails_its_document(store: Store, by_hand: ByHand) -> None:
    requested = request_document(store)

    store.job_control.delete(jobs_with_ids(requested.job_id), actor="ann")

    assert document_state(by_hand) == ("failed", 1, None, "JOB_DELETED")


def test_an_undone_retry_leaves_no_document_waiting(store: Store, by_hand: ByHand) -> None:
    request_document(store)
    store.leases.complete(claim(store).lease)
    assert document_state(by_hand) == ("failed", 1, None, "NOT_PUBLISHED")

    action = store.job_control.retry(jobs_with_ids(1), actor="ann").action_id
    assert document_state(by_hand) == ("indexing", 1, None, None)
    undo(store, action)

    assert document_state(by_hand) == ("failed", 1, None, "CANCELLED")
    assert store.integrity.audit() == []


@pytest.mark.parametrize(
    ("result", "code", "sentence"),
    [
        ('{"skipped": "not a report"}', "SKIPPED", "not a report"),
        ('{"pages": 3}', "NOT_PUBLISHED", "no job is left that would publish"),
        (None, "NOT_PUBLISHED", "no job is left"),
        ("[1]", "NOT_PUBLISHED", "no job is left"),
    ],
)
def test_a_job_that_leads_nowhere_leaves_its_document_failed(
    store: Store, by_hand: ByHand, result: str | None, code: str, sentence: str
) -> None:
    request_document(store)

    store.leases.complete(claim(store).lease, result)

    assert document_state(by_hand) == ("failed", 1, None, code)
    assert sentence in str(document_row(by_hand)["error_message"])


def test_documents_that_are_still_being_read_never_fail(store: Store, by_hand: ByHand) -> None:
    on_failure = DeferredAction("action", on_end=OnEnd.FAILURE)
    store.intake.enqueue_many([reading_job(f"{number}.pdf", actions=[on_failure]) for number in range(DOCUMENTS)])

    while jobs := store.leases.claim("w1", 64):
        ingests = [
            Completion(job.lease, follow_ups=page_range_jobs((1, 4))) for job in jobs if job.job_type == "ingest"
        ]
        parts = [Completion(job.lease) for job in jobs if job.job_type == "ocr_pages"]
        assembled = [Completion(job.lease, publishes=True) for job in jobs if job.job_type == "assemble"]
        assert store.leases.complete_many([*ingests, *parts, *assembled]) == []
        assert by_hand("SELECT id FROM document WHERE index_status NOT IN ('queued', 'indexing', 'success')") == []

    counts = "SELECT (SELECT count(*) FROM document WHERE index_status = 'success') AS read,"
    counts += " (SELECT count(*) FROM notice WHERE kind = 'document.failed') AS failures,"
    counts += " (SELECT count(*) FROM worker_job_queue WHERE job_type = 'action') AS reactions"
    assert by_hand(counts) == [{"read": DOCUMENTS, "failures": 0, "reactions": 0}]


def test_a_document_published_by_one_of_two_completions_never_fails(store: Store, by_hand: ByHand) -> None:
    request_document(store)
    store.leases.complete_many([Completion(claim(store).lease, follow_ups=[NewJob("ocr_pages"), NewJob("assemble")])])
    idle, other = store.leases.claim("w1", 2)

    store.leases.complete_many([Completion(idle.lease), Completion(other.lease, publishes=True)])

    assert document_state(by_hand) == ("success", 1, 1, None)
    assert by_hand("SELECT * FROM notice WHERE kind = 'document.failed'") == []


def test_after_a_failed_reading_the_earlier_generation_stays_readable(store: Store, by_hand: ByHand) -> None:
    publish(store, "report.pdf", "first")
    job = start_reading(store, content="c2")
    save(store, job.lease, "second")
    store.leases.fail(job.lease, Failure("X", "x"), retry_at=None)

    assert document_state(by_hand) == ("failed", 2, 1, "X")
    assert [page.text for page in store.library.page_texts(1)] == ["first"]


def test_progress_never_falls_when_the_content_has_other_pages(store: Store, by_hand: ByHand) -> None:
    job = start_reading(store)
    save(store, job.lease, "one", "two")
    store.leases.complete_many([Completion(job.lease, document=DocumentFacts(pages=2), publishes=True)])
    job = start_reading(store, content="c2")
    save(store, job.lease, "uno")
    assert by_hand.value("SELECT percent FROM v_documents") == 0

    store.leases.complete_many(
        [Completion(job.lease, document=DocumentFacts(pages=4), follow_ups=page_range_jobs((2, 4)))]
    )

    assert by_hand.value("SELECT percent FROM v_documents") == 25


# ── What lands with a completion ────────────────────────────────────────────────────────────────────────────────────


def download(store: Store, *, content: str = "c1", name: str = "a.pdf", revision: str = "") -> Job:
    store.intake.enqueue(NewJob("download", platform="gdrive", owner="ann"))
    [job] = store.leases.claim("w1", 1, "io")
    files = [
        NewFile(name, f"objects/{job.id}-{job.fence}/a.pdf", "original", 10, content, "m1"),
        NewFile("log.txt", f"objects/{job.id}-{job.fence}/log.txt"),
    ]
    follow_ups = [reading_job("a.pdf", owner="ann", content=content, revision=revision)]
    assert store.leases.complete_many([Completion(job.lease, files=files, follow_ups=follow_ups)]) == []
    return job


def request_download(store: Store, *, revision: str, **fields: Any) -> Enqueued:
    """Enqueue the download of a file of which only the revision is known."""
    request = reading_job("a.pdf", content="", revision=revision, **fields).document
    return store.intake.enqueue(NewJob("download", platform="gdrive", owner="ann", adds_document=request))


def read_revision(store: Store, revision: str, *, content: str = "c1") -> None:
    download(store, content=content, revision=revision)
    if jobs := store.leases.claim("w1", 1):
        assert store.leases.complete_many([Completion(jobs[0].lease, publishes=True)]) == []


def test_a_revision_read_with_the_same_settings_is_not_downloaded_again(store: Store) -> None:
    read_revision(store, "r1")

    unchanged = request_download(store, revision="r1")
    changed = [
        request_download(store, revision="r2"),
        request_download(store, revision=""),
        request_download(store, revision="r1", is_forced=True),
        request_download(store, revision="r1", settings=as_json(lang="deu")),
    ]

    assert (unchanged.job_id, unchanged.document_id, unchanged.decision) == (0, 1, Decision.UNCHANGED)
    assert [request.decision for request in changed] == [None] * 4


def test_equal_content_at_a_new_revision_is_known_by_that_revision(store: Store) -> None:
    read_revision(store, "r1")
    read_revision(store, "r2")
    # Read again without a known revision.
    read_revision(store, "")

    assert request_download(store, revision="r1").decision is None
    assert request_download(store, revision="r2").decision is Decision.UNCHANGED


@pytest.mark.parametrize("event", ["another content", "no file", "a failure"])
def test_a_known_revision_is_downloaded_again_after(store: Store, by_hand: ByHand, event: str) -> None:
    read_revision(store, "r1")
    if event == "another content":
        read_revision(store, "", content="c2")
    elif event == "no file":
        by_hand("DELETE FROM file WHERE role = 'original'")
    else:
        request_document(store, "a.pdf", owner="ann", is_forced=True)
        store.leases.fail(claim(store, "ingest").lease, Failure("BROKEN", "it is"), retry_at=None)

    assert request_download(store, revision="r1").decision is None


def test_p5_the_original_of_a_download_belongs_to_the_document_it_asks_for(store: Store, by_hand: ByHand) -> None:
    job = download(store)

    [original] = store.attempts.inputs(1)
    assert (original.name, original.role, original.job_id, original.sha256) == ("a.pdf", "original", job.id, "c1")
    assert by_hand("SELECT document_id FROM file WHERE role = ''") == [{"document_id": None}]
    assert claim(store, "ingest").parent_id == job.id


def test_files_outlive_the_jobs_that_published_them(store: Store, clock: MovableClock) -> None:
    job = download(store)

    while store.pruning.prune(Selector(statuses=(COMPLETED,))):
        pass

    assert job.id not in [left.id for left in store.job_queries.list(Selector())]
    assert [file.name for file in store.attempts.inputs(1)] == ["a.pdf"]
    assert store.removal.files_to_delete() == []


def test_the_same_content_is_found_by_sha256_for_all_and_by_md5_for_its_owner(store: Store) -> None:
    download(store)
    store.intake.enqueue_many([NewJob("download", owner=owner) for owner in ("ann", "bob")])
    ann, bob = store.leases.claim("w1", 2, "io")

    by_hash = [store.attempts.answer(job.lease, SameContent(sha256="c1")).files for job in (ann, bob)]
    by_md5 = [store.attempts.answer(job.lease, SameContent(md5="m1", size=10)).files for job in (ann, bob)]

    assert [len(files) for files in by_hash] == [1, 1]
    assert [len(files) for files in by_md5] == [1, 0]
    assert store.attempts.answer(ann.lease, SameContent(md5="m1", size=11)).files == []


def test_files_of_the_own_document_come_first_among_equal_content(store: Store) -> None:
    download(store)
    own = claim(store, "ingest")
    store.intake.enqueue(NewJob("download", platform="gdrive", owner="bob"))
    [other] = store.leases.claim("w1", 1, "io")
    theirs = NewFile("b.pdf", "objects/3-1/b.pdf", "original", 10, "c1", "m1")
    store.leases.complete_many(
        [Completion(other.lease, files=[theirs], follow_ups=[reading_job("b.pdf", owner="bob")])]
    )

    assert [file.job_id for file in store.attempts.answer(own.lease, SameContent(sha256="c1")).files] == [1, 3]


def test_a_file_that_is_gone_is_not_published_again(store: Store) -> None:
    job = start_reading(store)

    with pytest.raises(RuleBroken, match="no file 77"):
        store.leases.complete_many([Completion(job.lease, files=[RepublishedFile(77)])])

    assert status_of(store, job.id) is RUNNING


def test_follow_ups_inherit_document_generation_and_owner(store: Store) -> None:
    request_document(store, owner="ann")
    follow_ups = [*page_range_jobs((1, 2)), NewJob("action", owner="bob"), reading_job("other.pdf", content="x")]

    store.leases.complete_many([Completion(claim(store).lease, follow_ups=follow_ups)])

    jobs = sorted(store.job_queries.list(Selector()), key=lambda job: job.id)[1:]
    works = [(job.document_id, job.generation, job.owner) for job in jobs]
    assert works == [(1, 1, "ann"), (1, 1, "ann"), (1, 1, "bob"), (2, 1, "ann")]


def test_a_job_is_named_after_its_document_or_after_the_job_that_asked_for_it(store: Store) -> None:
    requested = NewJob("download", name="a.pdf")
    store.intake.enqueue(requested)
    request = DocumentRequest("key", "b.pdf")
    store.leases.complete(claim(store).lease, follow_ups=[NewJob("ingest", document=request), NewJob("action")])
    follow_ups = [NewJob("ocr_pages"), NewJob("action", name="c.pdf")]
    store.leases.complete(claim(store, "ingest").lease, follow_ups=follow_ups)
    store.intake.enqueue(NewJob("action", name="x" * 5000))

    named = [job.name or "" for job in reversed(store.job_queries.list(Selector()))]
    assert named[:5] == ["a.pdf", "b.pdf", "a.pdf", "b.pdf", "c.pdf"]
    assert named[5] == "x" * 1000


def test_a_follow_up_waits_for_all_that_stand_before_it(store: Store) -> None:
    request_document(store)
    store.leases.complete_many([Completion(claim(store).lease, follow_ups=page_range_jobs((1, 2), (3, 4), (5, 6)))])
    [assembling] = store.job_queries.list(Selector(job_types=("assemble",)))

    assert [needs for needs, _ in store.job_queries.waits_for(assembling.id)] == [2, 3, 4]
    for job in store.leases.claim("w1", 9):
        assert job.job_type == "ocr_pages"
        store.leases.complete(job.lease)
    assert claim(store).id == assembling.id


def test_only_a_job_of_a_document_can_publish(store: Store) -> None:
    store.intake.enqueue(NewJob("action"))
    job = claim(store)

    with pytest.raises(RuleBroken, match="publishes"):
        store.leases.complete_many([Completion(job.lease, publishes=True)])


def test_a_completion_that_makes_another_of_the_same_transaction_stale_lands_alone(store: Store) -> None:
    old = start_reading(store)
    store.intake.enqueue(NewJob("action"))
    asking = claim(store)
    newer = Completion(asking.lease, follow_ups=[reading_job(content="c2")])

    with pytest.raises(RuleBroken):
        store.leases.complete_many([newer, Completion(old.lease, publishes=True)])

    assert store.leases.complete_many([newer]) == []
    assert store.leases.complete_many([Completion(old.lease, publishes=True)]) == [old.lease]


# ── Under the lease ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_checkpoint_is_kept_over_attempts_and_forgotten_with_the_completion(store: Store) -> None:
    store.intake.enqueue(NewJob("action"))
    first = claim(store)
    assert store.attempts.checkpoint_of(first.id) is None
    store.attempts.checkpoint(first.lease, Checkpoint('{"page": 1}'))
    store.attempts.checkpoint(first.lease, Checkpoint('{"page": 2}', [NewJob("ocr_pages")]))
    store.leases.release(first.lease)

    assert store.attempts.checkpoint_of(first.id) == '{"page": 2}'
    assert store.job_queries.count(Selector(job_types=("ocr_pages",))) == 1
    with pytest.raises(LeaseLost):
        store.attempts.checkpoint(first.lease, Checkpoint("3", [NewJob("ocr_pages")]))
    assert store.job_queries.count(Selector(job_types=("ocr_pages",))) == 1

    second = store.leases.claim("w1", 1)[0]
    store.leases.complete(second.lease)
    assert store.attempts.checkpoint_of(first.id) is None


def test_a_checkpoint_that_is_not_json_is_refused_with_all_that_came_along(store: Store) -> None:
    store.intake.enqueue(NewJob("action"))
    job = claim(store)

    with pytest.raises(RuleBroken, match="JSON"):
        store.attempts.checkpoint(job.lease, Checkpoint("{", [NewJob("ocr_pages")]))

    assert store.job_queries.count(Selector()) == 1


def test_a_deleted_job_takes_its_checkpoint_along(store: Store, by_hand: ByHand) -> None:
    store.intake.enqueue_many([NewJob("action"), NewJob("action")])
    for job in store.leases.claim("w1", 2):
        store.attempts.checkpoint(job.lease, Checkpoint("1"))
        store.leases.fail(job.lease, Failure("X", "x"), retry_at=None)

    store.job_control.delete(jobs_with_ids(1), actor="ann")
    by_hand("DELETE FROM worker_job_queue WHERE id = 2")

    assert (store.attempts.checkpoint_of(1), store.attempts.checkpoint_of(2)) == (None, None)


def test_pages_are_stored_once_and_found_by_their_digest(store: Store, by_hand: ByHand) -> None:
    request_document(store)
    request_document(store, "copy.pdf", owner="bob")
    first, second = store.leases.claim("w1", 2)
    layout = json.dumps({"words": ["Straße"] * 5_000}, ensure_ascii=False)
    page = PageResult(1, "d1", "text", "ocr", 88.5, layout)

    store.attempts.save_pages([(first.lease, page), (first.lease, page)])
    assert store.attempts.answer(second.lease, KnownPages(["d1", "d2"])).digests == ["d1"]
    store.attempts.save_pages([(second.lease, PageResult(1, "d1")), (second.lease, PageResult(2, "d2"))])

    [copied] = store.attempts.answer(second.lease, DocumentPages(1, 9, with_layout=True)).pages
    assert copied == page
    assert store.attempts.answer(second.lease, DocumentPages(1, 9)).pages[0].layout is None
    assert by_hand.value("SELECT count(*) FROM page_result") == 1


def test_a_page_is_found_by_its_alias_until_it_is_deleted(store: Store, by_hand: ByHand, clock: MovableClock) -> None:
    for name, owner in (("report.pdf", ""), ("copy.pdf", "bob"), ("third.pdf", "cem")):
        request_document(store, name, owner=owner)
    first, second, third = store.leases.claim("w1", 3)
    store.attempts.save_pages([(first.lease, PageResult(1, "shown", "text", "ocr", alias_digest="first file, page 1"))])

    # Bob's page has the same image, so its own digest becomes an alias of the stored result.
    store.attempts.save_pages([(second.lease, PageResult(4, "shown", alias_digest="other file, page 4"))])
    names = ["first file, page 1", "other file, page 4", "shown", "other"]
    assert set(store.attempts.answer(third.lease, KnownPages(names)).digests) == set(names[:3])
    store.attempts.save_pages([(third.lease, PageResult(7, "other file, page 4"))])

    [page] = store.attempts.answer(third.lease, DocumentPages(1, 9)).pages
    assert (page.number, page.digest, page.text) == (7, "shown", "text")
    assert by_hand.value("SELECT count(*) FROM page_result") == 1
    for job in (first, second, third):
        store.attempts.save_pages([(job.lease, PageResult(at, f"new {job.id}", "new")) for at in (1, 4, 7)])
        store.leases.complete(job.lease)
    clock.advance(1)
    while store.removal.forget_superseded_pages():
        pass
    assert by_hand("SELECT * FROM page_alias") == []


def test_a_page_read_again_in_the_same_generation_replaces_the_other(store: Store) -> None:
    job = start_reading(store)

    save(store, job.lease, "one")
    save(store, job.lease, "uno")

    assert [page.text for page in store.attempts.answer(job.lease, DocumentPages(1, 1)).pages] == ["uno"]


def test_pages_of_two_documents_that_are_saved_together_stay_apart(store: Store) -> None:
    request_document(store)
    request_document(store, "copy.pdf", owner="bob")
    first, second = store.leases.claim("w1", 2)

    store.attempts.save_pages([(second.lease, PageResult(1, "d2", "two")), (first.lease, PageResult(1, "d1", "one")),
                      (first.lease, PageResult(2, "d3", "more"))])  # fmt: skip

    assert [page.text for page in store.attempts.answer(first.lease, DocumentPages(1, 9)).pages] == ["one", "more"]
    assert [page.text for page in store.attempts.answer(second.lease, DocumentPages(1, 9)).pages] == ["two"]


def test_a_page_that_sqlite_cannot_store_is_corrected_and_the_others_are_stored(store: Store) -> None:
    job = start_reading(store)
    odd = [PageResult(1, "d1", "a\ud800b", "ocr", 100.5), PageResult(2, "d2", "\0 text", "ocr", float("nan"), "[]")]

    assert store.attempts.save_pages([(job.lease, page) for page in [*odd, PageResult(3, "d3", "good")]]) == []

    read = store.attempts.answer(job.lease, DocumentPages(1, 9)).pages
    assert [(page.text, page.confidence) for page in read] == [("a?b", 100.0), ("\0 text", 0.0), ("good", None)]


def test_p2_pages_of_a_lost_lease_are_refused_and_those_beside_them_land(store: Store, by_hand: ByHand) -> None:
    request_document(store)
    request_document(store, "other.pdf")
    lost, held = (job.lease for job in store.leases.claim("w1", 2))
    store.leases.release(lost)

    [page] = pages_of("text")
    assert store.attempts.save_pages([(lost, page), (held, page)]) == [lost]
    assert by_hand("SELECT document_id FROM page") == [{"document_id": 2}]


def test_a_page_saved_after_a_request_to_stop_is_reused_by_the_retry(store: Store) -> None:
    job = start_reading(store)
    store.job_control.cancel(jobs_with_ids(job.id), actor="ann")

    assert save(store, job.lease, "kept") == [job.lease]
    store.leases.confirm_cancel(job.lease)
    store.removal.forget_superseded_pages(100)
    store.job_control.retry(jobs_with_ids(job.id), actor="ann")
    again = claim(store)

    assert store.attempts.answer(again.lease, KnownPages(["1:kept"])) == KnownDigests(["1:kept"])
    assert [page.text for page in store.attempts.answer(again.lease, DocumentPages(1, 9)).pages] == ["kept"]
    assert store.integrity.audit() == []


def test_p11_a_page_of_an_older_generation_is_stored_by_its_digest_only(store: Store, by_hand: ByHand) -> None:
    old = start_reading(store)
    new = start_reading(store, settings='{"s":2}')

    assert save(store, old.lease, "late") == [old.lease]

    assert store.attempts.answer(new.lease, KnownPages(["1:late"])) == KnownDigests(["1:late"])
    assert by_hand("SELECT number FROM page") == []
    # A result that was reported as known stays while the asking attempt runs.
    store.removal.forget_superseded_pages(100)
    store.attempts.save_pages([(new.lease, PageResult(1, "1:late"))])
    assert [page.text for page in store.attempts.answer(new.lease, DocumentPages(1, 9)).pages] == ["late"]


def test_a_crawl_stores_the_items_it_has_seen(store: Store, by_hand: ByHand) -> None:
    publish(store, "f1", "text", owner="ann")
    store.intake.enqueue(NewJob("action", platform="gdrive", owner="ann"))
    job = claim(store)
    items = [CrawlItem("d", kind="folder", name="Reports"), CrawlItem("f1", "d", "a.pdf", "file", "r1", 10)]
    store.attempts.checkpoint(
        job.lease, Checkpoint("1", crawl=CrawlPage("drive:ann", items, walk=1, state='{"token": "t1"}'))
    )
    more = [
        CrawlItem("d", kind="folder", name="Reports"),
        CrawlItem("f2", "d", "b.pdf", "file", "r1", note="too large"),
    ]
    store.attempts.checkpoint(job.lease, Checkpoint("2", crawl=CrawlPage("drive:ann", more, walk=2)))

    memory = store.attempts.answer(job.lease, CrawlItems("drive:ann", ["f1", "f2", "f3"]))
    unseen = store.attempts.answer(job.lease, CrawlItems("drive:ann", not_seen_in=2))
    assert memory.state == '{"token": "t1"}'
    assert [(item.id, item.note, item.walk) for item in memory.items] == [("f1", "", 1), ("f2", "too large", 2)]
    assert [(item.id, item.parent_id, item.name, item.revision, item.size) for item in unseen.items] == [
        ("f1", "d", "a.pdf", "r1", 10)
    ]
    assert store.attempts.answer(job.lease, CrawlItems("drive:ann", not_seen_in=2, after="f1")).items == []
    assert store.attempts.answer(job.lease, CrawlItems("drive:bob", ["f1"])).items == []

    store.attempts.checkpoint(job.lease, Checkpoint("3", crawl=CrawlPage("drive:ann", [CrawlItem("f1", is_gone=True)])))
    [gone] = store.attempts.answer(job.lease, CrawlItems("drive:ann", ["f1"])).items
    assert (gone.is_gone, gone.name) == (True, "a.pdf")
    assert document_row(by_hand)["gone_at"]
    store.attempts.checkpoint(job.lease, Checkpoint("4", crawl=CrawlPage("drive:ann", [items[1]])))
    assert document_row(by_hand)["gone_at"] is None


# ── By people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def remove(store: Store, *document_ids: int) -> Removed:
    """Remove documents and their pages, as a user and then the chore do."""
    removed = store.removal.remove_documents(document_ids, actor="ann")
    while store.removal.forget_removed_documents():
        pass
    return removed


def test_a_document_without_live_jobs_is_removed_with_its_pages_and_files(store: Store, by_hand: ByHand) -> None:
    download(store)
    assert "cancel" in remove(store, 1).refused[1]
    job = claim(store)
    save(store, job.lease, "text")
    store.leases.complete_many([Completion(job.lease, publishes=True)])

    removed = remove(store, 1, 99)

    assert (removed.document_ids, list(removed.refused)) == ([1], [99])
    assert removed.freed == Weight(documents=1, pages=0, files=1, size=10)
    assert by_hand("SELECT * FROM page") == by_hand("SELECT * FROM page_result") == []
    assert store.removal.files_to_delete() == ["objects/1-1/a.pdf"]
    assert "reindex" in store.job_control.retry(jobs_with_ids(job.id), actor="ann").refused[job.id]
    assert request_document(store, "a.pdf", owner="ann").document_id == 2


def test_a_removed_document_is_invisible_while_its_pages_are_deleted_in_steps(store: Store, by_hand: ByHand) -> None:
    texts = [f"solar {number}" for number in range(50)]
    publish(store, "report.pdf", *texts)

    store.removal.remove_documents([1], actor="ann")
    left = []
    while by_hand("SELECT * FROM document_gone"):
        assert store.search.find(SearchRequest("solar")).items == []
        assert store.search.keyword_counts(["solar"]) == []
        assert store.removal.forget_removed_documents(10) <= 20
        left.append(by_hand("SELECT count(*) AS n FROM page")[0]["n"])
    while store.removal.forget_removed_documents(10):
        pass

    assert left[:5] == [40, 30, 20, 10, 0]
    assert by_hand("SELECT count(*) AS n FROM page_result") == [{"n": 0}]
    assert by_hand("INSERT INTO page_text (page_text) VALUES ('integrity-check')") == []
    assert store.integrity.audit() == []


def test_pages_and_files_that_another_document_has_stay_with_it(store: Store, by_hand: ByHand) -> None:
    share_original(store, (["own", "both"], ["both"]))
    [original], [copy] = store.attempts.inputs(1), store.attempts.inputs(2)
    assert (copy.name, copy.path, copy.sha256) == ("b.pdf", original.path, "c1")

    assert store.removal.weigh([1]) == Weight(documents=1, shared_files=1)
    assert store.removal.weigh([1, 2]) == Weight(documents=2, files=1, size=10)
    assert remove(store, 1).freed == Weight(documents=1, shared_files=1)

    assert [page.text for page in store.library.page_texts(2)] == ["both"]
    assert [document.document_id for document in store.search.find(SearchRequest("both")).items] == [2]
    assert store.search.find(SearchRequest("own")).items == []
    assert by_hand("SELECT text FROM page_result") == [{"text": "both"}]
    assert store.removal.files_to_delete() == []
    assert remove(store, 2).freed == Weight(documents=1, files=1, size=10)
    assert store.removal.files_to_delete() == [original.path]
    store.removal.forget_deleted_files([original.path])
    assert store.removal.files_to_delete() == []


def test_a_removal_is_an_action_that_cannot_be_undone(store: Store, by_hand: ByHand, clock: MovableClock) -> None:
    publish(store, "report.pdf", "text", owner="ann")
    publish(store, "other.pdf", "text")
    store.intake.enqueue(NewJob("ocr_pages"))
    store.job_control.cancel(jobs_with_ids(3), actor="bob")

    action_id = remove(store, 1, 2).action_id

    [removal, cancel] = store.history.actions()
    assert (removal.id, removal.actor, removal.verb) == (action_id, "ann", "remove")
    assert (removal.jobs, removal.documents) == (0, 2)
    [of_ann, _] = by_hand(f"SELECT left_as FROM worker_action_item WHERE action_id = {action_id} ORDER BY item_id")
    assert of_ann["left_as"] == "ann gdrive report.pdf report.pdf of ann"
    with pytest.raises(Refused):
        undo(store, action_id)
    assert list(undo(store, cancel.id).job_ids) == [3]

    clock.advance(8 * 86400)
    store.pruning.prune(jobs_with_ids(1))
    assert by_hand("SELECT * FROM worker_action_item") == by_hand("SELECT * FROM worker_action") == []


def test_sizes_are_summed_by_owner_and_shared_files_count_once_in_total(store: Store) -> None:
    share_original(store, files=[NewFile("b.txt", "objects/3-1/b.txt", "text", 5)], document=DocumentFacts(pages=7))

    # Ann's download has also published an empty log.
    assert store.removal.sizes_by_owner() == [OwnerSize("bob", 1, 7, 2, 15), OwnerSize("ann", 1, 0, 2, 10)]
    assert store.removal.size_of_all() == (3, 15)
    assert [document.size for document in store.library.documents(DocumentSelector())] == [10, 10]


def test_an_unused_result_is_deleted_when_no_attempt_may_use_it(
    store: Store, by_hand: ByHand, clock: MovableClock
) -> None:
    publish(store, "report.pdf", "first")
    publish(store, "report.pdf", "second", content="c2")
    asking = start_reading(store, "other.pdf")
    known = store.attempts.answer(asking.lease, KnownPages(["1:first"])).digests
    clock.advance(1)

    while store.removal.forget_superseded_pages():
        pass

    assert by_hand("SELECT generation FROM page") == [{"generation": 2}]
    assert known == ["1:first"]
    assert by_hand.value("SELECT count(*) FROM page_result") == 2
    assert store.attempts.answer(asking.lease, KnownPages(["1:first"])).digests == []
    store.leases.complete(asking.lease)
    clock.advance(1)
    while store.removal.forget_superseded_pages():
        pass
    assert by_hand("SELECT text FROM page_result") == [{"text": "second"}]
    assert store.search.find(SearchRequest("first")).items == []


def test_pages_of_a_failed_generation_are_kept_for_the_next_one(store: Store, clock: MovableClock) -> None:
    first = start_reading(store)
    save(store, first.lease, "first")
    store.leases.fail(first.lease, Failure("X", "x"), retry_at=None)
    request_document(store)
    clock.advance(1)
    while store.removal.forget_superseded_pages():
        pass

    again = claim(store)

    assert store.attempts.answer(again.lease, KnownPages(["1:first"])).digests == ["1:first"]


def test_publishing_deletes_files_that_only_an_earlier_generation_has(store: Store) -> None:
    download(store)
    made = [NewFile("a.txt", "objects/2-1/a.txt", "text"), NewFile("a.html", "objects/2-1/a.html", "pages")]
    store.leases.complete_many([Completion(claim(store, "ingest").lease, files=made, publishes=True)])
    download(store, content="c2")
    made = [NewFile("a.txt", "objects/4-1/a.txt", "text")]
    store.leases.complete_many([Completion(claim(store, "ingest").lease, files=made, publishes=True)])

    assert {file.role: file.job_id for file in store.attempts.inputs(1)} == {"original": 3, "text": 4}
    assert store.removal.files_to_delete() == ["objects/2-1/a.html", "objects/2-1/a.txt"]


def test_an_older_original_is_deleted_even_if_its_name_differs(store: Store) -> None:
    download(store, name="a.pdf")
    download(store, name="b.pdf", content="c2")
    store.leases.complete_many([Completion(claim(store, "ingest").lease, publishes=True)])

    store.removal.forget_superseded_pages()

    assert [file.name for file in store.library.files(1)] == ["b.pdf"]


def test_a_page_reported_as_known_can_still_be_saved_after_a_cleanup(store: Store, clock: MovableClock) -> None:
    publish(store, "report.pdf", "first")
    publish(store, "report.pdf", "second", content="c2")
    asking = start_reading(store, "other.pdf")
    while store.removal.forget_superseded_pages():
        pass

    store.attempts.save_pages([(asking.lease, PageResult(1, "1:first"))])
    store.leases.complete_many([Completion(asking.lease, publishes=True)])
    clock.advance(9)
    while store.removal.forget_superseded_pages():
        pass

    assert [page.text for page in store.library.page_texts(2)] == ["first"]
