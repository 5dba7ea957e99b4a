"""Changing jobs: `cancel`, `retry`, `delete`, `priority`, `undo`, `prune`, `pause` and `unpause`.

One job given by its id is changed at once. Where there may be many, or where nothing brings them back, the person sees
how many and some of them first, and says yes. Each change is one action; `pagemill undo` does the opposite.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from worker_service.base.clock import as_text
from worker_service.base.errors import Refused
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import (
    Function,
    Invocation,
    JobId,
    completes,
    completes_type,
    confirm,
    confirming,
    selecting,
    verb,
)
from worker_service.jobs.history import OPPOSITE, Action, Changed
from worker_service.jobs.selector import Selector
from worker_service.services import job_control as operations
from worker_service.services.job_control import Plan
from worker_service.services.jobs import state_of
from worker_service.services.overview import title_of_pause
from worker_service.services.serialize import as_object

_REFUSALS_SHOWN = 10
_ENDS_SECONDS = 15.0
_NAMED_MOST = 20


@verb
@selecting
@confirming
@click.option("--now", is_flag=True, help="Without grace: stop their processes by force, and wait until they are gone.")
def cancel(call: Invocation, selector: Selector, dry_run: bool, yes: bool, now: bool) -> int:
    """\b
    pagemill cancel 42
    pagemill cancel 42 --now
    pagemill cancel --type ocr_pages --owner alice --dry-run
    pagemill cancel --batch 7 --yes

    Stop jobs. A pending one ends at once; a running one is asked to stop, and ends once its processes are gone.

    With --now the command ends when they are, or after 15 seconds with what still goes on and exit code 1. A document
    that they were reading is failed by it (CANCELLED), until `pagemill retry` or `pagemill reindex` has it read on.
    """
    return _change(call, "cancel", selector, dry_run=dry_run, yes=yes, without_grace=now)


@verb
@selecting
@confirming
def retry(call: Invocation, selector: Selector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill retry 42
    pagemill retry --status failed --type download --since 1d --dry-run
    pagemill retry --error HTTP_503 --yes

    Run ended jobs again, with a fresh budget of retries. What failed only because of them is revived.

    Without --status or ids, these are failed and cancelled ones.
    """
    return _change(call, "retry", selector, dry_run=dry_run, yes=yes)


@verb
@selecting
@confirming
def delete(call: Invocation, selector: Selector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill delete 42
    pagemill delete --status cancelled --older-than 7d --yes

    Remove jobs that are not running, for good, with their logs and history: so it asks first, and scripts say --yes. A
    document that a pending one would have read is failed by it (JOB_DELETED). Documents: `pagemill documents rm`.
    """
    return _change(call, "delete", selector, dry_run=dry_run, yes=yes)


@verb
@click.argument("level", metavar="1-10", type=int)
@selecting
@confirming
def priority(call: Invocation, selector: Selector, level: int, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill priority 1 42
    pagemill priority 1 batch:7 document:3 --yes
    pagemill priority 10 --type extract_rows --owner alice --yes

    Give jobs another priority: 1 is the highest, 10 the lowest. It reaches what they will ask for, so running ones have
    it as well.
    """
    return _change(call, "priority", selector, dry_run=dry_run, yes=yes, level=level)


@verb
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=JobId(), shell_complete=completes("id"))
def run_now(call: Invocation, ids: tuple[int, ...]) -> None:
    """\b
    pagemill run-now 42

    Let jobs start at once that wait for their time: that of their --run-at, or of their next try. What else holds them
    holds them still: `pagemill why 42`.
    """
    forward = operations.run_now(call.session, ids)
    if call.printed_json({"ids": forward}):
        return
    for job_id in ids:
        output.show(f"job {job_id} " + ("waits no longer" if job_id in forward else "waited for no time"))


