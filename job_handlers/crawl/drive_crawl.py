"""Find the files below a folder and enqueue a `download` for each that is new or has changed.

    {"folder": "https://drive.google.com/drive/folders/…", "wanted": {"name": "*report*.pdf"}, "credential": "drive"}

What is wanted is told in `crawl_wanted`, how the tree is walked in `crawl`, what is remembered in `crawl_memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from job_handlers.crawl.memory import Forgetful, Kept
from job_handlers.crawl.walk import Crawl
from job_handlers.crawl.wanted import SHARED_WITH_ME, Payload, check, crawl_key, download_of
from job_handlers.download.troubles import Patience
from job_handlers.sources.drive import credentials as drive_credentials
from job_handlers.sources.local import source as local
from job_handlers.sources.local.tree import LocalTree
from job_handlers.sources.references import Reference, read_reference
from job_handlers.sources.tree import Tree
from worker_service.handlers import Context, Done, Handler, Limits, Permanent, Retryable, Snooze

_AGAIN_SECONDS = 60.0
_PATIENCE = Patience()


def run(context: Context[Payload], patience: Patience = _PATIENCE) -> Done:
    reference = _reference(context.payload)
    if reference.platform != context.platform:
        raise Permanent(
            "PAYLOAD_INVALID",
            f"the folder is of the platform {reference.platform}, and the job of {context.platform}: "
            f"enqueue it with --platform {reference.platform}",
        )
    if reference.platform == "local":
        return crawl(context, LocalTree(Path(reference.key)))
    # Google's client takes a second to import, and a directory needs none of it.
    from job_handlers.sources.drive.client import Drive
    from job_handlers.sources.drive.tree import DriveTree

    service = Drive(context.payload.credential, is_stopping=context.cancelled, patience=patience)
    try:
        return crawl(context, DriveTree(service, reference, is_stopping=context.cancelled, patience=patience))
    finally:
        service.close()


def crawl(context: Context[Payload], tree: Tree) -> Done:
    """One run over `tree`."""
    payload = context.payload
    check(payload)
    key = crawl_key(payload, tree, context.owner)
    memory = Forgetful(context, key) if payload.dry_run else Kept(context, key)
    one = Crawl(
        tree,
        memory,
        payload.wanted,
        lambda entry, is_known: download_of(entry, context, tree, is_known=is_known),
        state=context.state,
        tell=lambda words: context.progress(0, words),
        log=context.log,
    )
    watches = payload.watch_seconds is not None and not payload.dry_run
    try:
        one.go(must_walk=payload.reconcile, forgets=watches)
    except Retryable as trouble:
        if not one.has_kept or payload.dry_run:
            raise
        # It got further, so it costs no attempt.
        raise Snooze(trouble.message, after=trouble.after or _AGAIN_SECONDS) from trouble
    if watches:
        raise Snooze(one.summary(), after=payload.watch_seconds)
    if isinstance(memory, Forgetful):
        return Done({"dry_run": True, **one.counts(), "would_enqueue": memory.would_enqueue})
    return Done({"crawl": key, **one.counts()})


def _reference(payload: Payload) -> Reference:
    if payload.folder == SHARED_WITH_ME:
        return Reference("gdrive", SHARED_WITH_ME)
    found = read_reference(payload.folder)
    if found.platform == "https":
        raise Permanent("FOLDER_UNKNOWN", "a folder is an id or URL of Google Drive, or the full path of a directory")
    return found


def _reads(payload: Payload) -> Sequence[Path]:
    reference = _reference(payload)
    if reference.platform != "local":
        return drive_credentials.files_of(payload.credential)
    return local.readable(reference.key)


drive_crawl = Handler(
    "drive_crawl",
    run,
    Payload,
    job_class="io",
    limits=Limits(cpu_seconds=None, wall_seconds=24 * 3600, network=True),
    environment=[*drive_credentials.ENVIRONMENT, local.ROOTS.variable],
    credentials=["drive*"],
    reads_payload=_reads,
)
