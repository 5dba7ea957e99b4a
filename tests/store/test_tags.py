"""Tags of documents."""

from __future__ import annotations

import pytest

from tests.store.kit import claim, publish, request_document
from worker_service.base.errors import BadInput
from worker_service.jobs.attempts import Completion
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.job import NewJob
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.search import SearchRequest
from worker_service.jobs.tags import TagCount, read_one_tag, read_tags
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("document_worker")


def tags_of(store: Store, document_id: int) -> list[str]:
    return [*store.library.document(document_id).tags]


def test_tags_are_words_in_lower_case_divided_by_commas() -> None:
    assert read_tags(["Invoice, paid", " Annual   Report ", "paid,", "RÉSUMÉ"]) == (
        "invoice",
        "paid",
        "annual report",
        "résumé",
    )
    for word in ("-x", "a\nb\x00", "x" * 61, "\u202eevil", "!", "a,b"):
        with pytest.raises(BadInput):
            read_one_tag(word)


def test_tags_stay_through_new_readings_and_versions(store: Store) -> None:
    document_id = publish(store, "a.pdf", content="1", tags=["invoice"])
    store.tags.add([document_id], ["paid"])

    publish(store, "a.pdf", content="2", tags=["urgent"])

    assert tags_of(store, document_id) == ["invoice", "paid", "urgent"]


def test_a_crawl_gives_a_tag_only_to_a_new_document(store: Store) -> None:
    document_id = publish(store, "a.pdf", content="1", tags=["inbox"], is_standing=True)
    store.tags.remove([document_id], ["inbox"])

    publish(store, "a.pdf", content="2", tags=["inbox"], is_standing=True)

    assert tags_of(store, document_id) == []


def test_documents_inside_an_archive_get_its_tags(store: Store) -> None:
    request_document(store, "a.zip", tags=["invoice"])
    inner = NewJob("ingest", document=DocumentRequest("a.zip!/b.pdf", "b.pdf"))
    store.leases.complete_many([Completion(claim(store, "ingest").lease, publishes=True, follow_ups=[inner])])

    [found] = store.library.documents(DocumentSelector(name="b.pdf"))

    assert found.tags == ["invoice"]


def test_documents_are_found_by_all_of_their_tags_and_counted_for_their_owner(store: Store) -> None:
    ann = publish(store, "a.pdf", owner="ann", tags=["invoice", "paid"])
    bob = publish(store, "b.pdf", owner="bob", tags=["invoice"])

    assert store.library.document_ids(DocumentSelector(tags=("invoice",))) == [ann, bob]
    assert store.library.document_ids(DocumentSelector(tags=("invoice", "paid"))) == [ann]
    assert store.tags.counts(None) == [TagCount("invoice", 2), TagCount("paid", 1)]
    assert store.tags.counts("bob") == [TagCount("invoice", 1)]
    assert (store.tags.names(None, most=9), store.tags.names("bob", most=9)) == (["invoice", "paid"], ["invoice"])


def test_a_search_finds_documents_with_all_of_the_tags(store: Store) -> None:
    both = publish(store, "a.pdf", "the flood", tags=["invoice", "paid"])
    invoice_only = publish(store, "b.pdf", "the flood came", tags=["invoice"])

    def found(*tags: str) -> set[int]:
        request = SearchRequest("flood", tags=tags)
        return {item.document_id for item in store.search.find(request).items}

    assert (found("invoice"), found("invoice", "paid"), found("other")) == ({both, invoice_only}, {both}, set())
