"""Vectors of passages: written by jobs, read by searches.

Equal passages share vectors. Searches use one model until another has vectors for all documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from worker_service.base.clock import as_text
from worker_service.base.embedding import middle_word, normalised
from worker_service.base.errors import Refused
from worker_service.jobs.documents import (
    DocumentsToEmbed,
    EmbeddableDocuments,
    KnownDigests,
    KnownVectors,
    PagesAnswer,
    PagesToEmbed,
    QuestionAnswer,
)
from worker_service.jobs.embeddings import Embeddings
from worker_service.jobs.job import Lease
from worker_service.store.database import Row, StorePart
from worker_service.store.library import page_from

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from worker_service.base.embedding import Vectors

_DOCUMENTS_AT_ONCE = 50
_FORGOTTEN_AT_ONCE = 500
_PAUSE_AFTER_FAILED_JOB = timedelta(hours=1)
# Rows of the matrix converted to floats at once: a float takes four times the memory of a stored byte.
_FLOAT_ROWS_AT_ONCE = 8192
# Number of passages compared by their windows' vectors, after all were compared by their mean.
_RESCORED_MAX = 300
SIMILAR_PASSAGES_MAX = 100
_SIMILARITY_MIN_AS_SHARE_OF_BEST = 0.6
# The query's vector is moved towards the pages that fit best by words. Chosen on half of the Cranfield questions.
_FEEDBACK_PAGES, _FEEDBACK_SHARE = 3, 0.5


class PassageEmbeddings(StorePart):
    # ── For jobs ──

    def is_behind(self, model: str) -> bool:
        return bool(self._db.read("documents_to_embed", model=model, most=1))

    def is_job_due(self) -> bool:
        return not self._db.read("embedding_job", failed_after=as_text(self._db.clock() - _PAUSE_AFTER_FAILED_JOB))

    def answer(self, lease: Lease, question: DocumentsToEmbed | PagesToEmbed | KnownVectors) -> QuestionAnswer:
        may_ask = bool(self._db.read("is_embedding_job", **lease._asdict()))
        match question:
            case DocumentsToEmbed(model):
                rows = self._db.read("documents_to_embed", model=model, most=_DOCUMENTS_AT_ONCE) if may_ask else []
                return EmbeddableDocuments(rows)
            case PagesToEmbed(document_id, generation, after, most):
                place = {"document_id": document_id, "generation": generation, "after": after}
                rows = self._db.read("pages_to_embed", **place, most=most) if may_ask else []
                return PagesAnswer([page_from(row) for row in rows])
            case KnownVectors(model, digests):
                rows = self._db.read("digests_with_vectors", model=model, digests=json.dumps(list(digests)))
                return KnownDigests([digest for (digest,) in rows] if may_ask else [])

    def save(self, lease: Lease, embeddings: Embeddings) -> None:
        if not self._db.read_locked("is_embedding_job", **lease._asdict()):
            raise Refused("only jobs of type embed save vectors")
        generation = {
            "model": embeddings.model, "document_id": embeddings.document_id, "generation": embeddings.generation
        }  # fmt: skip
        passages = embeddings.passages
        # A passage without vectors is known to have them already.
        new_vectors = [
            {**generation, "digest": passage.digest, "vectors": passage.vectors}
            for passage in passages
            if passage.vectors
        ]
        self._db.write_each("save_vectors", new_vectors)
        rows = [(passage.number, passage.digest, *page) for passage in passages for page in passage.pages]
        self._db.write("save_passages", **generation, passages=json.dumps(rows))
        if embeddings.total is not None:
            self._db.write("document_embedded", **generation, total=embeddings.total)
            self._db.write("forget_passages", model=embeddings.model, document_id=embeddings.document_id)

    def use_model(self, model: str) -> bool:
        """Let searches use this model. Delete some vectors of others; return True if more are left."""
        with self._db.transaction():
            self._db.write("use_embeddings", model=model)
            self._db.write("forget_embedded", model=model)
            return len(self._db.write("forget_embeddings", model=model, most=_FORGOTTEN_AT_ONCE)) > 0

    # ── For searches ──

    def model(self) -> str | None:
        return next((model for (model,) in self._db.read("embedding_model")), None)

    def similar(
        self, model: str, query_vector: Vectors, best_by_words: Sequence[int], filters: Mapping[str, object]
    ) -> list[Row]:
        """Return (result_id, document_id, number, content) of pages with a similar meaning, best first."""
        import numpy as np

        matrix = self._matrix(model, len(query_vector))
        on_best_pages = self._db.read("embeddings_on_pages", result_ids=json.dumps([*best_by_words[:_FEEDBACK_PAGES]]))
        feedback_rows = np.flatnonzero(np.isin(matrix.ids, [passage_id for (passage_id,) in on_best_pages]))
        if len(feedback_rows):
            feedback = normalised(normalised(matrix.vectors[feedback_rows].astype(np.float32)).mean(0))
            query_vector = normalised(query_vector + _FEEDBACK_SHARE * feedback)
        candidates = self._best_visible_ids(matrix.ids, matrix.scores(query_vector), filters)
        # Score, passage and word in the middle of its best window.
        scored: list[tuple[float, int, int]] = []
        for passage_id, vectors in self._db.read("vectors_of", ids=json.dumps(candidates)):
            # The first vector is the mean of the others, which are the windows'.
            scores = normalised(_unpacked(vectors, len(query_vector)))[1:] @ query_vector
            best_window = int(scores.argmax())
            scored.append((float(scores[best_window]), passage_id, middle_word(best_window, len(scores))))
        scored.sort(reverse=True)
        score_min = _SIMILARITY_MIN_AS_SHARE_OF_BEST * max((score for score, *_ in scored), default=0.0)
        best = scored[:SIMILAR_PASSAGES_MAX]
        places = [(passage_id, word) for score, passage_id, word in best if score >= score_min]
        return self._db.read("matches_of", places=json.dumps(places), **filters)

    def _best_visible_ids(self, ids: NDArray[np.int64], scores: Vectors, filters: Mapping[str, object]) -> list[int]:
        import numpy as np

        # Nearly always enough of the very best passages are visible.
        for most in (4 * _RESCORED_MAX, 40 * _RESCORED_MAX):
            best = np.argsort(-scores)[:most] if most >= len(ids) else np.argpartition(-scores, most)[:most]
            in_order = ids[best[np.argsort(-scores[best])]].tolist()
            rows = self._db.read("visible_of", ids=json.dumps(in_order), **filters)
            if len(rows) >= _RESCORED_MAX or most >= len(ids):
                return [passage_id for (passage_id,) in rows[:_RESCORED_MAX]]
        # The filters admit a small part of the library.
        visible = self._db.read_value("visible_embeddings", **filters)
        chosen = np.flatnonzero(np.isin(ids, np.fromstring(visible or "", np.int64, sep=",")))
        best_ids: list[int] = ids[chosen[np.argsort(-scores[chosen])[:_RESCORED_MAX]]].tolist()
        return best_ids

    def _matrix(self, model: str, dimensions: int) -> PassageMatrix:
        database = f"{self._db.path} {self._store.library.database_identity()}"
        with _MATRIX_LOCK, self._db.snapshot():
            matrix = _shared_matrix(database, model, dimensions)
            matrix.add(self._db.read("embeddings_after", model=model, after=matrix.last_id))
            if self._db.read_value("count_embeddings", model=model) != len(matrix.ids):
                # Passages were deleted, so read all again.
                matrix.clear()
                matrix.add(self._db.read("embeddings_after", model=model, after=0))
            # Another thread may change the shared matrix while this one is used.
            return copy(matrix)


_MATRIX_LOCK = Lock()


@lru_cache(maxsize=1)
def _shared_matrix(database: str, model: str, dimensions: int) -> PassageMatrix:
    """Return the matrix of all stores of this process: 256 bytes per passage with the bundled model."""
    return PassageMatrix(dimensions)


class PassageMatrix:
    """The mean vector of each passage, in memory."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self.clear()

    def clear(self) -> None:
        import numpy as np

        self.last_id = 0
        self.ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self.vectors: NDArray[np.int8] = np.zeros((0, self._dimensions), np.int8)
        self._lengths: Vectors = np.zeros(0, np.float32)

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        import numpy as np

        if not rows:
            return
        self.last_id = rows[-1][0]
        means = b"".join(vectors[: self._dimensions] for _, vectors in rows)
        more = np.frombuffer(means, np.int8).reshape(-1, self._dimensions)
        self.vectors = np.concatenate([self.vectors, more])
        lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", more, more, dtype=np.float32)), 1)
        self._lengths = np.concatenate([self._lengths, lengths])
        self.ids = np.concatenate([self.ids, np.array([passage_id for passage_id, _ in rows], np.int64)])

    def scores(self, query_vector: Vectors) -> Vectors:
        import numpy as np

        scores = np.zeros(len(self.vectors), np.float32)
        for at in range(0, len(scores), _FLOAT_ROWS_AT_ONCE):
            block = slice(at, at + _FLOAT_ROWS_AT_ONCE)
            scores[block] = self.vectors[block].astype(np.float32) @ query_vector
        return scores / self._lengths


def _unpacked(vectors: bytes, dimensions: int) -> Vectors:
    import numpy as np

    return np.frombuffer(vectors, np.int8).reshape(-1, dimensions).astype(np.float32)
