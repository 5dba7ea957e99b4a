"""Lists of documents, and their pages and files; users read the pages of current generations only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.kit import ByHand, MovableClock, claim, publish, request_document, save, start_reading
from worker_service.base.errors import DocumentNotFound
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DocumentFacts, IndexStatus, NewFile, PageResult
from worker_service.jobs.job import NewJob
from worker_service.jobs.library import DocumentOrder, DocumentSelector, DocumentSort
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("document_worker")


# ── Documents ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_document_is_returned_with_its_facts(store: Store, clock: MovableClock) -> None:
    requested = request_document(store, owner="ann")
    job = claim(store)
    save(store, job.lease, "one")
    facts = DocumentFacts(kind="pdf", pages=2, note="repaired")
    store.leases.complete_many([Completion(job.lease, document=facts, publishes=True)])

    document = store.library.document(requested.document_id or 0)

    assert (document.owner, document.platform, document.source_key) == ("ann", "gdrive", "report.pdf")
    assert (document.status, document.percent, document.pages, document.kind) == (IndexStatus.SUCCESS, 100, 2, "pdf")
    assert (document.index_generation, document.current_generation, document.note) == (1, 1, "repaired")
    assert document.updated_at == clock.text


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (DocumentSelector(ids=(1, 99)), [1]),
        (DocumentSelector(owners=("bob",)), [2]),
        (DocumentSelector(owners=("ann", "bob")), [3, 2, 1]),
        (DocumentSelector(statuses=(IndexStatus.FAILED,)), [3]),
        (DocumentSelector(statuses=(IndexStatus.FAILED, IndexStatus.SUCCESS), owners=("ann",)), [3, 1]),
        (DocumentSelector(platforms=("gdrive",)), [3, 2, 1]),
        (DocumentSelector(platforms=("local",)), []),
        (DocumentSelector(name="CLIMATE"), [1]),
        (DocumentSelector(name="%"), []),
    ],
)
def test_a_selector_chooses_documents(store: Store, selector: DocumentSelector, expected: list[int]) -> None:
    publish(store, "Climate 2025.pdf", "a", owner="ann")
    publish(store, "b.pdf", "b", owner="bob")
    request_document(store, "c.pdf", owner="ann")
    store.leases.fail(claim(store).lease, Failure("X", "x"), retry_at=None)

    assert [document.id for document in store.library.documents(selector)] == expected


def test_a_document_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(DocumentNotFound, match="no document 7"):
        store.library.document(7)


def test_a_failed_download_is_listed_until_it_is_tried_again(store: Store, clock: MovableClock) -> None:
    def fail(name: str, owner: str = "ann") -> int:
        requested = NewJob("download", "gdrive", name=name, source_key=f"key of {name}", owner=owner)
        job_id = store.intake.enqueue(requested).job_id
        [job] = store.leases.claim("w1", 1, "io") or store.leases.claim("w1", 1)
        store.leases.fail(job.lease, Failure("NOT_WHAT_IT_SAYS", "it is HTML"), retry_at=None)
        clock.advance(seconds=1)
        return job_id

    def unread_jobs(**chosen: Any) -> list[int]:
        return [job.id for job in store.library.not_brought_in(DocumentSelector(**chosen))]

    slides, bobs, again = fail("slides.pdf"), fail("slides.pdf", "bob"), fail("again.pdf")

    assert unread_jobs() == [again, bobs, slides]
    assert unread_jobs(name="SLIDES", owners=("ann",)) == [slides]
    assert unread_jobs(statuses=(IndexStatus.FAILED,)) == [again, bobs, slides]
    assert unread_jobs(statuses=(IndexStatus.SUCCESS,)) == unread_jobs(ids=(1,)) == []

    store.intake.enqueue(NewJob("download", "gdrive", name="slides.pdf", source_key="key of slides.pdf", owner="ann"))
    publish(store, "key of again.pdf", owner="ann")

    assert unread_jobs() == [bobs]


def test_pages_are_summed_up_and_read(store: Store) -> None:
    job = start_reading(store)
    pages = [PageResult(1, "a", "Grüße", "layer"), PageResult(2, "b", "scan", "ocr", 87.5, '{"words": []}')]
    store.attempts.save_pages([(job.lease, page) for page in pages])
    assert store.library.page_texts(1) == []
    store.leases.complete_many([Completion(job.lease, publishes=True)])

    summaries = [
        (page.number, page.method, page.confidence, page.characters) for page in store.library.page_summaries(1)
    ]

    assert summaries == [(1, "layer", None, 5), (2, "ocr", 87.5, 4)]
    assert store.library.page_texts(1, 2, 2, with_layout=True) == [pages[1]]
    assert [page.text for page in store.library.page_texts(1, 1, 1)] == ["Grüße"]


def test_the_note_of_a_document_includes_that_of_its_newest_original(store: Store) -> None:
    first = NewFile("a.pdf", "objects/1-1/a.pdf", "original", note="the source gives no digest")
    other = NewFile("a.txt", "objects/1-1/a.txt", "text", note="of no original")
    job = start_reading(store)
    store.leases.complete_many([Completion(job.lease, files=[first, other], publishes=True)])
    alone = store.library.document(1).note
    job = start_reading(store, is_forced=True)
    store.leases.complete_many([Completion(job.lease, document=DocumentFacts(note="repaired"), publishes=True)])
    both = store.library.document(1).note
    job = start_reading(store, is_forced=True)
    named = NewFile("a.pdf", "objects/3-1/a.pdf", "original")
    store.leases.complete_many([Completion(job.lease, files=[named], publishes=True)])

    assert (alone, both) == ("the source gives no digest", "repaired; the source gives no digest")
    assert store.library.document(1).note is None


def test_files_of_a_document_are_listed_newest_first(store: Store) -> None:
    job = start_reading(store)
    files = [NewFile("a.txt", "objects/1-1/a.txt", "text"), NewFile("a.json", "objects/1-1/a.json", "pages")]
    store.leases.complete_many([Completion(job.lease, files=files, publishes=True)])

    assert [file.name for file in store.library.files(1)] == ["a.json", "a.txt"]
    assert store.library.files(2) == []


# ── Lists ──


@pytest.fixture
def library_store(store: Store, by_hand: ByHand) -> Store:
    """Eight documents, two of each name and number of pages, of which one has failed."""
    for at in range(7):
        publish(store, f"{at}.pdf", owner="ann" if at % 2 else "bob", tags=["even"] if at % 2 == 0 else [])
    request_document(store, "7.pdf", owner="ann")
    store.leases.fail(claim(store, "ingest").lease, Failure("BROKEN", "broken"), retry_at=None)
    store.leases.claim("w1", 1)
    by_hand(
        "UPDATE document SET name = substr('BbAaDdCc', id, 1), pages = nullif(id / 2, 4),"
        " kind = iif(id > 4, 'pdf', 'image')"
    )
    by_hand("UPDATE document SET created_at = '2026-11-0' || id || ' 10:00:00.000'")
    return store


def names(store: Store, order: DocumentOrder, **chosen: object) -> list[str]:
    found = store.library.documents(DocumentSelector(**chosen), order=order)  # type: ignore[arg-type]
    return [document.name for document in found]


def test_names_are_sorted_without_regard_to_case_and_states_with_failures_first(library_store: Store) -> None:
    assert [name.upper() for name in names(library_store, DocumentOrder(DocumentSort.NAME))] == [*"AABBCCDD"]
    assert names(library_store, DocumentOrder(DocumentSort.STATE))[0] == "c"
    assert names(library_store, DocumentOrder()) == [*"cCdDaAbB"]
    pages = [
        document.pages
        for document in library_store.library.documents(DocumentSelector(), order=DocumentOrder(DocumentSort.PAGES))
    ]
    assert pages == [3, 3, 2, 2, 1, 1, 0, None]


@pytest.mark.parametrize("sort", DocumentSort)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_pages_of_a_list_have_each_document_once(library_store: Store, sort: DocumentSort, is_reversed: bool) -> None:
    order, listed_ids = DocumentOrder(sort, is_reversed), list[int]()

    while found := library_store.library.documents(
        DocumentSelector(), most=3, before_id=listed_ids[-1] if listed_ids else None, order=order
    ):
        listed_ids += [document.id for document in found]

    assert listed_ids == [document.id for document in library_store.library.documents(DocumentSelector(), order=order)]
    assert sorted(listed_ids) == [*range(1, 9)]


def test_documents_are_chosen_by_tag_kind_and_date_together(library_store: Store) -> None:
    newest = DocumentOrder()
    assert names(library_store, newest, kinds=("image",)) == [*"aAbB"]
    assert names(library_store, newest, since="2026-11-03", until="2026-11-05") == [*"aA"]
    assert names(library_store, newest, tags=("even",), kinds=("pdf",)) == [*"CD"]
    assert library_store.library.totals(DocumentSelector(owners=("ann",))).documents == 4
    assert library_store.library.totals(DocumentSelector(tags=("even",))).documents == 4
