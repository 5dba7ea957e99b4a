"""Change jobs: plan a change, have it confirmed, and apply it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import add_duration, parse_length
from worker_service.base.errors import BadInput, NodeNotFound, Refused
from worker_service.base.humanize import counted
from worker_service.base.suggestions import did_you_mean
from worker_service.jobs.batches import OwnerPolicy
from worker_service.jobs.history import Changed
from worker_service.jobs.job import Job, Pause, Status
from worker_service.jobs.selector import Selector
from worker_service.services.jobs import each_job, id_ranges, require_jobs
from worker_service.services.overview import Overview, title_of_pause
from worker_service.services.parse import read_priority
from worker_service.services.session import Session

LIVE = (Status.PENDING, Status.RUNNING)
ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
PAST_PARTICIPLES = {
    "dismiss": "dismissed",
    "undismiss": "listed again",
    "cancel": "cancelled",
    "retry": "retried",
    "delete": "deleted",
    "priority": "reprioritised",
    "prune": "pruned",
}
SAMPLE_JOBS_MAX = 5
SLOTS_MOST = 256
_PRUNED_AT_ONCE = 1000


class _FailingDocuments(NamedTuple):
    job_statuses: Sequence[Status]
    """A change fails the documents of its jobs in these statuses."""
    error_code: str


_FAILING_DOCUMENTS_BY_VERB = {
    "cancel": _FailingDocuments(LIVE, "CANCELLED"),
    "delete": _FailingDocuments((Status.PENDING,), "JOB_DELETED"),
}


class _Statuses(NamedTuple):
    default: Sequence[Status]
    possible: Sequence[Status]


_STATUSES_BY_VERB = {
    "cancel": _Statuses(LIVE, LIVE),
    # `retry --type ocr_pages` runs completed jobs again only if their status or ids are given.
    "retry": _Statuses((Status.FAILED, Status.CANCELLED), ENDED),
    "delete": _Statuses((Status.PENDING, *ENDED), (Status.PENDING, *ENDED)),
    "priority": _Statuses(LIVE, LIVE),
    "prune": _Statuses(ENDED, ENDED),
}


class Plan(Struct, frozen=True):
    verb: str
    selector: Selector
    jobs: int
    sample: Sequence[Job]
    failing: Sequence[int]
    """Ids of documents that will fail."""
    error_code: str
    priority: int | None = None
    is_partial: bool = False
    """Counting took too long, so there may be more jobs."""

    @property
    def is_single(self) -> bool:
        return len(self.selector.ids) == 1 and self.selector == Selector(ids=self.selector.ids)


class Paused(Struct, frozen=True):
    until: datetime | None
    is_known: bool
    """A job has this type or owner, or all jobs were paused."""


def make_plan(
    session: Session,
    verb: str,
    selector: Selector,
    *,
    priority: int | None = None,
    seconds: float = float("inf"),
) -> Plan:
    """Count the affected jobs and documents for about `seconds`; 0 if the plan is not shown. Changes have no limit."""
    if verb == "priority":
        priority = read_priority(priority)
    selector = _with_statuses(session, verb, selector)
    failing = _FAILING_DOCUMENTS_BY_VERB.get(verb, _FailingDocuments((), ""))
    queries = session.job_queries
    jobs, sample, documents, first_id = 0, list[Job](), set[int](), 1
    for first_id, before_id in id_ranges(session, seconds):
        count = queries.count(selector, from_id=first_id, before_id=before_id)
        if not count:
            continue
        jobs += count
        if len(sample) < SAMPLE_JOBS_MAX:
            sample += queries.list(selector, most=SAMPLE_JOBS_MAX - len(sample), from_id=first_id, before_id=before_id)
        documents.update(
            queries.documents_failing(selector, failing.job_statuses, from_id=first_id, before_id=before_id)
        )
    # The ranges go down to id 1 unless the time is over.
    return Plan(verb, selector, jobs, sample, sorted(documents), failing.error_code, priority, is_partial=first_id > 1)


def apply_plan(session: Session, plan: Plan, *, without_grace: bool = False) -> Changed:
    job_control, actor = session.store.job_control, session.actor
    if plan.verb == "cancel":
        return job_control.cancel(plan.selector, actor=actor, without_grace=without_grace)
    if plan.verb == "retry":
        return apply_owner_policy(session, job_control.retry(plan.selector, actor=actor))
    if plan.verb == "delete":
        return job_control.delete(plan.selector, actor=actor)
    return job_control.priority(plan.selector, read_priority(plan.priority), actor=actor)


def run_now(session: Session, ids: Sequence[int]) -> Sequence[int]:
    """Start pending jobs now. Return the jobs that had a later start time."""
    require_jobs(session, ids)
    for job in each_job(session, ids):
        if job.status is not Status.PENDING:
            remedy = f"to run it again: pagemill retry {job.id}" if job.status.is_ended else ""
            raise Refused(f"job {job.id} is {job.status}: only a pending job can be started now", remedy)
    return session.store.job_control.bring_forward(ids)


def prune_jobs(session: Session, plan: Plan) -> int:
    pruned = 0
    while count := session.store.pruning.prune(plan.selector, most=_PRUNED_AT_ONCE):
        pruned += count
    return pruned


def _with_statuses(session: Session, verb: str, selector: Selector) -> Selector:
    """Limit the statuses to those that the verb changes, except for jobs that are named by id alone."""
    if selector.is_empty:
        raise BadInput(f"say which jobs to {verb}: ids, or selectors such as --status failed --since 1d")
    require_jobs(session, selector.ids)
    if selector.ids and not selector.statuses and not selector.names_groups:
        return selector
    statuses, possible = _STATUSES_BY_VERB[verb]
    if selector.statuses:
        statuses = tuple(status for status in selector.statuses if status in possible)
    if not statuses:
        words = " or ".join(possible)
        raise BadInput(
            f"only jobs that are {words} can be {PAST_PARTICIPLES[verb]}, not {' or '.join(selector.statuses)} ones"
        )
    # `priority` needs the batches themselves, whose later jobs inherit it.
    if selector.ids and selector.names_groups and not selector.statuses and verb != "priority":
        # The statuses must limit only the jobs of the batches and documents, so name these jobs by id, too.
        ids_in_groups = session.job_queries.ids(replace(selector, ids=(), statuses=statuses))
        return replace(selector, ids=(*selector.ids, *ids_in_groups), batch_ids=(), document_ids=())
    return replace(selector, statuses=statuses)


def apply_owner_policy(session: Session, changed: Changed) -> Changed:
    if not changed.job_ids:
        return changed
    policy = OwnerPolicy(session.settings.owner_policy)
    waiting = session.store.batches.apply_policy(changed.job_ids, policy, actor=session.actor)
    return replace(changed, waiting=waiting)


# ── Pauses and slots ──────────────────────────────────────────────────────────────────────────────────────────────────


def pause(session: Session, scope: str, name: str, *, length: str | None = None, reason: str | None = None) -> Paused:
    until = None if length is None else add_duration(session.clock(), parse_length(length))
    session.store.job_control.pause(scope, name, until=until, reason=reason)
    column = {"type": "job_type", "owner": "owner"}.get(scope)
    return Paused(until, column is None or name in session.job_queries.names(column, name))


def list_pauses(session: Session, owner: str | None = None) -> Sequence[Pause]:
    """Return the pauses, without those of other owners if `owner` is given."""
    return [pause for pause in session.job_queries.pauses() if pause.scope != "owner" or owner in (None, pause.name)]


def unpause(session: Session, scope: str, name: str, *, owner: str | None = None) -> None:
    if not session.store.job_control.unpause(scope, name):
        pauses = list_pauses(session, owner)
        paused = ", ".join(title_of_pause(pause.scope, pause.name) for pause in pauses) or "nothing"
        raise Refused(f"{title_of_pause(scope, name)} was not paused; paused: {paused}")


def set_slots(session: Session, slots: int, worker_id: str | None = None) -> str:
    """Set the slots until the worker restarts. The id may be left out if there is one live worker."""
    if not 1 <= slots <= SLOTS_MOST:
        raise BadInput(f"a worker has 1 to {SLOTS_MOST} slots, not {slots}", "to start nothing: pagemill pause --all")
    live_ids = [worker.id for worker in Overview(session).live_workers]
    if worker_id is None and len(live_ids) > 1:
        raise BadInput(f"there are {counted(len(live_ids), 'worker')}", f"name one: {', '.join(live_ids)}")
    if worker_id is None:
        worker_id = next(iter(live_ids), "")
    if worker_id not in live_ids or not session.store.workers.set_slots(worker_id, slots):
        raise Refused(f"worker {worker_id} is not running" if worker_id else "no worker is running", "pagemill workers")
    return worker_id


def drain_node(session: Session, name: str, *, is_draining: bool) -> str:
    if not session.store.job_control.drain_node(name, is_draining=is_draining):
        names = [node.name for node in session.overview.nodes()]
        hint = did_you_mean(name, names, f"the nodes are {', '.join(names) or 'none yet'}", cutoff=0.5)
        raise NodeNotFound(f"there is no node {name!r}", hint)
    if not is_draining:
        return f"{name} gets new attempts again"
    running = sum(attempt.node == name for attempt in session.overview.work_on_nodes())
    return f"{name} gets no new attempts" + (f"; it finishes the {running} that run there" if running else "")
