"""Vectors of passages follow the generations of documents, and find pages by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from tests.kit.embedding import LIMITS, StoreContext, embed_all
from tests.store.kit import ByHand, claim, publish, save, start_reading, work_as
from worker_service.base.embedding import Embedder, packed
from worker_service.base.errors import LeaseLost, Refused
from worker_service.handlers.embedding import (
    DocumentsToEmbed,
    Embeddings,
    KnownVectors,
    PagesToEmbed,
    PassageLimits,
    PassageVectors,
)
from worker_service.jobs.attempts import Checkpoint, Completion
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.search import SearchRequest
from worker_service.store.search import Meaning
from worker_service.store.store import Store

MODEL = "test/1"
SHORT = PassageLimits(50)


class FakeEmbedder:
    """Texts about ships and about boats are alike."""

    def __init__(self, name: str = MODEL) -> None:
        self.name = name
        self.texts: list[str] = []

    def embed_passages(self, texts: Sequence[str]) -> list[bytes]:
        self.texts += texts
        return [packed(vector_of(text)[None]) for text in texts]


def vector_of(text: str) -> np.ndarray:
    kinds = (("ship", "boat"), ("flood", "water"), ("tax", "money"))
    return np.array([float(any(word in text for word in kind)) + 0.01 for kind in kinds], np.float32)


@pytest.fixture(autouse=True)
def worker_is_there(store: Store) -> None:
    work_as(store, types=("ingest", "embed", "other"))


def embed(store: Store, name: str = MODEL, limits: PassageLimits = LIMITS) -> list[str]:
    """Return the texts for which vectors were computed."""
    embedder = FakeEmbedder(name)
    embed_all(store, cast(Embedder, embedder), limits)
    return embedder.texts


def embedding_job(store: Store, job_type: str = "embed", owner: str = "") -> Job:
    store.intake.enqueue(NewJob(job_type, owner=owner))
    return claim(store, job_type)


def save_one(store: Store, job: Job, text: str = "text", total: int | None = None, generation: int = 1) -> None:
    rows = [PassageVectors(1, [(1, 0)], text, packed(vector_of(text)[None]))]
    embeddings = Embeddings(MODEL, 1, generation, rows, total)
    store.attempts.checkpoint(job.lease, Checkpoint("null", embeddings=embeddings))


def read_again(store: Store, key: str, *texts: str) -> None:
    job = start_reading(store, key, is_forced=True)
    save(store, job.lease, *texts)
    store.leases.complete_many([Completion(job.lease, publishes=True)])


def find(store: Store, text: str, model: str = MODEL, **where: Any) -> list[int]:
    meaning = Meaning(model, vector_of(text) / np.linalg.norm(vector_of(text)))
    return [document.document_id for document in store.search.find(SearchRequest(text, **where), lambda: meaning).items]


def counts(by_hand: ByHand) -> tuple[object, ...]:
    """Return the number of vectors, of passages and of embedded documents."""
    tables = ("passage_embedding", "passage", "document_embedding")
    return tuple(by_hand(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables)


def test_pages_of_similar_meaning_come_after_pages_with_all_words_within_the_owner_filter(store: Store) -> None:
    publish(store, "a.pdf", "the ship sails", owner="ann")
    publish(store, "b.pdf", "the tax is due", owner="ann", content="c2")
    publish(store, "c.pdf", "another ship of bob", owner="bob", content="c3")
    embed(store)

    assert find(store, "boat", owner="ann")[0] == 1
    assert find(store, "boat", owner="bob") == [3]
    assert find(store, "boat tax", owner="ann")[0] in (1, 2)
    assert find(store, "ship", owner="ann")[0] == 1
    assert find(store, "boat", owner="ann", needs_all=True) == []
    assert find(store, "boat AND money", owner="ann") == []


def test_equal_passages_are_embedded_once_and_found_by_each_owner(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails", owner="ann")
    publish(store, "b.pdf", "the ship sails", owner="bob", content="c2")

    assert embed(store) == ["the ship sails"]
    assert counts(by_hand) == (1, 2, 2)
    assert (find(store, "boat", owner="ann"), find(store, "boat", owner="bob")) == ([1], [2])

    store.removal.remove_documents([1], actor="test")
    assert counts(by_hand) == (1, 1, 1)
    assert (find(store, "boat", owner="ann"), find(store, "boat", owner="bob")) == ([], [2])


def test_reading_a_document_again_embeds_only_changed_passages(store: Store, by_hand: ByHand) -> None:
    same = "the tax is due " * 30
    publish(store, "a.pdf", "the ship sails", same)
    embed(store, limits=SHORT)
    read_again(store, "a.pdf", "a flood", same)

    assert store.embeddings.is_behind(MODEL)
    assert find(store, "boat") == []
    assert embed(store, limits=SHORT) == ["a flood"]
    assert counts(by_hand)[2] == 1
    assert by_hand("SELECT DISTINCT generation FROM passage") == [{"generation": 2}]
    assert find(store, "water") == [1]
    assert not [finding for finding in store.integrity.audit() if finding.promise == "P11"]


def test_a_removed_document_leaves_no_vector(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    embed(store)
    assert find(store, "boat") == [1]

    store.removal.remove_documents([1], actor="test")

    assert counts(by_hand) == (0, 0, 0)
    assert find(store, "boat") == []
    publish(store, "d.pdf", "a boat", content="c4")
    embed(store)
    assert find(store, "ship") == [2]


@pytest.mark.parametrize("total", [None, 1])
def test_vectors_of_an_older_generation_are_not_saved(store: Store, by_hand: ByHand, total: int | None) -> None:
    publish(store, "a.pdf", "the ship sails")
    job = embedding_job(store)
    read_again(store, "a.pdf", "a flood")

    save_one(store, job, total=total)

    assert counts(by_hand) == (0, 0, 0)
    assert store.embeddings.is_behind(MODEL)
    assert store.attempts.answer(job.lease, PagesToEmbed(1, 1, 0, 9)).pages == []


def test_a_set_that_lacks_a_passage_is_forgotten_and_made_again(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    job = embedding_job(store)

    save_one(store, job, total=2)

    assert counts(by_hand) == (0, 0, 0)
    assert store.embeddings.is_behind(MODEL)


def test_vectors_are_saved_once_and_only_under_the_lease(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    job = embedding_job(store)
    save_one(store, job)
    save_one(store, job)
    store.leases.requeue("w1")
    work_as(store, types=("ingest", "embed", "other"))

    with pytest.raises(LeaseLost):
        save_one(store, job, "another")
    assert counts(by_hand) == (1, 1, 0)
    again = claim(store, "embed")
    assert store.attempts.answer(again.lease, KnownVectors(MODEL, ["text", "other"])).digests == ["text"]
    assert store.attempts.answer(again.lease, DocumentsToEmbed(MODEL)).documents == [(1, 1)]


def test_a_new_model_takes_over_when_all_documents_have_its_vectors(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    publish(store, "b.pdf", "the tax is due", content="c2")
    embed(store)
    job = embedding_job(store)
    rows = [PassageVectors(1, [(1, 0)], "d", packed(vector_of("ship")[None]))]
    StoreContext(store, job.lease).checkpoint(None, embeddings=Embeddings("new/1", 1, 1, rows, 1))

    assert (store.embeddings.model(), store.embeddings.is_behind("new/1")) == (MODEL, True)
    assert find(store, "boat")[0] == 1
    store.leases.complete(job.lease)
    assert embed(store, "new/1") == ["the tax is due"]
    assert store.embeddings.model() == "new/1"
    assert find(store, "boat", "new/1")[0] == 1
    assert by_hand("SELECT DISTINCT model FROM passage_embedding") == [{"model": "new/1"}]
    assert counts(by_hand) == (2, 2, 2)


@pytest.mark.parametrize(("job_type", "owner"), [("other", ""), ("embed", "ann")])
def test_other_jobs_get_no_text_and_save_no_vector(store: Store, by_hand: ByHand, job_type: str, owner: str) -> None:
    publish(store, "a.pdf", "a secret", owner="bob")
    embed(store)
    job = embedding_job(store, job_type, owner)
    [digest] = by_hand("SELECT digest FROM passage_embedding")[0].values()

    assert store.attempts.answer(job.lease, DocumentsToEmbed("new")).documents == []
    assert store.attempts.answer(job.lease, PagesToEmbed(1, 1, 0, 9)).pages == []
    assert store.attempts.answer(job.lease, KnownVectors(MODEL, [str(digest)])).digests == []
    with pytest.raises(Refused):
        save_one(store, job)


def test_a_passage_of_several_pages_is_found_on_the_page_that_is_alike(store: Store) -> None:
    publish(store, "a.pdf", *(f"page {number} " + "of tables " * 30 for number in range(1, 5)), "a ship sails " * 20)

    embedder = Embedder("bundled")
    embed_all(store, embedder)
    meaning = Meaning(embedder.name, embedder.embed(["boats at sea"])[0])
    found = store.search.find(SearchRequest("boats at sea"), lambda: meaning)

    assert [page.number for page in found.items[0].best_pages][:1] == [5]


def test_the_audit_names_passages_without_vectors_or_documents(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    embed(store)
    by_hand("INSERT INTO passage_embedding (model, digest, vectors) VALUES ('m', 'd', x'00')")
    by_hand("INSERT INTO passage VALUES (99, 77, 1, 1, 1, 0)")

    assert [finding.promise for finding in store.integrity.audit() if "passage" in finding.detail] == ["P11"] * 2


def test_the_bundled_model_finds_texts_about_the_same_thing() -> None:
    embedder = Embedder("bundled", passage_edition="1.400.0")
    texts = ["The vessel left the harbour in a storm.", "Income tax is due in March.", ""]
    pages = [
        np.frombuffer(packed_vectors, np.int8).reshape(-1, 256) for packed_vectors in embedder.embed_passages(texts)
    ]

    question = embedder.embed(["a ship at sea"])[0]

    assert [len(vectors) for vectors in pages] == [2, 2, 0]
    assert pages[0][0] @ question > pages[1][0] @ question
    assert embedder.name == "l2_supercat_256/2/1.400.0"
