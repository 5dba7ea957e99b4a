"""Change jobs. `_change_jobs` asks first if a plan has several jobs or is final, applies it, and shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import click

from worker_service.base.clock import as_text
from worker_service.base.errors import Refused
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import (
    Function,
    Invocation,
    JobId,
    add_options,
    complete_job_type,
    completer,
    confirm,
    confirmation_options,
    job_selector_options,
    verb,
)
from worker_service.cli.waiting import await_ends
from worker_service.jobs.history import OPPOSITE, Action, Changed
from worker_service.jobs.selector import Selector
from worker_service.services import job_control as operations
from worker_service.services.job_control import Plan
from worker_service.services.jobs import state_of
from worker_service.services.overview import title_of_pause
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.services.undo import ACTIONS_EXAMINED_MAX, find_undoable, undo_action

_REFUSALS_SHOWN_MAX = 10
_KILL_SECONDS_MAX = 15.0
_DOCUMENTS_NAMED_MAX = 20


@verb
@job_selector_options
@confirmation_options
@click.option("--now", is_flag=True, help="Kill the processes at once, and wait until they are gone.")
def cancel(call: Invocation, selector: Selector, dry_run: bool, yes: bool, now: bool) -> int:
    """\b
    pagemill cancel 42
    pagemill cancel 42 --now
    pagemill cancel --type ocr_pages --owner alice --dry-run
    pagemill cancel --batch 7 --yes

    Stop jobs. A pending job ends at once. A running job is asked to stop, and ends when its processes are gone.

    A document that a cancelled job was reading fails (CANCELLED) until `pagemill retry` or `pagemill reindex` continues
    it. With --now, the exit code is 1 if a process is still there after 15 seconds.
    """
    plan = operations.make_plan(call.session, "cancel", selector)
    return _change_jobs(call, plan, dry_run=dry_run, yes=yes, is_killing=now)


@verb
@job_selector_options
@confirmation_options
def retry(call: Invocation, selector: Selector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill retry 42
    pagemill retry --status failed --type download --since 1d --dry-run
    pagemill retry --error HTTP_503 --yes

    Run ended jobs again, with all their retries. Jobs that failed only because of them run again, too.

    Without --status or ids, failed and cancelled jobs are chosen.
    """
    return _change_jobs(call, operations.make_plan(call.session, "retry", selector), dry_run=dry_run, yes=yes)


@verb
@job_selector_options
@confirmation_options
def delete(call: Invocation, selector: Selector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill delete 42
    pagemill delete --status cancelled --older-than 7d --yes

    Delete jobs that are not running, with their logs and history. This cannot be undone, so it always asks first.

    A document that a pending job would have read fails (JOB_DELETED). To delete documents: `pagemill documents rm`.
    """
    return _change_jobs(call, operations.make_plan(call.session, "delete", selector), dry_run=dry_run, yes=yes)


@verb
@click.argument("level", metavar="1-10", type=int)
@job_selector_options
@confirmation_options
def priority(call: Invocation, selector: Selector, level: int, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill priority 1 42
    pagemill priority 1 batch:7 document:3 --yes
    pagemill priority 10 --type extract_rows --owner alice --yes

    Change the priority of pending and running jobs: 1 is the highest, 10 the lowest. Follow-up jobs inherit it.
    """
    plan = operations.make_plan(call.session, "priority", selector, priority=level)
    return _change_jobs(call, plan, dry_run=dry_run, yes=yes)


@verb
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=JobId(), shell_complete=completer("id"))
def run_now(call: Invocation, ids: tuple[int, ...]) -> None:
    """\b
    pagemill run-now 42

    Start jobs now that wait for a time (--run-at) or for their next retry. Other gates still apply: `pagemill why 42`.
    """
    changed = operations.run_now(call.session, ids)
    if call.print_if_json({"ids": changed}):
        return
    for job_id in ids:
        output.show(f"job {job_id} " + ("no longer waits for a time" if job_id in changed else "waits for no time"))


