"""The shipped download, but for its patience, and one that dies. A child imports the module of its handler: this one,
and not all that the tests import."""

from __future__ import annotations

import os
import signal

from msgspec.structs import replace

from job_handlers.fetch import download
from job_handlers.fetch.errors import Timeouts
from job_handlers.fetch.partial_file import PartialFile
from worker_service.handlers import Context, Done

SOON = Timeouts(
    chunk_bytes=64 << 10,
    chunk_seconds=0.5,
    idle_seconds=0.35,
    connect_seconds=2.0,
    stable_seconds=0.0,
)
"""The same patience, with chunks of 64 KiB and half a second each."""
QUICK = replace(SOON, first_wait_seconds=0.01)


def run_quickly(context: Context[download.DownloadPayload]) -> Done:
    return download.run(context, QUICK)


quick = replace(download.download, run=run_quickly)


def run_surely(context: Context[download.DownloadPayload]) -> Done:
    return download.run(context, replace(QUICK, settled_seconds=-1.0))


sure = replace(download.download, run=run_surely)
"""The same, to which each file has been left alone for long enough."""


def run_until(context: Context[download.DownloadPayload]) -> Done:
    """Its own process is killed once there are as many bytes as the payload's name says."""
    most = int(context.payload.name)
    append = PartialFile.append

    def append_and_die(part: PartialFile, block: bytes) -> int:
        count = append(part, block[:5000])
        if part.length >= most:
            os.kill(os.getpid(), signal.SIGKILL)
        return count + (append_and_die(part, block[5000:]) if len(block) > 5000 else 0)

    setattr(PartialFile, "append", append_and_die)  # noqa: B010 - typed otherwise
    return download.run(context, replace(SOON, chunk_seconds=30.0, idle_seconds=10.0))


mortal = replace(download.download, run=run_until)
