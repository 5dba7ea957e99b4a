"""Vectors of pages: written by jobs, read by searches.

A page result never changes, so its vectors do not either; they go with it. A document counts as embedded by generation
and model. Searches use one model until another has vectors for all documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from worker_service.base.clock import as_text
from worker_service.base.embedding import normalised
from worker_service.base.errors import Refused
from worker_service.jobs.documents import TextOfResult, TextsToEmbed
from worker_service.jobs.embeddings import Embeddings
from worker_service.jobs.job import Lease
from worker_service.store.database import StorePart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from worker_service.base.embedding import Vectors

_DOCUMENTS_AT_ONCE = 50
_PAGES_AT_ONCE = 64
_FORGOTTEN_AT_ONCE = 500
_RETRY_AFTER = timedelta(hours=1)
"""After a failed job, another one is not inserted earlier."""
_ROWS_AT_ONCE = 8192
_RESCORED = 300
"""Pages whose windows are compared; all pages are compared by one vector each."""
SIMILAR_MOST = 100
_SIMILAR_SHARE = 0.6
"""Pages whose similarity is a smaller share of the best one are left out."""
_FEEDBACK_PAGES, _FEEDBACK_SHARE = 3, 0.5
"""The query's vector is moved towards those of the best pages by words. Chosen on half of the Cranfield questions."""


class PageEmbeddings(StorePart):
    # ── For jobs ──

    def is_behind(self, model: str) -> bool:
        return bool(self._db.read("documents_to_embed", model=model, most=1))

    def is_job_due(self) -> bool:
        return not self._db.read("embedding_job", failed_after=as_text(self._db.clock() - _RETRY_AFTER))

    def texts_to_embed(self, lease: Lease, model: str) -> TextsToEmbed:
        if not self._db.read("is_embedding_job", **lease._asdict()):
            return TextsToEmbed()
        documents = self._db.read("documents_to_embed", model=model, most=_DOCUMENTS_AT_ONCE)
        values = {"documents": json.dumps(documents), "model": model, "most": _PAGES_AT_ONCE}
        return TextsToEmbed(documents, [TextOfResult(*row) for row in self._db.read("pages_to_embed", **values)])

    def save(self, lease: Lease, embeddings: Embeddings) -> None:
        if not self._db.write("is_embedding_job", **lease._asdict()):
            raise Refused("only jobs of type embed save vectors")
        model = embeddings.model
        rows = [{"model": model, "digest": one.digest, "vectors": one.vectors} for one in embeddings.pages]
        self._db.write_each("save_embedding", rows)
        self._db.write("documents_embedded", model=model, documents=json.dumps(embeddings.documents))

    def use(self, model: str) -> bool:
        """Let searches use this model, and delete some vectors of others. Return whether more are left."""
        with self._db.transaction():
            self._db.write("use_embeddings", model=model)
            self._db.write("forget_embedded", model=model)
            return len(self._db.write("forget_embeddings", model=model, most=_FORGOTTEN_AT_ONCE)) > 0

    # ── For searches ──

    def model(self) -> str | None:
        return next((model for (model,) in self._db.read("embedding_model")), None)

    def similar(self, model: str, question: Vectors, best: Sequence[int], values: Mapping[str, object]) -> list[int]:
        """Return the `result_id` of pages with a similar meaning, best first.

        `best`: the best pages by words; `values`: the filters of the search.
        """
        import numpy as np

        matrix = self._matrix(model, len(question))
        nearby = np.flatnonzero(np.isin(matrix.result_ids, best[:_FEEDBACK_PAGES]))
        if len(nearby):
            feedback = normalised(normalised(matrix.vectors[nearby].astype(np.float32)).mean(0))
            question = normalised(question + _FEEDBACK_SHARE * feedback)
        first = self._first_visible(matrix.result_ids, matrix.scores(question), values)
        stored = self._db.read("embeddings_of", model=model, result_ids=json.dumps(first))
        by_window = {
            result_id: float((normalised(_unpacked(vectors, len(question)))[1:] @ question).max())
            for result_id, vectors in stored
        }
        least = _SIMILAR_SHARE * max(by_window.values(), default=0.0)
        near = [one for one in by_window if by_window[one] >= least]
        return sorted(near, key=lambda one: -by_window[one])[:SIMILAR_MOST]

    def _first_visible(self, ids: NDArray[np.int64], scores: Vectors, values: Mapping[str, object]) -> list[int]:
        """Return the best pages that the asker may see."""
        import numpy as np

        for most in (4 * _RESCORED, 40 * _RESCORED):
            best = np.argsort(-scores)[:most] if most >= len(ids) else np.argpartition(-scores, most)[:most]
            in_order = ids[best[np.argsort(-scores[best])]].tolist()
            rows = self._db.read("visible_of_results", result_ids=json.dumps(in_order), **values)
            if len(rows) >= _RESCORED or most >= len(ids):
                return [result_id for (result_id,) in rows[:_RESCORED]]
        # The asker sees a small part of the library.
        [(visible,)] = self._db.read("visible_results", **values)
        chosen = np.flatnonzero(np.isin(ids, np.fromstring(visible or "", np.int64, sep=",")))
        some: list[int] = ids[chosen[np.argsort(-scores[chosen])[:_RESCORED]]].tolist()
        return some

    def _matrix(self, model: str, dimensions: int) -> PageMatrix:
        key = (str(self._db.path), model)
        with _LOCK, self._db.snapshot():
            matrix = _MATRICES.setdefault(key, PageMatrix(dimensions))
            matrix.add(self._db.read("embeddings_after", model=model, after=matrix.last_id))
            if self._db.read("count_embeddings", model=model) != [(matrix.rows,)]:
                # Some were deleted.
                matrix = _MATRICES[key] = PageMatrix(dimensions)
                matrix.add(self._db.read("embeddings_after", model=model, after=0))
            # Another thread may add to the shared one while this one is used.
            return copy(matrix)