@verb
@click.argument("action_id", metavar="[ACTION]", type=click.IntRange(1, 2**62), required=False)
@click.option("--list", "is_list", is_flag=True, help="List the last actions, newest first.")
@confirmation_options
def undo(call: Invocation, action_id: int | None, is_list: bool, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill undo
    pagemill undo --list
    pagemill undo 7

    Undo an action for each job that has not changed since. Without a number, this is the newest action that can be
    undone. Asks first if that action changed several jobs, is not the newest one, or was made by another user.

    Cancelled jobs are retried, with all their retries; a cancelled batch continues. Retried jobs are cancelled. Changed
    priorities are restored. Deletions cannot be undone.
    """
    if is_list:
        return _show_actions(call)
    action = find_undoable(call.session, action_id)
    newer_final = None if action_id is not None else _newest_final_action(call.session, action)
    description = _describe_action(action)
    if dry_run:
        answer = {"dry_run": True, **as_object(action), "newest_final": newer_final}
        call.show_result(answer, f"would undo action {action.id}: {description}")
        return 0
    if newer_final is not None or action.jobs > 1 or action.actor != call.session.actor:
        warning = ""
        if newer_final is not None:
            warning = f"The newest action, {newer_final.id}, cannot be undone: the {_describe_action(newer_final)}. "
        effect = "restore the priorities" if action.opposite == "priority" else f"{action.opposite} what it changed"
        confirm(f"{warning}Undo action {action.id}, the {description}: {effect}?", yes=yes)
    changed = undo_action(call.session, action)
    if action.subject:  # such as a schedule, which has no jobs to show
        call.show_result({"action": action.id}, f"undid the {description}")
        return 0
    if not call.as_json:
        outcome = "undid" if changed.job_ids or changed.asked else "could not undo"
        output.note(f"{outcome} action {action.id}, the {description}:")
    return _show_changed(call, action.opposite or "", changed)


def _newest_final_action(session: Session, action: Action) -> Action | None:
    """Return the newest action if it is later than `action` and cannot be undone."""
    actions = session.history.actions(most=ACTIONS_EXAMINED_MAX)
    newest = next((later for later in actions if not later.is_of_tokens), action)
    return newest if newest.id > action.id and newest.opposite is None else None


def _describe_action(action: Action) -> str:
    """Return, for example, ``cancel of batch 4 (5 jobs) by root at 2026-11-20 10:00:00``."""
    subject = counted(action.documents, "document") if action.documents else counted(action.jobs, "job")
    if action.batch_id is not None:
        subject = f"batch {action.batch_id} ({subject})" if action.jobs else f"batch {action.batch_id}"
    name = action.verb.removesuffix("_batch").removesuffix("_schedule").replace("_", " ")
    name = "removal" if name == "remove" else name
    return f"{name} of {action.subject or subject} by {action.actor} at {output.whole_seconds(action.at)}"


@verb
@job_selector_options
@confirmation_options
def prune(call: Invocation, selector: Selector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill prune --older-than 30d --dry-run
    pagemill prune --older-than 30d --status completed --yes

    Delete old ended jobs, with their logs and history. This cannot be undone: without --yes, you have to type the
    number of jobs.
    """
    if selector.older_than is None:
        raise click.UsageError("give an age: --older-than 30d", click.get_current_context())
    plan = operations.make_plan(call.session, "prune", selector)
    if dry_run:
        return _show_dry_run(call, plan)
    if plan.jobs:
        question = f"This deletes {counted(plan.jobs, 'job')} for good."
        confirm(question, yes=yes, sample=_sample_lines(plan), number=plan.jobs)
    pruned = operations.prune_jobs(call.session, plan) if plan.jobs else 0
    call.show_result({"pruned": pruned}, f"pruned {counted(pruned, 'job')}")
    return 0


# ── Plan, confirm, change, show ─────────────────────────────────────────────────────────────────────────────────


def _change_jobs(call: Invocation, plan: Plan, *, dry_run: bool, yes: bool, is_killing: bool = False) -> int:
    if dry_run:
        return _show_dry_run(call, plan)
    if plan.jobs == 0 and not plan.is_single:
        if not call.print_if_json({"action": None, "items": [], "asked": [], "refused": []}):
            output.note("no job matches")
        return 0
    is_delete = plan.verb == "delete"
    if is_delete or not plan.is_single:
        failing = _describe_failing_documents(plan, "will be")
        warning = f"{failing}. " if failing else ""
        finality = " This cannot be undone." if is_delete else ""
        question = f"{warning}{plan.verb.capitalize()} {counted(plan.jobs, 'job')}?{finality}"
        number_to_type = plan.jobs if is_delete and not plan.is_single else None
        confirm(question, yes=yes, sample=_sample_lines(plan), number=number_to_type)
    changed = operations.apply_plan(call.session, plan, without_grace=is_killing)
    unended = await_ends(call.session, changed.asked, seconds=_KILL_SECONDS_MAX) if is_killing else None
    is_all_refused = changed.refused and not changed.job_ids and not changed.asked
    if plan.is_single and is_all_refused:
        job_id, reason = next(iter(changed.refused.items()))
        raise Refused(f"job {job_id}: {reason}")
    return _show_changed(call, plan.verb, changed, plan=plan, unended=unended)


def _describe_failing_documents(plan: Plan, verb_form: str) -> str:
    """Return, for example, `1 document will be failed (CANCELLED); …`, or "" if the change fails no document."""
    document_ids = plan.failing
    if not document_ids:
        return ""
    selection = " ".join(map(str, document_ids)) if len(document_ids) <= _DOCUMENTS_NAMED_MAX else "--status failed"
    remedy = f"pagemill reindex {selection} reads {'it' if len(document_ids) == 1 else 'them'} again"
    return f"{counted(len(document_ids), 'document')} {verb_form} failed ({plan.error_code}); {remedy}"


def _sample_lines(plan: Plan) -> list[str]:
    rows = [
        (job.id, state_of(job), job.job_type, job.name, job.owner, output.whole_seconds(job.created_at), job.error_code)
        for job in plan.sample
    ]
    headers = ("ID", "STATE", "TYPE", "NAME", "OWNER", "CREATED (UTC)", "ERROR")
    return output.table_lines(headers, rows, drop_first=("CREATED (UTC)",), never_cut=("ERROR",))


def _show_dry_run(call: Invocation, plan: Plan) -> int:
    answer: dict[str, object] = {"dry_run": True, "jobs": plan.jobs, "items": [job.id for job in plan.sample]}
    if call.print_if_json({**answer, **({"documents": plan.failing} if plan.error_code else {})}):
        return 0
    output.show(f"would {plan.verb} {counted(plan.jobs, 'job')}")
    if failing := _describe_failing_documents(plan, "would be"):
        output.show(failing)
    sample = _sample_lines(plan) if plan.jobs else []
    for line in sample:
        output.show(line)
    if plan.jobs > operations.SAMPLE_JOBS_MAX:
        output.show(f"… and {plan.jobs - operations.SAMPLE_JOBS_MAX:,} more")
    return 0


def _show_changed(
    call: Invocation,
    verb_name: str,
    changed: Changed,
    *,
    plan: Plan | None = None,
    unended: Mapping[int, str] | None = None,
) -> int:
    """Print the result. `unended` has the reasons of killed jobs that still run, or is None if none was killed."""
    exit_code = 1 if changed.refused or unended else 0
    if call.print_if_json(_changed_as_object(changed, plan, unended)):
        return exit_code
    if changed.batch_id is not None:
        output.show(f"batch {changed.batch_id} continues")
    # Without --now, each running job may take a grace period to stop.
    stopping = set(changed.asked if unended is None else unended)
    jobs_done = len({*changed.job_ids, *changed.asked} - stopping)
    if jobs_done or not stopping:
        output.show(f"{operations.PAST_PARTICIPLES[verb_name]} {counted(jobs_done, 'job')}")
    if stopping:
        output.show(f"asked {counted(len(stopping), 'job')} to stop")
    if plan is not None and plan.failing:
        verb_form = "is" if len(plan.failing) == 1 else "are"
        output.note(_describe_failing_documents(plan, "will be" if stopping else verb_form))
    for batch_id in changed.waiting:
        output.note(f"batch {batch_id} waits for another batch of its owner: pagemill batch show {batch_id}")
    for job_id, reason in islice((unended or {}).items(), _REFUSALS_SHOWN_MAX):
        output.note(f"job {job_id} is still stopping: {reason}")
    show_refusals(changed.refused)
    if plan is not None and plan.verb in OPPOSITE and jobs_done > 1:
        output.note(f"to undo: pagemill undo {changed.action_id}")
    return exit_code


def _changed_as_object(changed: Changed, plan: Plan | None, unended: Mapping[int, str] | None) -> dict[str, object]:
    answer: dict[str, object] = {"action": changed.action_id, "items": changed.job_ids, "asked": changed.asked}
    if unended is not None:
        answer["unended"] = _reason_items(unended)
    if plan is not None and plan.error_code:
        answer["documents"] = plan.failing
    if changed.batch_id is not None:
        answer["batch"] = changed.batch_id
    if changed.waiting:
        answer["waiting"] = changed.waiting
    return {**answer, "refused": _reason_items(changed.refused)}


def show_refusals(refused: Mapping[int, str]) -> None:
    for job_id, reason in islice(refused.items(), _REFUSALS_SHOWN_MAX):
        output.note(f"job {job_id}: {reason}")
    if len(refused) > _REFUSALS_SHOWN_MAX:
        output.note(f"… and {len(refused) - _REFUSALS_SHOWN_MAX:,} more")


def _reason_items(reasons: Mapping[int, str]) -> list[dict[str, object]]:
    return [{"id": job_id, "reason": reason} for job_id, reason in reasons.items()]


def _show_actions(call: Invocation) -> int:
    call.show_items(
        call.session.history.actions(),
        ("ACTION", "AT (UTC)", "USER", "VERB", "BATCH", "JOBS", "DOCUMENTS", "UNDONE (UTC)", "OF"),
        lambda action: (
            action.id, output.whole_seconds(action.at), action.actor, action.verb, action.batch_id, action.jobs or None,
            action.documents or None, output.whole_seconds(action.undone_at), action.subject,
        ),
        note_if_empty="there are no actions yet",
    )  # fmt: skip
    return 0


# ── Pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _scope_options(function: Function) -> Function:
    return add_options(
        function,
        click.argument("job_type", metavar="[TYPE]", required=False, shell_complete=complete_job_type),
        click.option("--owner", metavar="NAME", shell_complete=completer("owner"), help="The jobs of this owner."),
        click.option("--all", "everything", is_flag=True, help="All jobs."),
    )


@verb
@_scope_options
@click.option("--for", "length", metavar="LENGTH", help="End the pause after this time: 1h, 30m. Default: never.")
@click.option("--reason", metavar="TEXT", help="Reason that `pagemill why` shows.")
def pause(
    call: Invocation, job_type: str | None, owner: str | None, everything: bool, length: str | None, reason: str | None
) -> None:
    """\b
    pagemill pause ocr_pages
    pagemill pause ocr_pages --for 1h --reason "disk is being changed"
    pagemill pause --owner alice
    pagemill pause --all

    Start no more jobs of a type, of an owner, or at all. Running jobs continue; new jobs wait.
    """
    scope, name = _scope_and_name(job_type, owner, everything)
    paused = operations.pause(call.session, scope, name, length=length, reason=reason)
    until, title = paused.until, title_of_pause(scope, name)
    if call.print_if_json({"scope": scope, "name": name, "until": until, "reason": reason}):
        return
    end = "it is unpaused" if until is None else f"{output.whole_seconds(as_text(until))} UTC"
    output.show(f"paused {title} until {end}")
    if not paused.is_known:
        output.note(f"no recent job is of {title}; check the spelling in pagemill ls")


@verb
@_scope_options
def unpause(call: Invocation, job_type: str | None, owner: str | None, everything: bool) -> None:
    """\b
    pagemill unpause ocr_pages
    pagemill unpause --owner alice
    pagemill unpause --all

    End a pause. Each pause ends separately: --all ends the pause of all jobs, but not the pause of a type.
    """
    scope, name = _scope_and_name(job_type, owner, everything)
    operations.unpause(call.session, scope, name)
    call.show_result({"scope": scope, "name": name}, f"unpaused {title_of_pause(scope, name)}")


def _scope_and_name(job_type: str | None, owner: str | None, everything: bool) -> tuple[str, str]:
    if bool(job_type) + bool(owner) + everything != 1:
        raise click.UsageError("give one of TYPE, --owner NAME, --all", click.get_current_context())
    if job_type:
        return "type", job_type
    return ("owner", owner) if owner else ("all", "")
