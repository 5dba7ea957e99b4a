"""Batches that a visitor may see."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from worker_service.base.errors import BatchNotFound
from worker_service.jobs.batches import Batch, BatchState
from worker_service.services import batches
from worker_service.services.batches import BatchPage
from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.parameters import OwnersParameter, PageQuery, about


class BatchesQuery(PageQuery, frozen=True, kw_only=True):
    owner: OwnersParameter = ()
    status: Annotated[tuple[str, ...], about(f"{', '.join(BatchState)}. Separate several by commas.")] = ()


def list_batches(session: Session, visitor: Visitor, query: BatchesQuery) -> BatchPage:
    owners = query.owner
    if visitor.owner is not None:
        if owners and visitor.owner not in owners:
            return BatchPage((), None)
        owners = (visitor.owner,)
    return batches.list_batches(session, owners=owners, states=query.status, limit=query.limit, before_id=query.before)


def find_visible_batch(session: Session, visitor: Visitor, batch_id: int | None) -> Batch | None:
    if batch_id is None:
        return None
    with suppress(BatchNotFound):
        return visible_batch(session, visitor, batch_id)
    return None


def visible_batch(session: Session, visitor: Visitor, batch_id: int) -> Batch:
    batch = batches.get_batch(session, batch_id)
    if not visitor.may_see(batch.owner):
        raise BatchNotFound(f"there is no batch {batch_id}", "`pagemill batch ls` shows those that are there")
    return batch
