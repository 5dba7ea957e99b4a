"""Changing jobs: `cancel`, `retry`, `delete`, `priority`, `undo`, `prune`.

One job given by its id is changed at once. Where there may be many, the person sees how many and some of them first,
and says yes. What changes many is one action, which `pagemill undo` puts back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from worker_service.commands import output
from worker_service.commands.desk import Desk, confirm, confirming, selecting, verb
from worker_service.errors import Refused
from worker_service.jobs.model import Action, Changed
from worker_service.jobs.selector import Selector
from worker_service.operations import overview
from worker_service.plurals import counted
from worker_service.queue import NO_DOCUMENT_FAILS, Failing, Queue, Unended, state_of
from worker_service.words import SelectorWords, read_priority

_SAMPLE = 5
_REFUSALS_SHOWN = 10
_NAMED_MOST = 20
_ENDS_SECONDS = 15.0
_DONE = {"cancel": "cancelled", "retry": "retried", "delete": "deleted", "priority": "reprioritised"}


@verb
@selecting
@confirming
@click.option("--now", is_flag=True, help="Without grace: stop their processes by force, and wait until they are gone.")
def cancel(desk: Desk, words: SelectorWords, dry_run: bool, yes: bool, now: bool) -> int:
    """\b
    pagemill cancel 42
    pagemill cancel 42 --now
    pagemill cancel --type ocr_pages --owner alice --dry-run
    pagemill cancel --batch 7 --yes

    Stop jobs. A pending one ends at once; a running one is asked to stop, and ends once its processes are gone.

    With --now the command ends when they are, or after 15 seconds with what still goes on and exit code 1. A document
    that they were reading is failed by it (CANCELLED), until `pagemill retry` or `pagemill reindex` has it read on.
    """
    return _change(desk, "cancel", words, dry_run=dry_run, yes=yes, is_hurried=now)


@verb
@selecting
@confirming
def retry(desk: Desk, words: SelectorWords, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill retry 42
    pagemill retry --status failed --type download --since 1d --dry-run
    pagemill retry --error HTTP_503 --yes

    Run ended jobs again, with a fresh budget of retries. What failed only because of them is revived.

    Without --status or ids, these are failed and cancelled ones.
    """
    return _change(desk, "retry", words, dry_run=dry_run, yes=yes)