_MATRICES: dict[tuple[str, str], PageMatrix] = {}
"""Shared by all sessions of this process: 256 bytes per page with the bundled model."""
_LOCK = Lock()


class PageMatrix:
    """One vector for each page, in memory."""

    def __init__(self, dimensions: int) -> None:
        import numpy as np

        self._dimensions = dimensions
        self.last_id = 0
        self.rows = 0
        """Number of rows in the table, including pages without words."""
        self.result_ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self.vectors: NDArray[np.int8] = np.zeros((0, dimensions), np.int8)
        self._lengths: Vectors = np.zeros(0, np.float32)

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        import numpy as np

        if not rows:
            return
        self.rows, self.last_id = self.rows + len(rows), rows[-1][0]
        kept = [(result_id, vectors[: self._dimensions]) for _, result_id, vectors in rows if vectors]
        more = np.frombuffer(b"".join(vectors for _, vectors in kept), np.int8).reshape(-1, self._dimensions)
        self.vectors = np.concatenate([self.vectors, more])
        lengths = np.sqrt(np.einsum("ij,ij->i", more, more, dtype=np.float32))
        self._lengths = np.concatenate([self._lengths, lengths])
        self.result_ids = np.concatenate([self.result_ids, np.array([one for one, _ in kept], np.int64)])

    def scores(self, question: Vectors) -> Vectors:
        import numpy as np

        scores = np.zeros(len(self.vectors), np.float32)
        for at in range(0, len(scores), _ROWS_AT_ONCE):
            scores[at : at + _ROWS_AT_ONCE] = self.vectors[at : at + _ROWS_AT_ONCE].astype(np.float32) @ question
        return scores / self._lengths


def _unpacked(vectors: bytes, dimensions: int) -> Vectors:
    import numpy as np

    return np.frombuffer(vectors, np.int8).reshape(-1, dimensions).astype(np.float32)
