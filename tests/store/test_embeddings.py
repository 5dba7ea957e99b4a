"""Vectors of pages follow the generations of documents, and find pages by meaning."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.store.kit import ByHand, claim, publish, save, start_reading, work_as
from worker_service.base.embedding import Embedder, packed
from worker_service.base.errors import LeaseLost, Refused
from worker_service.jobs.attempts import Checkpoint, Completion
from worker_service.jobs.documents import PagesToEmbed, TextsToEmbed
from worker_service.jobs.embeddings import Embeddings, PageVectors
from worker_service.jobs.job import Job, Lease, NewJob
from worker_service.jobs.search import SearchRequest
from worker_service.store.search import Meaning
from worker_service.store.store import Store

MODEL = "test/1"


@pytest.fixture(autouse=True)
def worker_is_there(store: Store) -> None:
    work_as(store, types=("ingest", "embed", "other"))


def embedding_job(store: Store, job_type: str = "embed", owner: str = "") -> Job:
    store.intake.enqueue(NewJob(job_type, owner=owner))
    return claim(store, job_type)


def ask(store: Store, lease: Lease, model: str = MODEL) -> TextsToEmbed:
    return store.attempts.answer(lease, PagesToEmbed(model))


def vector_of(text: str) -> np.ndarray:
    """Pages about ships and about boats are alike."""
    kinds = (("ship", "boat"), ("flood", "water"), ("tax", "money"))
    return np.array([float(any(word in text for word in kind)) + 0.01 for kind in kinds], np.float32)


def embed(store: Store, lease: Lease, found: TextsToEmbed, model: str = MODEL) -> None:
    pages = [PageVectors(one.digest, packed(vector_of(one.text)[None])) for one in found.pages]
    store.attempts.checkpoint(lease, Checkpoint("null", embeddings=Embeddings(model, found.documents, pages)))


def embed_all(store: Store, model: str = MODEL) -> None:
    job = embedding_job(store)
    while (found := ask(store, job.lease, model)).documents:
        embed(store, job.lease, found, model)
    store.leases.complete(job.lease)
    assert not store.embeddings.is_behind(model)
    while store.embeddings.use(model):
        pass


def find(store: Store, text: str, model: str = MODEL, **where: object) -> list[int]:
    meaning = Meaning(model, vector_of(text) / np.linalg.norm(vector_of(text)))
    found = store.search.find(SearchRequest(text, **where), lambda: meaning)  # type: ignore[arg-type]
    return [one.document_id for one in found.items]


def test_pages_are_found_by_meaning_behind_those_with_all_words_and_only_by_those_who_may(store: Store) -> None:
    publish(store, "a.pdf", "the ship sails", owner="ann")
    publish(store, "b.pdf", "the tax is due", owner="ann", content="c2")
    publish(store, "c.pdf", "another ship of bob", owner="bob", content="c3")
    embed_all(store)

    assert find(store, "boat", owner="ann")[0] == 1
    assert find(store, "boat", owner="bob") == [3]
    assert find(store, "boat tax", owner="ann")[0] in (1, 2)
    assert find(store, "ship", owner="ann")[0] == 1
    assert find(store, "boat", owner="ann", needs_all=True) == []
    assert find(store, "boat AND money", owner="ann") == []


def test_a_new_reading_and_a_removal_leave_no_vector(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    publish(store, "b.pdf", "the tax is due", content="c2")
    embed_all(store)
    job = start_reading(store, "a.pdf", is_forced=True)
    save(store, job.lease, "a flood")
    store.leases.complete_many([Completion(job.lease, publishes=True)])

    assert store.embeddings.is_behind(MODEL)
    assert 1 not in find(store, "boat")
    embed_all(store)
    assert find(store, "water")[0] == 1

    store.removal.remove_documents([1, 2], actor="ann")
    while store.removal.forget_gone(100):
        pass
    by_hand("DELETE FROM page_result")
    assert by_hand("SELECT count(*) AS n FROM page_embedding") == [{"n": 0}]
    assert find(store, "water") == []
    publish(store, "d.pdf", "a boat", content="c4")
    embed_all(store)
    assert find(store, "ship") == [3]
    assert by_hand("SELECT document_id FROM document_embedding") == [{"document_id": 3}]


def test_vectors_of_a_generation_that_is_no_longer_current_are_not_saved(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    job = embedding_job(store)
    found = ask(store, job.lease)
    reading = start_reading(store, "a.pdf", is_forced=True)
    save(store, reading.lease, "a flood")
    store.leases.complete_many([Completion(reading.lease, publishes=True)])

    embed(store, job.lease, found)

    assert by_hand("SELECT count(*) AS n FROM page_embedding") == [{"n": 0}]
    assert store.embeddings.is_behind(MODEL)


def test_an_attempt_that_lost_its_lease_saves_nothing_and_a_second_one_nothing_twice(
    store: Store, by_hand: ByHand
) -> None:
    publish(store, "a.pdf", "the ship sails", "a flood")
    job = embedding_job(store)
    found = ask(store, job.lease)
    embed(store, job.lease, found)
    embed(store, job.lease, found)
    store.leases.requeue("w1")
    work_as(store, types=("ingest", "embed", "other"))

    with pytest.raises(LeaseLost):
        embed(store, job.lease, found)
    assert by_hand("SELECT count(*) AS n FROM page_embedding") == [{"n": 2}]
    again = claim(store, "embed")
    assert not ask(store, again.lease).documents


def test_a_new_model_takes_over_when_all_documents_have_its_vectors(store: Store, by_hand: ByHand) -> None:
    publish(store, "a.pdf", "the ship sails")
    publish(store, "b.pdf", "the tax is due", content="c2")
    embed_all(store)
    job = embedding_job(store)
    found = ask(store, job.lease, "new/1")
    embed(store, job.lease, TextsToEmbed(found.documents[:1], found.pages[:1]), "new/1")

    assert (store.embeddings.model(), store.embeddings.is_behind("new/1")) == (MODEL, True)
    assert find(store, "boat")[0] == 1

    embed(store, job.lease, ask(store, job.lease, "new/1"), "new/1")
    while store.embeddings.use("new/1"):
        pass
    assert store.embeddings.model() == "new/1"
    assert find(store, "boat", "new/1")[0] == 1
    assert by_hand("SELECT DISTINCT model FROM page_embedding") == [{"model": "new/1"}]


@pytest.mark.parametrize(("job_type", "owner"), [("other", ""), ("embed", "ann")])
def test_other_jobs_are_given_no_text_and_save_no_vector(store: Store, job_type: str, owner: str) -> None:
    publish(store, "a.pdf", "a secret", owner="bob")
    job = embedding_job(store, job_type, owner)

    assert ask(store, job.lease) == TextsToEmbed()
    with pytest.raises(Refused):
        embed(store, job.lease, TextsToEmbed([(1, 1)]))


def test_the_bundled_model_finds_pages_about_the_same_thing(store: Store) -> None:
    embedder = Embedder("bundled")
    texts = ["The vessel left the harbour in a storm.", "Income tax is due in March.", ""]
    pages = [np.frombuffer(one, np.int8).reshape(-1, 256) for one in embedder.embed_pages(texts)]

    question = embedder.embed(["a ship at sea"])[0]

    assert [len(one) for one in pages] == [2, 2, 0]
    assert pages[0][0] @ question > pages[1][0] @ question
    assert json.loads(json.dumps(embedder.name)) == "l2_supercat_256/1"
