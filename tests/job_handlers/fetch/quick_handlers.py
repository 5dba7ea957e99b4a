"""The shipped download with short timeouts. A child process imports this module instead of the whole test."""

from __future__ import annotations

from msgspec.structs import replace

from job_handlers.fetch import download
from job_handlers.fetch.error_rules import Timeouts
from worker_service.handlers import Context, Done

SOON = Timeouts(
    chunk_bytes=64 << 10,
    chunk_seconds=0.5,
    idle_seconds=0.35,
    connect_seconds=2.0,
    stable_seconds=0.0,
)
QUICK = replace(SOON, first_wait_seconds=0.01)


def run_quickly(context: Context[download.DownloadPayload]) -> Done:
    return download.run(context, QUICK)


quick = replace(download.download, run=run_quickly)
