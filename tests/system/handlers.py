"""Handlers that the system tests run in a real daemon."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from worker_service.handlers import (
    Context,
    DocumentFacts,
    DocumentPages,
    Done,
    File,
    Handler,
    KnownPages,
    MissingDependency,
    NewJob,
    PageResult,
    Permanent,
    Retryable,
    Snooze,
)

Payload = dict[str, Any]


def noop(context: Context[Payload]) -> Done:
    return Done({"seen": context.payload.get("n")})


def talk(context: Context[Payload]) -> Done:
    context.progress(40, "two of five")
    context.log("a line")
    return Done()


def flood(context: Context[Payload]) -> Done:
    lines, number = context.payload.get("lines"), 0
    while lines is None or number < lines:
        number += 1
        print(f"line {number}", "y" * context.payload.get("long", 0))
    return Done()


def lacks(context: Context[Payload]) -> Done:
    if not Path(context.payload["needs"]).exists():
        raise MissingDependency("there is no engine: touch it", after=0.3)
    return Done()


def chaos(context: Context[Payload]) -> Done:
    """Publish a file and ask for a follow-up, after a moment in which kills find it."""
    context.progress(10, "begun")
    time.sleep(float(context.payload.get("seconds", 0)))
    context.log("half")
    (context.staging / "page.txt").write_text(context.idempotency_key)
    return Done({"pages": 1}, files=["page.txt"], follow_ups=[NewJob("fetch", payload="{}")])


def read(context: Context[Payload]) -> Done:
    """Read the pages that are not known yet; wait before `stop_before`."""
    numbers = range(1, context.payload["pages"] + 1)
    known = set(context.ask(KnownPages([f"d{number}" for number in numbers])).digests)
    begun_with = context.state or []
    for number in numbers:
        while number == context.payload.get("stop_before") and not known:
            time.sleep(0.01)
        if f"d{number}" not in known:
            context.save_page(PageResult(number, f"d{number}", f"page {number}", "layer"))
        context.checkpoint([*range(1, number + 1)])
    pages = context.ask(DocumentPages(1, len(numbers))).pages
    (context.staging / "all.txt").write_text(" ".join(page.text or "" for page in pages))
    result = {"known": len(known), "begun_with": begun_with, "inputs": sorted(context.inputs)}
    return Done(result, [File("all.txt", "text")], document=DocumentFacts(pages=len(numbers)), publishes=True)


def sleep(context: Context[Payload]) -> Done:
    context.log(f"pid {os.getpid()}")
    if context.payload.get("grandchild"):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        context.log(f"pid {child.pid}")
    end = time.monotonic() + float(context.payload.get("seconds", 600))
    while time.monotonic() < end:
        time.sleep(0.01)
    return Done()


def fail(context: Context[Payload]) -> Done:
    how = context.payload.get("how")
    if how == "permanent":
        raise Permanent("NO_SUCH_FILE", "the file is not there")
    if how == "retryable":
        raise Retryable("the server is busy", after=0.01)
    if how == "snooze":
        raise Snooze(after=3600)
    if how == "crash":
        os.abort()
    raise ValueError("a bug")


def secret(context: Context[Payload]) -> Done:
    file = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere")) / "password"
    if not file.exists():
        raise Permanent("SECRET_ABSENT", "there is no credential password")
    return Done({"said": file.read_text()})


handlers = [
    Handler("secret", secret, dict, credentials=["password"], runs_on_cluster=True),
    Handler("noop", noop, dict, runs_on_cluster=True),
    Handler("talk", talk, dict, runs_on_cluster=True),
    Handler("flood", flood, dict),
    Handler("lacks", lacks, dict, sandbox="off"),
    Handler("chaos", chaos, dict, runs_on_cluster=True),
    Handler("read", read, dict),
    Handler("sleep", sleep, dict, environment=("PATH",), runs_on_cluster=True),
    Handler("fetch", noop, dict, job_class="io"),
    Handler("fail", fail, dict, runs_on_cluster=True),
    Handler("kept", talk, dict, reuse=20),
    Handler("kept_sleep", sleep, dict, reuse=20),
]

PLACE = Path(__file__)