@verb
@click.argument("action_id", metavar="[ACTION]", type=click.IntRange(1, 2**62), required=False)
@click.option("--list", "is_list", is_flag=True, help="The last actions, the newest first.")
@confirming
def undo(call: Invocation, action_id: int | None, is_list: bool, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill undo
    pagemill undo --list
    pagemill undo 7

    Do the opposite of an action to every job that has not changed since. Without a number, this is the newest action
    that can be undone. Asks first if that action changed several jobs, if a newer one cannot be undone, or if another
    user made it; scripts say --yes, or name the action.

    Cancelled jobs are retried with a fresh budget, and a cancelled batch goes on. Retried jobs are cancelled.
    Priorities become what they were before. A delete cannot be undone.
    """
    if is_list:
        return _show_actions(call)
    action = operations.find_undoable(call.session, action_id)
    final = None if action_id is not None else operations.newest_final(call.session, action)
    if dry_run:
        if not call.printed_json({"dry_run": True, **as_object(action), "newest_final": final}):
            output.show(f"would undo action {action.id}: {_described(action)}")
        return 0
    if final is not None or action.jobs > 1 or action.actor != call.session.actor:
        first = ""
        if final is not None:
            first = f"The newest action, {final.id}, cannot be undone: the {_described(final)}. "
        verb_name = action.opposite
        told = "put the priority back" if verb_name == "priority" else f"{verb_name} what it changed"
        confirm(f"{first}Undo action {action.id}, the {_described(action)}: {told}?", yes=yes)
    return _show_changed(call, operations.DONE[action.opposite or ""], operations.undo(call.session, action))


def _described(action: Action) -> str:
    """``cancel of batch 4 (5 jobs) by root at 2026-11-20 10:00:00``"""
    what = output.jobs(action.jobs)
    if action.documents:
        what = counted(action.documents, "document")
    if action.batch_id is not None:
        what = f"batch {action.batch_id}" + (f" ({what})" if action.jobs else "")
    verb_name = action.verb.removesuffix("_batch").replace("_", " ")
    return f"{verb_name} of {action.tokens or what} by {action.actor} at {output.seconds(action.at)}"


@verb
@selecting
@confirming
def prune(call: Invocation, selector: Selector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill prune --older-than 30d --dry-run
    pagemill prune --older-than 30d --status completed --yes

    Remove old ended jobs for good, with their logs and history. This is not undone: without --yes, the number of jobs
    has to be typed.
    """
    if selector.older_than is None:
        raise click.UsageError("say how old: --older-than 30d", click.get_current_context())
    plan = operations.make_plan(call.session, "prune", selector)
    if dry_run:
        return _show_dry_run(call, plan)
    if plan.jobs:
        question = f"This removes {output.jobs(plan.jobs)} for good."
        confirm(question, yes=yes, sample=_sample(plan), number=plan.jobs)
    pruned = operations.prune_jobs(call.session, plan) if plan.jobs else 0
    if not call.printed_json({"pruned": pruned}):
        output.show(f"pruned {output.jobs(pruned)}")
    return 0


# ── One way for all ─────────────────────────────────────────────────────────────────────────────────────────────


def _change(
    call: Invocation,
    verb_name: str,
    selector: Selector,
    *,
    dry_run: bool,
    yes: bool,
    level: int | None = None,
    without_grace: bool = False,
) -> int:
    plan = operations.make_plan(call.session, verb_name, selector, priority=level)
    if dry_run:
        return _show_dry_run(call, plan)
    if plan.jobs == 0 and not plan.is_single:
        if not call.printed_json({"action": None, "items": [], "asked": [], "refused": []}):
            output.say("no job matches: nothing to do")
        return 0
    if verb_name == "delete" or not plan.is_single:
        question = f"{verb_name.capitalize()} {output.jobs(plan.jobs)}?"
        if verb_name == "delete":
            question += f" {'It' if plan.jobs == 1 else 'They'} cannot be brought back."
        if sentence := _of_documents(plan, "will be"):
            question = f"{sentence}. {question}"
        number = plan.jobs if verb_name == "delete" and not plan.is_single else None
        confirm(question, yes=yes, sample=_sample(plan), number=number)
    changed = operations.apply_plan(call.session, plan, without_grace=without_grace)
    unended = operations.await_ends(call.session, changed.asked, seconds=_ENDS_SECONDS) if without_grace else None
    return _show_changed(call, operations.DONE[verb_name], changed, plan=plan, unended=unended)


def _of_documents(plan: Plan | None, are: str) -> str:
    """What becomes of them, and how they are read again; empty, where nothing does."""
    if plan is None or not plan.failing:
        return ""
    ids = plan.failing
    which = " ".join(map(str, ids)) if len(ids) <= _NAMED_MOST else "--status failed"
    again = f"pagemill reindex {which} reads {'it' if len(ids) == 1 else 'them'} again"
    return f"{counted(len(ids), 'document')} {are} failed ({plan.error_code}); {again}"


def _sample(plan: Plan) -> list[str]:
    rows = [
        (job.id, state_of(job), job.job_type, job.name, job.owner, output.seconds(job.created_at), job.error_code)
        for job in plan.sample
    ]
    headers = ("ID", "STATE", "TYPE", "NAME", "OWNER", "CREATED (UTC)", "ERROR")
    return output.table_lines(headers, rows, gives_up=("CREATED (UTC)",), whole=("ERROR",))


def _show_dry_run(call: Invocation, plan: Plan) -> int:
    documents = {"documents": plan.failing} if plan.error_code else {}
    if call.printed_json({"dry_run": True, "jobs": plan.jobs, "items": [job.id for job in plan.sample], **documents}):
        return 0
    output.show(f"would {plan.verb} {output.jobs(plan.jobs)}")
    if sentence := _of_documents(plan, "would be"):
        output.show(sentence)
    for line in _sample(plan) if plan.jobs else ():
        output.show(line)
    if plan.jobs > operations.SAMPLE:
        output.show(f"… and {plan.jobs - operations.SAMPLE:,} more")
    return 0


def _show_changed(
    call: Invocation,
    done: str,
    changed: Changed,
    *,
    plan: Plan | None = None,
    unended: Mapping[int, str] | None = None,
) -> int:
    """`unended`: of those that were asked to stop, the ones that were waited for in vain; None: nobody waited."""
    refused, still = _reasons(changed.refused), _reasons(unended or {})
    if plan is not None and plan.is_single and refused and not changed.job_ids and not changed.asked:
        raise Refused("job {id}: {reason}".format(**refused[0]))
    exit_code = 1 if refused or unended else 0
    answer: dict[str, object] = {"action": changed.action_id, "items": changed.job_ids, "asked": changed.asked}
    answer |= {} if unended is None else {"unended": still}
    answer |= {"documents": plan.failing} if plan is not None and plan.error_code else {}
    answer |= {} if changed.batch_id is None else {"batch": changed.batch_id}
    answer |= {"waiting": changed.waiting} if changed.waiting else {}
    if call.printed_json({**answer, "refused": refused}):
        return exit_code
    if changed.batch_id is not None:
        output.show(f"batch {changed.batch_id} goes on")
    asked_too = set(changed.asked if unended is None else unended)
    number = len({*changed.job_ids, *changed.asked} - asked_too)
    if number or not asked_too:
        output.show(f"{done} {output.jobs(number)}")
    if asked_too:
        output.show(f"asked {output.jobs(len(asked_too))} to stop")
    are = "will be" if asked_too else "is" if plan is not None and len(plan.failing) == 1 else "are"
    if sentence := _of_documents(plan, are):
        output.say(sentence)
    for batch_id in changed.waiting:
        output.say(f"batch {batch_id} waits for another batch of its owner: pagemill batch show {batch_id}")
    for one in still[:_REFUSALS_SHOWN]:
        output.say("job {id} still stops: {reason}".format(**one))
    for left in refused[:_REFUSALS_SHOWN]:
        output.say("job {id}: {reason}".format(**left))
    if len(refused) > _REFUSALS_SHOWN:
        output.say(f"… and {len(refused) - _REFUSALS_SHOWN:,} more")
    if plan is not None and plan.verb in OPPOSITE and number > 1:
        output.say(f"to take it back: pagemill undo {changed.action_id}")
    return exit_code


def _reasons(by_job: Mapping[int, str]) -> list[dict[str, object]]:
    return [{"id": job_id, "reason": reason} for job_id, reason in by_job.items()]


def _show_actions(call: Invocation) -> int:
    actions = call.session.reading.actions()
    if call.printed_json({"items": actions}):
        return 0
    rows = [
        (
            one.id, output.seconds(one.at), one.actor, one.verb, one.batch_id, one.jobs or None, one.documents or None,
            output.seconds(one.undone_at), one.tokens,
        )
        for one in actions
    ]  # fmt: skip
    if rows:
        output.show_table(
            ("ACTION", "AT (UTC)", "WHO", "VERB", "BATCH", "JOBS", "DOCUMENTS", "UNDONE (UTC)", "TOKENS"), rows
        )
    else:
        output.say("nobody has changed anything yet")
    return 0


# ── Pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _scope_options(function: Function) -> Function:
    click.option("--all", "everything", is_flag=True, help="All jobs.")(function)
    click.option("--owner", metavar="NAME", shell_complete=completes("owner"), help="The jobs of this owner.")(function)
    return click.argument("job_type", metavar="[TYPE]", required=False, shell_complete=completes_type)(function)


@verb
@_scope_options
@click.option("--for", "length", metavar="LENGTH", help="Until this long from now: 1h, 30m. Else until unpaused.")
@click.option("--reason", metavar="TEXT", help="Shown to everybody who asks why.")
def pause(
    call: Invocation, job_type: str | None, owner: str | None, everything: bool, length: str | None, reason: str | None
) -> None:
    """\b
    pagemill pause ocr_pages
    pagemill pause ocr_pages --for 1h --reason "disk is being changed"
    pagemill pause --owner alice
    pagemill pause --all

    Start no more jobs of a type, of an owner, or at all. What runs goes on; what comes waits.
    """
    scope, name = _scope(job_type, owner, everything)
    paused = operations.pause(call.session, scope, name, length=length, reason=reason)
    until, what = paused.until, title_of_pause(scope, name)
    if call.printed_json({"scope": scope, "name": name, "until": until, "reason": reason}):
        return
    ends_at = "until it is unpaused" if until is None else f"until {output.seconds(as_text(until))} UTC"
    output.show(f"paused {what} {ends_at}")
    if not paused.is_known:
        output.say(f"none of the newest jobs is of {what}: is it spelled as pagemill ls shows it?")


@verb
@_scope_options
def unpause(call: Invocation, job_type: str | None, owner: str | None, everything: bool) -> None:
    """\b
    pagemill unpause ocr_pages
    pagemill unpause --owner alice
    pagemill unpause --all

    Lift a pause. Each pause is lifted by itself: --all lifts the pause of everything, not the pause of a type.
    """
    scope, name = _scope(job_type, owner, everything)
    operations.unpause(call.session, scope, name)
    if not call.printed_json({"scope": scope, "name": name}):
        output.show(f"unpaused {title_of_pause(scope, name)}")


def _scope(job_type: str | None, owner: str | None, everything: bool) -> tuple[str, str]:
    given = [("type", job_type)] * bool(job_type) + [("owner", owner)] * bool(owner) + [("all", "")] * everything
    if len(given) != 1:
        raise click.UsageError("say what: a TYPE, or --owner NAME, or --all", click.get_current_context())
    scope, name = given[0]
    return scope, name or ""
