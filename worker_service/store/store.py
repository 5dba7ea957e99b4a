"""The store: parts, loaded when first used. Each public method is one transaction; a lost lease writes nothing (P2)."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from worker_service.store.database import Database

if TYPE_CHECKING:
    from worker_service.jobs.documents import TakeoverPatience
    from worker_service.store.attempts import Attempts
    from worker_service.store.batches import Batches
    from worker_service.store.change_watch import FileWatch
    from worker_service.store.claim_order import Scheduler
    from worker_service.store.completions import Completions
    from worker_service.store.embeddings import PassageEmbeddings
    from worker_service.store.history import History
    from worker_service.store.idempotency import IdempotencyKeys
    from worker_service.store.intake import Intake
    from worker_service.store.integrity import Integrity
    from worker_service.store.job_control import JobControl
    from worker_service.store.job_queries import JobQueries
    from worker_service.store.leases import Leases
    from worker_service.store.library import Library
    from worker_service.store.links import DocumentLinks
    from worker_service.store.notices import Notices
    from worker_service.store.overview import OverviewQueries
    from worker_service.store.pruning import Pruning
    from worker_service.store.removal import Removal
    from worker_service.store.schedules import Schedules
    from worker_service.store.search import PageSearch
    from worker_service.store.tags import Tags
    from worker_service.store.tokens import Tokens
    from worker_service.store.waiting_reasons import Gates
    from worker_service.store.workers import Workers


def _part(name: str) -> cached_property[Any]:
    # Imported when first used, so that `pagemill ls` starts quickly.
    module, _, class_name = name.partition(".")
    return cached_property(lambda store: getattr(import_module(f"worker_service.store.{module}"), class_name)(store))


class Store:
    attempts: cached_property[Attempts] = _part("attempts.Attempts")
    batches: cached_property[Batches] = _part("batches.Batches")
    completions: cached_property[Completions] = _part("completions.Completions")
    embeddings: cached_property[PassageEmbeddings] = _part("embeddings.PassageEmbeddings")
    gates: cached_property[Gates] = _part("waiting_reasons.Gates")
    history: cached_property[History] = _part("history.History")
    idempotency_keys: cached_property[IdempotencyKeys] = _part("idempotency.IdempotencyKeys")
    intake: cached_property[Intake] = _part("intake.Intake")
    integrity: cached_property[Integrity] = _part("integrity.Integrity")
    leases: cached_property[Leases] = _part("leases.Leases")
    library: cached_property[Library] = _part("library.Library")
    links: cached_property[DocumentLinks] = _part("links.DocumentLinks")
    notices: cached_property[Notices] = _part("notices.Notices")
    overview: cached_property[OverviewQueries] = _part("overview.OverviewQueries")
    pruning: cached_property[Pruning] = _part("pruning.Pruning")
    job_queries: cached_property[JobQueries] = _part("job_queries.JobQueries")
    removal: cached_property[Removal] = _part("removal.Removal")
    scheduler: cached_property[Scheduler] = _part("claim_order.Scheduler")
    schedules: cached_property[Schedules] = _part("schedules.Schedules")
    search: cached_property[PageSearch] = _part("search.PageSearch")
    job_control: cached_property[JobControl] = _part("job_control.JobControl")
    tags: cached_property[Tags] = _part("tags.Tags")
    tokens: cached_property[Tokens] = _part("tokens.Tokens")
    workers: cached_property[Workers] = _part("workers.Workers")

    def __init__(self, database: Database, patience: TakeoverPatience | None = None) -> None:
        self.database = database
        self.patience = patience

    def watch(self) -> FileWatch:
        from worker_service.store.change_watch import FileWatch

        # Writes of different turns of the main loop are no burst.
        pauses = self.database.write_options.pauses
        on_turn = (lambda: None) if pauses is None else pauses.end_burst
        return FileWatch(self.database.path, self.database.change_counter, on_turn=on_turn)

    def relaxed_durability(self) -> Store:
        return Store(self.database.relaxed_durability(), self.patience)

    def close(self) -> None:
        self.database.close()
