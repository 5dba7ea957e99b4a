"""Lists of documents: filters, orders, and pages of a list that neither repeat nor miss a document."""

from __future__ import annotations

import pytest

from tests.store.kit import ByHand, ask_for, claim, publish, work_as
from worker_service.jobs.attempts import Failure
from worker_service.jobs.library import DocumentOrder, DocumentSelector, DocumentSort
from worker_service.store.store import Store


@pytest.fixture
def shelf(store: Store, by_hand: ByHand) -> Store:
    """Eight documents, two of each name and number of pages, of which one has failed."""
    work_as(store)
    for at in range(7):
        publish(store, f"{at}.pdf", owner="ann" if at % 2 else "bob", tags=["even"] if at % 2 == 0 else [])
    ask_for(store, "7.pdf", owner="ann")
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
    return [one.name for one in found]


def test_names_are_sorted_without_regard_to_case_and_states_with_failures_first(shelf: Store) -> None:
    assert [one.upper() for one in names(shelf, DocumentOrder(DocumentSort.NAME))] == [*"AABBCCDD"]
    assert names(shelf, DocumentOrder(DocumentSort.STATE))[0] == "c"
    assert names(shelf, DocumentOrder()) == [*"cCdDaAbB"]
    pages = [one.pages for one in shelf.library.documents(DocumentSelector(), order=DocumentOrder(DocumentSort.PAGES))]
    assert pages == [3, 3, 2, 2, 1, 1, 0, None]


@pytest.mark.parametrize("sort", DocumentSort)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_pages_of_a_list_have_each_document_once(shelf: Store, sort: DocumentSort, is_reversed: bool) -> None:
    order, seen = DocumentOrder(sort, is_reversed), list[int]()

    while found := shelf.library.documents(
        DocumentSelector(), most=3, before_id=seen[-1] if seen else None, order=order
    ):
        seen += [one.id for one in found]

    assert seen == [one.id for one in shelf.library.documents(DocumentSelector(), order=order)]
    assert sorted(seen) == [*range(1, 9)]


def test_documents_are_chosen_by_tag_kind_and_date_together(shelf: Store) -> None:
    newest = DocumentOrder()
    assert names(shelf, newest, kinds=("image",)) == [*"aAbB"]
    assert names(shelf, newest, since="2026-11-03", until="2026-11-05") == [*"aA"]
    assert names(shelf, newest, tags=("even",), kinds=("pdf",)) == [*"CD"]
    assert shelf.library.totals(DocumentSelector(owners=("ann",))).documents == 4
    assert shelf.library.totals(DocumentSelector(tags=("even",))).documents == 4
