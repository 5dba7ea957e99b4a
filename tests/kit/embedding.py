"""The job that embeds, without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from job_handlers.embed import embed_passages
from tests.store.kit import claim, work_as
from worker_service.handlers.embedding import PassageLimits
from worker_service.jobs.attempts import Checkpoint
from worker_service.jobs.job import Lease, NewJob

if TYPE_CHECKING:
    from worker_service.base.embedding import Embedder
    from worker_service.jobs.embeddings import Embeddings
    from worker_service.store.store import Store

LIMITS = PassageLimits(400)


class StoreContext:
    """A handler's context that asks and writes the store itself."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store, self._lease = store, lease

    def ask(self, question: Any) -> Any:
        return self._store.attempts.answer(self._lease, question)

    def checkpoint(self, _: object, *, embeddings: Embeddings) -> None:
        self._store.attempts.checkpoint(self._lease, Checkpoint("null", embeddings=embeddings))

    def progress(self, **_: object) -> None: ...


def embed_all(store: Store, embedder: Embedder, limits: PassageLimits = LIMITS) -> None:
    """Embed all documents, and let searches use the model."""
    work_as(store, types=("ingest", "embed", "other"))
    store.intake.enqueue(NewJob("embed"))
    job = claim(store, "embed")
    embed_passages(cast(Any, StoreContext(store, job.lease)), embedder, limits)
    store.leases.complete(job.lease)
    assert not store.embeddings.is_behind(embedder.name)
    while store.embeddings.use_model(embedder.name):
        pass
