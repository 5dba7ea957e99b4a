"""`pagemill schedule`: the schedules in the settings."""

from __future__ import annotations

import click

from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, completes_setting, verb
from worker_service.services import schedules as operations
from worker_service.services.jobs import state_of
from worker_service.settings.schedules import EXAMPLE

_COLUMNS = ("NAME", "WHAT", "CRON", "ZONE", "NEXT (UTC)", "LAST (UTC)", "STARTED", "STATE", "ERROR")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill schedule ls
    pagemill schedule ls --json

    List the schedules: what each one starts, its next and last run, and the state of the last job.
    """
    found = operations.list_schedules(call.session)
    if call.printed_json({"items": found}):
        return
    if not found:
        output.say("there are no schedules; for an example: pagemill schedule example")
        return
    output.show_table(_COLUMNS, [_row(one) for one in found], gives_up=("ZONE", "ERROR", "CRON"))
    for one in found:
        if one.trouble is not None:
            output.say(one.trouble)
    if any(one.is_waiting for one in found):
        output.say(f"no timer runs the schedules: {operations.TICKS}")


@verb
def tick(call: Invocation) -> int:
    """\b
    pagemill schedule tick
    * * * * *  pagemill schedule tick       # in a crontab, if there is no systemd

    Start what is due, and send due notifications. Several ticks may run at once: each slot starts its job once.
    """
    done = operations.run_tick(call.session)
    if not call.printed_json(done):
        for one in done.items:
            is_there = ", which is already live" if one.existing else ""
            output.show(f"{one.schedule}: {output.to_the_second(one.slot)} UTC: {_title_of_run(one)}{is_there}")
        for missed in done.missed:
            output.say(missed.sentence)
        for trouble in done.troubles:
            output.say(trouble.why)
    return 1 if done.troubles else 0


@verb
@click.argument("name", shell_complete=completes_setting(lambda settings: [one.name for one in settings.schedule]))
def run_now(call: Invocation, name: str) -> None:
    """\b
    pagemill schedule run-now nightly

    Start a schedule now, and print the id of its job, or batch:7. Its next slot does not change.
    """
    begun = operations.start_schedule_now(call.session, name)
    if call.printed_json(begun):
        return
    output.show(str(begun.job_id) if begun.batch_id is None else f"batch:{begun.batch_id}")
    if begun.existing:
        output.say(f"nothing was added: job {begun.job_id} already does this")


@verb
def example(call: Invocation) -> None:
    """\b
    pagemill schedule example
    pagemill schedule example >> /etc/pagemill/pagemill.toml

    Print two example schedules for the settings file.
    """
    if not call.printed_json({"toml": EXAMPLE}):
        output.show_text(EXAMPLE)


schedule = VerbGroup(
    "schedule",
    "\b\npagemill schedule example >> /etc/pagemill/pagemill.toml\npagemill schedule ls\npagemill schedule tick\n"
    "pagemill schedule run-now nightly\n\n"
    "List and run the schedules: each [[schedule]] in the settings.",
    *(ls, tick, run_now, example),
)


def _title_of_run(one: operations.StartedSchedule | operations.ScheduleState) -> str:
    return f"job {one.job_id}" if one.batch_id is None else f"batch {one.batch_id}"


def _row(one: operations.ScheduleState) -> tuple[object, ...]:
    has_begun = one.job_id is not None or one.batch_id is not None
    state, error = "gone" if has_begun else "", None
    if one.job is not None:
        state, error = state_of(one.job), one.job.error_code
    elif one.batch is not None:
        state = one.batch.state
    last, coming = output.to_the_second(one.last_slot or one.last_at), output.to_the_second(one.next_at) or "never"
    began = _title_of_run(one) if has_begun else None
    return (one.name, one.what, one.cron, one.zone, coming, last, began, state, error)
