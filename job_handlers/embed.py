"""Embed passages of text: compute the vectors by which a search finds a similar meaning.

A job embeds the documents whose passages lack vectors of the model, so a repeated job computes nothing twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from job_handlers.settings import credential_file
from worker_service.base.embedding import BUNDLED, Embedder, EmbeddingUnavailable, count_words, why_missing
from worker_service.base.humanize import counted
from worker_service.handlers import Context, Done, Handler, Limits, MissingDependency, PageResult, Permanent, Snooze
from worker_service.handlers.embedding import (
    EMBED,
    STRUCTURED_PAGES_MAX,
    DocumentsToEmbed,
    Embeddings,
    KnownVectors,
    PagesToEmbed,
    Passage,
    PassageLimits,
    PassageVectors,
    passages_of,
    structure_of,
)

KEY = "embeddings-key"
ENVIRONMENT = (
    "WORKER_EMBEDDINGS", "WORKER_EMBEDDINGS_MODEL", "WORKER_PASSAGE_TOKENS", "WORKER_PASSAGE_OVERLAP"
)  # fmt: skip
_RETRY_SECONDS = 60.0
_PAGES_PER_QUESTION = 20
_PASSAGES_PER_CALL = 256


class EmbedPayload(Struct, frozen=True):
    """Empty: a payload, which a user may write, must not choose who gets the texts and the key."""


def run(context: Context[EmbedPayload]) -> Done:
    bundled_or_url, model, tokens, overlap = (os.environ.get(name, "") for name in ENVIRONMENT)
    if bundled_or_url in ("", "off"):
        return Done({"passages": 0})
    if bundled_or_url == BUNDLED and (reason := why_missing()):
        raise MissingDependency(reason, "pip install 'pagemill[semantic]'")
    key_file = credential_file(KEY)
    key = key_file.read_text("utf-8").strip() if key_file.is_file() else ""
    limits = PassageLimits(int(tokens), int(overlap))
    embedder = Embedder(bundled_or_url, model, key, limits.edition)
    return Done({"passages": embed_passages(context, embedder, limits), "model": embedder.name})


def embed_passages(context: Context[EmbedPayload], embedder: Embedder, limits: PassageLimits) -> int:
    """Embed the documents that lack vectors of this model. Return the number of their passages."""
    embedded_count = 0
    while documents := context.ask(DocumentsToEmbed(embedder.name)).documents:
        for document_id, generation in documents:
            passages = _passages_of_document(context, document_id, generation, limits)
            for embeddings in _embed_document(context, embedder, (document_id, generation), passages):
                context.checkpoint(None, embeddings=embeddings)
                embedded_count += len(embeddings.passages)
                context.progress(message=counted(embedded_count, "passage"), done=embedded_count, unit="passages")
    return embedded_count


def _passages_of_document(
    context: Context[EmbedPayload], document_id: int, generation: int, limits: PassageLimits
) -> Iterator[Passage]:
    pages = _pages_of_document(context, document_id, generation)
    while section := list(islice(pages, STRUCTURED_PAGES_MAX)):
        for passage in passages_of(document_id, generation, structure_of(section), limits):
            if passage.text.split():
                yield passage


def _pages_of_document(context: Context[EmbedPayload], document_id: int, generation: int) -> Iterator[PageResult]:
    last_number, page_count = 0, _PAGES_PER_QUESTION
    while True:
        try:
            pages = context.ask(PagesToEmbed(document_id, generation, last_number, page_count)).pages
        except Permanent as error:
            if error.code != "TOO_LARGE" or page_count == 1:
                raise
            page_count = 1  # from here on: the other pages may be as large
            continue
        if not pages:
            return
        yield from pages
        last_number = pages[-1].number


def _embed_document(
    context: Context[EmbedPayload],
    embedder: Embedder,
    document_and_generation: tuple[int, int],
    passages: Iterator[Passage],
) -> Iterator[Embeddings]:
    """Yield parts of the passages, with the vectors that are not stored yet. The last part has the total."""
    total, is_last = 0, False
    while not is_last:
        some_passages = list(islice(passages, _PASSAGES_PER_CALL))
        is_last = len(some_passages) < _PASSAGES_PER_CALL
        digests = [passage.digest for passage in some_passages]
        stored_digests = context.ask(KnownVectors(embedder.name, digests)).digests
        text_by_digest = {
            passage.digest: _heading_lines(passage) + passage.text
            for passage in some_passages
            if passage.digest not in stored_digests
        }
        try:
            vectors = embedder.embed_passages([*text_by_digest.values()])
        except EmbeddingUnavailable as error:
            raise Snooze(error.detail, error.remedy, after=_RETRY_SECONDS) from error
        vector_by_digest = dict(zip(text_by_digest, vectors, strict=True))
        rows = [
            PassageVectors(number, _words_before_pages(passage), digest, vector_by_digest.get(digest, b""))
            for number, (passage, digest) in enumerate(zip(some_passages, digests, strict=True), total + 1)
        ]
        total += len(rows)
        yield Embeddings(embedder.name, *document_and_generation, rows, total if is_last else None)


def _heading_lines(passage: Passage) -> str:
    return "".join(f"{heading}\n" for heading in passage.headings)


def _words_before_pages(passage: Passage) -> list[tuple[int, int]]:
    """Return each page with the number of words before it, in the text that is embedded."""
    heading_words = count_words(_heading_lines(passage))
    return [
        (page, heading_words + count_words(passage.text[:begin]) if begin else 0)
        for page, begin in zip(passage.pages, passage.begins, strict=True)
    ]


embed = Handler(
    EMBED,
    run,
    EmbedPayload,
    job_class="cpu",
    limits=Limits(memory_bytes=None, cpu_seconds=None, wall_seconds=24 * 3600, network=True),
    credentials=[KEY],
    environment=ENVIRONMENT,
)
