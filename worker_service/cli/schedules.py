"""`pagemill schedule`: what is begun at which times."""

from __future__ import annotations

from typing import Any

import click

from worker_service.cli import group, output
from worker_service.cli.context import Invocation, completions, verb
from worker_service.services import schedules as operations
from worker_service.services.jobs import state_of
from worker_service.settings.schedules import EXAMPLE

_COLUMNS = ("NAME", "WHAT", "CRON", "ZONE", "NEXT (UTC)", "LAST (UTC)", "BEGAN", "STATE", "ERROR")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill schedule ls
    pagemill schedule ls --json

    The schedules: what each begins, when next and when last, the job that this was, and how that stands.
    """
    found = operations.list_schedules(call.session)
    if call.printed_json({"items": found}):
        return
    if not found:
        output.say("there are no schedules: `pagemill schedule example` prints two, for the settings file")
        return
    output.show_table(_COLUMNS, [_row(one) for one in found], gives_up=("ZONE", "ERROR", "CRON"))
    for one in found:
        if one.trouble is not None:
            output.say(one.trouble)
    if any(one.is_waiting for one in found):
        output.say(f"nobody ticks: {operations.TICKS}")


@verb
def tick(call: Invocation) -> int:
    """\b
    pagemill schedule tick
    * * * * *  pagemill schedule tick       # in a crontab, if there is no systemd

    Begin what is due, and tell people what [[notify]] has to tell. It takes a moment, and any number of them may run at
    once: each slot begins its job once.
    """
    done = operations.run_tick(call.session)
    if not call.printed_json(done):
        for one in done.items:
            is_there = ", which is live already" if one.existing else ""
            output.show(f"{one.schedule}: {output.seconds(one.slot)} UTC: {_named(one)}{is_there}")
        for missed in done.missed:
            output.say(missed.sentence)
        for trouble in done.troubles:
            output.say(trouble.why)
    return 1 if done.troubles else 0


def _complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[Any]:
    names = completions(ctx, lambda call: [one.name for one in call.settings.schedule])
    return [name for name in names if name.startswith(begun)]


@verb
@click.argument("name", shell_complete=_complete)
def run_now(call: Invocation, name: str) -> None:
    """\b
    pagemill schedule run-now nightly

    Begin one now, and print the id of its job, or batch:7. Its slots come all the same.
    """
    begun = operations.start_schedule_now(call.session, name)
    if call.printed_json(begun):
        return
    output.show(str(begun.job_id) if begun.batch_id is None else f"batch:{begun.batch_id}")
    if begun.existing:
        output.say(f"job {begun.job_id} is live and does it already: nothing was added")


@verb
def example(call: Invocation) -> None:
    """\b
    pagemill schedule example
    pagemill schedule example >> /etc/pagemill/pagemill.toml

    Two schedules, as the settings file takes them.
    """
    if not call.printed_json({"toml": EXAMPLE}):
        output.show_text(EXAMPLE)


schedule = group(
    "schedule",
    "\b\npagemill schedule example >> /etc/pagemill/pagemill.toml\npagemill schedule ls\npagemill schedule tick\n"
    "pagemill schedule run-now nightly\n\n"
    "What is begun at which times: each [[schedule]] of the settings.",
    *(ls, tick, run_now, example),
)


def _named(one: operations.StartedSchedule | operations.ScheduleState) -> str:
    return f"job {one.job_id}" if one.batch_id is None else f"batch {one.batch_id}"


def _row(one: operations.ScheduleState) -> tuple[object, ...]:
    has_begun = one.job_id is not None or one.batch_id is not None
    state, error = "gone" if has_begun else "", None
    if one.job is not None:
        state, error = state_of(one.job), one.job.error_code
    elif one.batch is not None:
        state = one.batch.state
    last, coming = output.seconds(one.last_slot or one.last_at), output.seconds(one.next_at) or "never"
    began = _named(one) if has_begun else None
    return (one.name, one.what, one.cron, one.zone, coming, last, began, state, error)
