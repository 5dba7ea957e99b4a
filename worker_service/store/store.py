"""The store: parts over one database, loaded when first used.

Each public method is one transaction; writes with a lost lease raise `LeaseLost` or return it (P2).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from worker_service.store.database import Database

if TYPE_CHECKING:
    from worker_service.jobs.documents import TakeoverTimeouts
    from worker_service.store.attempts import Attempts
    from worker_service.store.batches import Batches
    from worker_service.store.change_watch import FileWatch
    from worker_service.store.claim_order import Scheduler
    from worker_service.store.completions import Completions
    from worker_service.store.embeddings import PageEmbeddings
    from worker_service.store.gates import Gates
    from worker_service.store.history import History
    from worker_service.store.idempotency import IdempotencyKeys
    from worker_service.store.intake import Intake
    from worker_service.store.integrity import Integrity
    from worker_service.store.job_control import Steering
    from worker_service.store.leases import Leases
    from worker_service.store.library import Library
    from worker_service.store.links import DocumentLinks
    from worker_service.store.notices import Notices
    from worker_service.store.overview import OverviewQueries
    from worker_service.store.pruning import Pruning
    from worker_service.store.reading import Reading
    from worker_service.store.removal import Removal
    from worker_service.store.schedules import Schedules
    from worker_service.store.search import PageSearch
    from worker_service.store.tags import Tags
    from worker_service.store.tokens import Tokens
    from worker_service.store.undo import Undo
    from worker_service.store.workers import Workers


class Store:
    def __init__(self, database: Database, patience: TakeoverTimeouts | None = None) -> None:
        self.database = database
        self._patience = patience

    @cached_property
    def intake(self) -> Intake:
        from worker_service.jobs.documents import TakeoverTimeouts
        from worker_service.store.intake import Intake

        return Intake(self.database, self._patience or TakeoverTimeouts())

    @cached_property
    def workers(self) -> Workers:
        from worker_service.store.workers import Workers

        return Workers(self.database, self._scheduler)

    @cached_property
    def leases(self) -> Leases:
        from worker_service.store.leases import Leases

        return Leases(self.database, self._scheduler, self._completions)

    @cached_property
    def attempts(self) -> Attempts:
        from worker_service.store.attempts import Attempts

        return Attempts(self.database, self._completions)

    @cached_property
    def reading(self) -> Reading:
        from worker_service.store.reading import Reading

        return Reading(self.database)

    @cached_property
    def history(self) -> History:
        from worker_service.store.history import History

        return History(self.database)

    @cached_property
    def overview(self) -> OverviewQueries:
        from worker_service.store.overview import OverviewQueries

        return OverviewQueries(self.database)

    @cached_property
    def gates(self) -> Gates:
        from worker_service.store.gates import Gates

        return Gates(self.database, self.reading)

    @cached_property
    def steering(self) -> Steering:
        from worker_service.store.job_control import Steering

        return Steering(self.database, self.reading)

    @cached_property
    def batches(self) -> Batches:
        from worker_service.store.batches import Batches

        return Batches(self.database, self.intake, self.steering)

    @cached_property
    def schedules(self) -> Schedules:
        from worker_service.store.schedules import Schedules

        return Schedules(self.database, self.intake, self.batches)

    @cached_property
    def library(self) -> Library:
        from worker_service.store.library import Library

        return Library(self.database)

    @cached_property
    def tags(self) -> Tags:
        from worker_service.store.tags import Tags

        return Tags(self.database)

    @cached_property
    def search(self) -> PageSearch:
        from worker_service.store.search import PageSearch

        return PageSearch(self.database)

    @cached_property
    def embeddings(self) -> PageEmbeddings:
        from worker_service.store.embeddings import PageEmbeddings

        return PageEmbeddings(self.database)

    @cached_property
    def actions(self) -> Undo:
        from worker_service.store.undo import Undo

        return Undo(self.database, self.steering)

    @cached_property
    def removal(self) -> Removal:
        from worker_service.store.removal import Removal

        return Removal(self.database)

    @cached_property
    def links(self) -> DocumentLinks:
        from worker_service.store.links import DocumentLinks

        return DocumentLinks(self.database)

    @cached_property
    def pruning(self) -> Pruning:
        from worker_service.store.pruning import Pruning

        return Pruning(self.database, self.reading)

    @cached_property
    def integrity(self) -> Integrity:
        from worker_service.store.integrity import Integrity

        return Integrity(self.database)

    @cached_property
    def notices(self) -> Notices:
        from worker_service.store.notices import Notices

        return Notices(self.database, self.intake)

    @cached_property
    def tokens(self) -> Tokens:
        from worker_service.store.tokens import Tokens

        return Tokens(self.database)

    @cached_property
    def idempotency_keys(self) -> IdempotencyKeys:
        from worker_service.store.idempotency import IdempotencyKeys

        return IdempotencyKeys(self.database)

    @cached_property
    def _scheduler(self) -> Scheduler:
        from worker_service.store.claim_order import Scheduler

        return Scheduler(self.database)

    @cached_property
    def _completions(self) -> Completions:
        from worker_service.store.completions import Completions

        return Completions(self.database, self.intake)

    def watch(self) -> FileWatch:
        from worker_service.store.change_watch import FileWatch

        pauses = self.database.writing.pauses
        begins_turn = (lambda: None) if pauses is None else pauses.turn
        return FileWatch(self.database.path, self.database.change_counter, begins_turn=begins_turn)

    def relaxed_durability(self) -> Store:
        return Store(self.database.relaxed_durability(), self._patience)

    def close(self) -> None:
        self.database.close()
