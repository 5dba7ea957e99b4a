"""Search documents by words and, if it is set up, by meaning."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service.jobs.search import SearchRequest, SearchResult
from worker_service.services.documents import require_batches
from worker_service.services.page_blocks import passage_limits
from worker_service.services.session import Session

if TYPE_CHECKING:
    from worker_service.base.embedding import Embedder
    from worker_service.settings.config import Settings
    from worker_service.store.search import Meaning


def find_documents(session: Session, request: SearchRequest) -> SearchResult:
    require_batches(session, () if request.batch_id is None else (request.batch_id,))
    return session.search.find(request, lambda: _meaning_of(session, request.text))


# ── Meaning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def embedder_of(settings: Settings) -> Embedder:
    return _embedder(settings.embeddings, settings.embeddings_model, passage_limits(settings).edition)


@cache  # loading the bundled model takes long
def _embedder(setting: str, model: str, passages_edition: str = "") -> Embedder:
    from worker_service.base.embedding import Embedder

    key_file = Path(os.environ.get("CREDENTIALS_DIRECTORY") or os.devnull, "embeddings-key")
    key = key_file.read_text("utf-8").strip() if key_file.is_file() else ""
    return Embedder(setting, model, key, passages_edition)


def _embedder_named(name: str, settings: Settings) -> Embedder | None:
    """Return the embedder that made the stored vectors, or None if the settings no longer name its server.

    `name` is model/version/edition of the passages.
    """
    from worker_service.base.embedding import BUNDLED

    model = name.rsplit("/", 2)[0]
    bundled = _embedder(BUNDLED, "")
    if model == bundled.model:
        return bundled
    return None if settings.embeddings == BUNDLED else _embedder(settings.embeddings, model)


def _meaning_of(session: Session, text: str) -> Meaning | None:
    """Return the vector of the text; None while no model has vectors of all pages, or if the model does not answer."""
    if session.settings.embeddings == "off":
        return None
    name = session.store.embeddings.model()
    if name is None or (embedder := _embedder_named(name, session.settings)) is None:
        return None
    from worker_service.base.embedding import EmbeddingUnavailable
    from worker_service.store.search import Meaning

    try:
        return Meaning(name, embedder.embed([text])[0])
    except (EmbeddingUnavailable, ImportError):
        return None
