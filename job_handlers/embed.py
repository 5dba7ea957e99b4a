"""Compute the vectors of pages for the search by meaning. The daemon inserts these jobs.

Each turn asks for pages of current generations without vectors, so a repeated job computes nothing twice.
"""

from __future__ import annotations

import os

from msgspec import Struct

from job_handlers.settings import credential_file
from worker_service.base.embedding import BUNDLED, Embedder, EmbeddingUnavailable, why_missing
from worker_service.base.humanize import counted
from worker_service.handlers import (
    EMBED,
    Context,
    Done,
    Embeddings,
    Handler,
    Limits,
    MissingDependency,
    PagesToEmbed,
    PageVectors,
    Snooze,
)

KEY = "embeddings-key"
ENVIRONMENT = ("WORKER_EMBEDDINGS", "WORKER_EMBEDDINGS_MODEL")
_AGAIN_SECONDS = 60.0


class EmbedPayload(Struct, frozen=True):
    """Empty: a payload, which a user may write, must not choose who gets the texts and the key."""


def run(context: Context[EmbedPayload]) -> Done:
    server, model = (os.environ.get(name, "") for name in ENVIRONMENT)
    if server in ("", "off"):
        return Done({"pages": 0})
    if server == BUNDLED and (why := why_missing()):
        raise MissingDependency(why, "pip install 'pagemill[semantic]'")
    key = credential_file(KEY)
    embedder = Embedder(server, model, key.read_text("utf-8").strip() if key.is_file() else "")
    pages = 0
    while (found := context.ask(PagesToEmbed(embedder.name))).documents:
        try:
            vectors = embedder.embed_pages([page.text for page in found.pages])
        except EmbeddingUnavailable as error:
            raise Snooze(error.detail, error.remedy, after=_AGAIN_SECONDS) from error
        own = [PageVectors(page.digest, each) for page, each in zip(found.pages, vectors, strict=True)]
        context.checkpoint(None, embeddings=Embeddings(embedder.name, found.documents, own))
        pages += len(own)
        context.progress(message=counted(pages, "page"), done=pages, unit="pages")
    return Done({"pages": pages, "model": embedder.name})


embed = Handler(
    EMBED,
    run,
    EmbedPayload,
    job_class="cpu",
    limits=Limits(memory_bytes=None, cpu_seconds=None, wall_seconds=24 * 3600, network=True),
    credentials=[KEY],
    environment=ENVIRONMENT,
)