@verb
@selecting
@confirming
def delete(desk: Desk, words: SelectorWords, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill delete 42
    pagemill delete --status cancelled --older-than 7d --yes

    Remove jobs that are not running. `pagemill undo` brings them back, until they are pruned. A document that a pending
    one would have read is failed by it (JOB_DELETED). Documents themselves: `pagemill documents rm`.
    """
    return _change(desk, "delete", words, dry_run=dry_run, yes=yes)


@verb
@click.argument("level", metavar="1-10", type=int)
@selecting
@confirming
def priority(desk: Desk, words: SelectorWords, level: int, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill priority 1 42
    pagemill priority 10 --type extract_rows --owner alice --yes

    Give pending jobs another priority: 1 is the highest, 10 the lowest.
    """
    return _change(desk, "priority", words, dry_run=dry_run, yes=yes, level=read_priority(level))


@verb
@click.argument("action_id", metavar="[ACTION]", type=click.IntRange(1, 2**62), required=False)
@click.option("--list", "is_list", is_flag=True, help="The last actions, the newest first.")
@confirming
def undo(desk: Desk, action_id: int | None, is_list: bool, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill undo
    pagemill undo --list
    pagemill undo 7

    Put back what an action did (without a number: the newest), on every job that has not moved since.
    """
    queue = desk.queue
    actions = queue.store.reading.actions(most=1000)
    if is_list:
        _show_actions(desk, actions[:20])
        return 0
    action = queue.undoable(action_id, actions)
    question = f"{action.verb} of {output.jobs(action.jobs)} by {action.actor} at {output.seconds(action.at)}"
    if dry_run:
        if desk.as_json:
            output.show_json({"dry_run": True, **output.as_object(action)})
        else:
            output.show(f"would undo action {action.id}: {question}")
        return 0
    if action.jobs > 1:
        confirm(f"Undo action {action.id}, the {question}?", yes=yes)
    return _show_changed(desk, "put back", queue.store.steering.undo(action.id, actor=queue.actor), is_single=False)


@verb
@selecting
@confirming
def prune(desk: Desk, words: SelectorWords, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill prune --older-than 30d --dry-run
    pagemill prune --older-than 30d --status completed --yes

    Remove old ended jobs for good, with their logs and history. This is not undone: without --yes, the number of jobs
    has to be typed.
    """
    queue = desk.queue
    if words.older_than is None:
        raise click.UsageError("say how old: --older-than 30d", click.get_current_context())
    selector = queue.meant("prune", queue.selector(words))
    number = queue.store.reading.count(selector)
    if dry_run:
        return _show_dry_run(desk, "prune", queue, selector, number)
    if number:
        question = f"This removes {output.jobs(number)} for good."
        confirm(question, yes=yes, sample=_sample(queue, selector), number=number)
    pruned = queue.prune(selector) if number else 0
    if desk.as_json:
        output.show_json({"pruned": pruned})
    else:
        output.show(f"pruned {output.jobs(pruned)}")
    return 0


# ── One way for all ─────────────────────────────────────────────────────────────────────────────────────────────


def _change(
    desk: Desk,
    verb_name: str,
    words: SelectorWords,
    *,
    dry_run: bool,
    yes: bool,
    level: int | None = None,
    is_hurried: bool = False,
) -> int:
    queue = desk.queue
    selector = queue.meant(verb_name, queue.selector(words))
    failing = queue.failing(verb_name, selector)
    is_single = len(selector.ids) == 1 and selector == Selector(ids=selector.ids)
    if dry_run or not is_single:
        number = queue.store.reading.count(selector)
        if dry_run:
            return _show_dry_run(desk, verb_name, queue, selector, number, failing)
        if number == 0:
            return _show_nothing(desk)
        question = f"{_named(verb_name).capitalize()} {output.jobs(number)}?"
        if sentence := _of_documents(failing, "will be"):
            question = f"{sentence}. {question}"
        confirm(question, yes=yes, sample=_sample(queue, selector))
    changed = queue.change(verb_name, selector, priority=level, is_hurried=is_hurried)
    unended: Sequence[Unended] | None = None
    if is_hurried:
        unended = queue.await_ends(
            changed.asked,
            seconds=_ENDS_SECONDS,
            monotonic=time.monotonic,
            sleep=time.sleep,
            alive=lambda: {one.worker.id for one in overview.workers(desk.session) if one.is_alive},
        )
    return _show_changed(desk, _DONE[verb_name], changed, is_single=is_single, unended=unended, failing=failing)


def _named(verb_name: str) -> str:
    return "priority" if verb_name == "priority" else verb_name


def _of_documents(failing: Failing, are: str) -> str:
    """What becomes of them, and how they are read again; empty, where nothing does."""
    ids = failing.document_ids
    if not ids:
        return ""
    which = " ".join(map(str, ids)) if len(ids) <= _NAMED_MOST else "--status failed"
    again = f"pagemill reindex {which} reads {'it' if len(ids) == 1 else 'them'} again"
    return f"{counted(len(ids), 'document')} {are} failed ({failing.code}); {again}"


def _sample(queue: Queue, selector: Selector) -> list[str]:
    rows = [
        (job.id, state_of(job), job.job_type, job.name, job.owner, output.seconds(job.created_at), job.error_code)
        for job in queue.store.reading.list(selector, most=_SAMPLE)
    ]
    return output.table_lines(
        ("ID", "STATE", "TYPE", "NAME", "OWNER", "CREATED (UTC)", "ERROR"),
        rows,
        gives_up=("CREATED (UTC)",),
        whole=("ERROR",),
    )


def _show_dry_run(
    desk: Desk, verb_name: str, queue: Queue, selector: Selector, number: int, failing: Failing = NO_DOCUMENT_FAILS
) -> int:
    if desk.as_json:
        ids = [job.id for job in queue.store.reading.list(selector, most=_SAMPLE)]
        documents = {"documents": list(failing.document_ids)} if failing.code else {}
        output.show_json({"dry_run": True, "jobs": number, "items": ids, **documents})
        return 0
    output.show(f"would {_named(verb_name)} {output.jobs(number)}")
    if sentence := _of_documents(failing, "would be"):
        output.show(sentence)
    if number:
        for line in _sample(queue, selector):
            output.show(line)
    if number > _SAMPLE:
        output.show(f"… and {number - _SAMPLE:,} more")
    return 0


def _show_nothing(desk: Desk) -> int:
    if desk.as_json:
        output.show_json({"action": None, "items": [], "asked": [], "refused": []})
    else:
        output.say("no job matches: nothing to do")
    return 0


def _show_changed(
    desk: Desk,
    done: str,
    changed: Changed,
    *,
    is_single: bool,
    unended: Sequence[Unended] | None = None,
    failing: Failing = NO_DOCUMENT_FAILS,
) -> int:
    """`unended`: of those that were asked to stop, the ones that were waited for in vain; None: nobody waited."""
    if is_single and changed.refused and not changed.job_ids and not changed.asked:
        job_id, reason = next(iter(changed.refused.items()))
        raise Refused(f"job {job_id}: {reason}")
    if desk.as_json:
        refused = [{"id": job_id, "reason": reason} for job_id, reason in changed.refused.items()]
        asked = list(changed.asked)
        items: dict[str, object] = {"action": changed.action_id, "items": list(changed.job_ids), "asked": asked}
        if unended is not None:
            items["unended"] = [{"id": one.job_id, "reason": one.why} for one in unended]
        if failing.code:
            items["documents"] = list(failing.document_ids)
        output.show_json({**items, "refused": refused})
        return 1 if changed.refused or unended else 0
    asked_too = {one.job_id for one in unended} if unended is not None else set(changed.asked)
    number = len({*changed.job_ids, *changed.asked} - asked_too)
    if number or not asked_too:
        output.show(f"{done} {output.jobs(number)}")
    if asked_too:
        output.show(f"asked {output.jobs(len(asked_too))} to stop")
    are = "will be" if asked_too else "is" if len(failing.document_ids) == 1 else "are"
    if sentence := _of_documents(failing, are):
        output.say(sentence)
    for one in (unended or ())[:_REFUSALS_SHOWN]:
        output.say(f"job {one.job_id} still stops: {one.why}")
    for job_id, reason in list(changed.refused.items())[:_REFUSALS_SHOWN]:
        output.say(f"job {job_id}: {reason}")
    if len(changed.refused) > _REFUSALS_SHOWN:
        output.say(f"… and {len(changed.refused) - _REFUSALS_SHOWN:,} more")
    if changed.action_id is not None and done != "put back" and number > 1:
        output.say(f"to put it back: pagemill undo {changed.action_id}")
    return 1 if changed.refused or unended else 0


def _show_actions(desk: Desk, actions: Sequence[Action]) -> None:
    if desk.as_json:
        output.show_json({"items": [output.as_object(action) for action in actions]})
    elif actions:
        rows = [
            (
                one.id,
                output.seconds(one.at),
                one.actor,
                one.verb,
                one.jobs or None,
                one.documents or None,
                output.seconds(one.undone_at),
            )
            for one in actions
        ]
        output.show_table(("ACTION", "AT (UTC)", "WHO", "VERB", "JOBS", "DOCUMENTS", "UNDONE (UTC)"), rows)
    else:
        output.say("nobody has changed anything yet")
