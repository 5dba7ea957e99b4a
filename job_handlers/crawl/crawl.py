"""Find the files below a folder and enqueue a `download` for each one that is new or has changed.

A payload:

    {"folder": "https://drive.google.com/drive/folders/…", "wanted": {"name": "*report*.pdf"}, "credential": "drive"}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from job_handlers.crawl.options import CrawlPayload, check_payload, crawl_key
from job_handlers.crawl.state import CrawlRecord, DryRunRecord
from job_handlers.crawl.walk import CrawlRun
from job_handlers.fetch.error_rules import Timeouts
from job_handlers.fetch.sources import credentials, environment, import_sources_before_fork, read_folder
from job_handlers.fetch.sources.tree import Tree
from worker_service.handlers import Context, Done, Handler, Limits, Permanent, Retryable, Snooze

_RETRY_SECONDS = 60.0


def run(context: Context[CrawlPayload]) -> Done:
    source, reference = read_folder(context.payload.folder)
    if reference.platform != context.platform:
        raise Permanent(
            "PAYLOAD_INVALID",
            f"the folder is of the platform {reference.platform}, and the job of {context.platform}",
            f"enqueue it with --platform {reference.platform}",
        )
    with source.open_tree(reference, context.payload.credential, Timeouts(), context.cancelled) as tree:
        return crawl_tree(context, tree)


def crawl_tree(context: Context[CrawlPayload], tree: Tree) -> Done:
    payload = context.payload
    check_payload(payload)
    key = crawl_key(payload, tree, context.owner)
    record = DryRunRecord(context, key) if payload.dry_run else CrawlRecord(context, key)
    crawl_run = CrawlRun(context, tree, record)
    try:
        crawl_run.run(must_walk=payload.reconcile)
    except Retryable as error:
        if not crawl_run.has_saved or payload.dry_run:
            raise
        # The attempt made progress, so it costs no retry.
        raise Snooze(error.detail, error.remedy, after=error.after or _RETRY_SECONDS) from error
    if isinstance(record, DryRunRecord):
        result = {"dry_run": True, **crawl_run.counts()}
        return Done({**result, "bytes": record.bytes, "would_enqueue": record.would_enqueue})
    return Done({"crawl": key, **crawl_run.counts()})


def _files_to_read(payload: CrawlPayload) -> Sequence[Path]:
    source, reference = read_folder(payload.folder)
    return source.files_to_read(reference, payload.credential)


import_sources_before_fork()
crawl = Handler(
    "crawl",
    run,
    CrawlPayload,
    job_class="io",
    limits=Limits(cpu_seconds=None, wall_seconds=24 * 3600, network=True),
    environment=environment(),
    credentials=credentials(),
    reads_payload=_files_to_read,
)
# `drive_crawl` is the earlier name of the job type, which rows may still have.
drive_crawl = (crawl, replace(crawl, job_type="drive_crawl"))
