"""Vectors of pages, by which searches find a similar meaning."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

EMBED = "embed"
"""The job type that computes vectors. Jobs of it belong to no owner."""


class PageVectors(Struct, frozen=True):
    digest: str
    vectors: bytes


class Embeddings(Struct, frozen=True):
    model: str
    documents: Sequence[tuple[int, int]]
    pages: Sequence[PageVectors]
