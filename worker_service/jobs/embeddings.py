"""Vectors of passages, by which searches find a similar meaning."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

EMBED = "embed"
"""The job type that computes vectors. Its jobs belong to no owner."""


class PassageVectors(Struct, frozen=True):
    number: int
    pages: Sequence[tuple[int, int]]
    """Pages on which the passage is, each with the number of words before it."""
    digest: str
    vectors: bytes = b""
    """Empty: the vectors are stored already."""


class Embeddings(Struct, frozen=True):
    model: str
    document_id: int
    generation: int
    passages: Sequence[PassageVectors]
    total: int | None = None
    """Number of all passages of the document. Set with the last passages."""
