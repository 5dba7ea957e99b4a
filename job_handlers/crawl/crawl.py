"""Find the files below a folder and enqueue a `download` for each that is new or has changed.

    {"folder": "https://drive.google.com/drive/folders/…", "wanted": {"name": "*report*.pdf"}, "credential": "drive"}

Elsewhere: what is wanted, in `wanted`; how the tree is walked, in `walk`; what is remembered, in `memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from job_handlers.crawl.options import CrawlPayload, check, crawl_key
from job_handlers.crawl.state import Forgetful, Memory
from job_handlers.crawl.walk import Crawl
from job_handlers.fetch.errors import Timeouts
from job_handlers.fetch.sources import credentials, environment, prepare, read_folder
from job_handlers.fetch.sources.tree import Tree
from worker_service.handlers import WATCHING, Context, Done, Handler, Limits, Permanent, Retryable, Snooze

_AGAIN_SECONDS = 60.0
_PATIENCE = Timeouts()


def run(context: Context[CrawlPayload], timeouts: Timeouts = _PATIENCE) -> Done:
    source, reference = read_folder(context.payload.folder)
    if reference.platform != context.platform:
        raise Permanent(
            "PAYLOAD_INVALID",
            f"the folder is of the platform {reference.platform}, and the job of {context.platform}",
            f"enqueue it with --platform {reference.platform}",
        )
    with source.open_tree(reference, context.payload.credential, timeouts, context.cancelled) as tree:
        return crawl(context, tree)


def crawl(context: Context[CrawlPayload], tree: Tree) -> Done:
    """One run over `tree`."""
    payload = context.payload
    check(payload)
    key = crawl_key(payload, tree, context.owner)
    memory = Forgetful(context, key) if payload.dry_run else Memory(context, key)
    one = Crawl(context, tree, memory)
    watches = payload.watch_seconds is not None and not payload.dry_run
    try:
        one.go(must_walk=payload.reconcile, forgets=watches)
    except Retryable as trouble:
        if not one.has_kept or payload.dry_run:
            raise
        # It got further, so it costs no attempt.
        raise Snooze(trouble.detail, trouble.remedy, after=trouble.after or _AGAIN_SECONDS) from trouble
    if watches:
        raise Snooze(one.summary(), after=payload.watch_seconds, code=WATCHING)
    if isinstance(memory, Forgetful):
        return Done({"dry_run": True, **one.counts(), "bytes": memory.bytes, "would_enqueue": memory.would_enqueue})
    return Done({"crawl": key, **one.counts()})


def _reads(payload: CrawlPayload) -> Sequence[Path]:
    source, reference = read_folder(payload.folder)
    return source.reads(reference, payload.credential)


prepare()
drive_crawl = Handler(
    "drive_crawl",
    run,
    CrawlPayload,
    job_class="io",
    limits=Limits(cpu_seconds=None, wall_seconds=24 * 3600, network=True),
    environment=environment(),
    credentials=credentials(),
    reads_payload=_reads,
)
