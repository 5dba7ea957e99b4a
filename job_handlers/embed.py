"""Embed passages of text: compute the vectors by which a search finds a similar meaning.

A job asks for documents whose passages lack vectors, so a repeated job computes nothing twice.
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
_AGAIN_SECONDS = 60.0
_PAGES_AT_ONCE = 20
_PASSAGES_AT_ONCE = 256


class EmbedPayload(Struct, frozen=True):
    """Empty: a payload, which a user may write, must not choose who gets the texts and the key."""


def run(context: Context[EmbedPayload]) -> Done:
    server, model, tokens, overlap = (os.environ.get(name, "") for name in ENVIRONMENT)
    if server in ("", "off"):
        return Done({"passages": 0})
    if server == BUNDLED and (why := why_missing()):
        raise MissingDependency(why, "pip install 'pagemill[semantic]'")
    key = credential_file(KEY)
    limits = PassageLimits(int(tokens), int(overlap))
    embedder = Embedder(server, model, key.read_text("utf-8").strip() if key.is_file() else "", limits.edition)
    return Done({"passages": embed_passages(context, embedder, limits), "model": embedder.name})


def embed_passages(context: Context[EmbedPayload], embedder: Embedder, limits: PassageLimits) -> int:
    """Embed the documents that lack vectors of this model. Return the number of their passages."""
    passages = 0
    while documents := context.ask(DocumentsToEmbed(embedder.name)).documents:
        for document_id, generation in documents:
            found = _passages(context, document_id, generation, limits)
            for embeddings in _embed(context, embedder, (document_id, generation), found):
                context.checkpoint(None, embeddings=embeddings)
                passages += len(embeddings.passages)
                context.progress(message=counted(passages, "passage"), done=passages, unit="passages")
    return passages


def _passages(
    context: Context[EmbedPayload], document_id: int, generation: int, limits: PassageLimits
) -> Iterator[Passage]:
    pages = _pages(context, document_id, generation)
    while some := list(islice(pages, STRUCTURED_PAGES_MAX)):
        for one in passages_of(document_id, generation, structure_of(some), limits):
            if one.text.split():
                yield one


def _pages(context: Context[EmbedPayload], document_id: int, generation: int) -> Iterator[PageResult]:
    last, size = 0, _PAGES_AT_ONCE
    while True:
        try:
            pages = context.ask(PagesToEmbed(document_id, generation, last, size)).pages
        except Permanent as error:
            if error.code != "TOO_LARGE" or size == 1:
                raise
            size = 1
            continue
        if not pages:
            return
        yield from pages
        last = pages[-1].number


def _embed(
    context: Context[EmbedPayload], embedder: Embedder, place: tuple[int, int], passages: Iterator[Passage]
) -> Iterator[Embeddings]:
    """Yield the passages of a document with the vectors that are not stored yet, the total with the last of them."""
    total, is_last = 0, False
    while not is_last:
        some = list(islice(passages, _PASSAGES_AT_ONCE))
        is_last = len(some) < _PASSAGES_AT_ONCE
        known = context.ask(KnownVectors(embedder.name, [one.digest for one in some])).digests
        texts = {one.digest: _heading(one) + one.text for one in some if one.digest not in known}
        try:
            vectors = dict(zip(texts, embedder.embed_passages([*texts.values()]), strict=True))
        except EmbeddingUnavailable as error:
            raise Snooze(error.detail, error.remedy, after=_AGAIN_SECONDS) from error
        rows = [
            PassageVectors(number, _words_before(one), one.digest, vectors.get(one.digest, b""))
            for number, one in enumerate(some, total + 1)
        ]
        total += len(rows)
        yield Embeddings(embedder.name, *place, rows, total if is_last else None)


def _heading(passage: Passage) -> str:
    return "".join(f"{one}\n" for one in passage.headings)


def _words_before(passage: Passage) -> list[tuple[int, int]]:
    """Return each page with the number of words before it, in the text that is embedded."""
    before = count_words(_heading(passage))
    return [
        (page, before + count_words(passage.text[:begin]) if begin else 0)
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
