"""`pagemill schedules`: list, add, change, pause, remove and run schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from job_handlers.reading.find_files import absolute
from worker_service.base.errors import BadInput
from worker_service.base.path_text import path_to_text
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import Function, Invocation, add_options, name_completer, verb
from worker_service.services import schedules as operations
from worker_service.services.jobs import state_of
from worker_service.services.schedule_ticks import StartedSchedule, run_tick, schedule_entries
from worker_service.settings.cron_schedules import EXAMPLE, cron_every

_COLUMNS = (
    *("NAME", "WHAT", "WHEN", "ZONE", "OWNER", "MADE IN"),
    *("NEXT (UTC)", "LAST (UTC)", "STARTED", "STATE", "FOUND", "ERROR"),
)
_DROP_FIRST = ("ZONE", "OWNER", "MADE IN", "FOUND", "ERROR")


_name_argument = click.argument(
    "name",
    shell_complete=name_completer(lambda call, _: [entry.schedule.name for entry in schedule_entries(call.session)]),
)


def _definition_options(function: Function) -> Function:
    return add_options(
        function,
        click.option("--crawl", "folder", metavar="FOLDER", help="Read new and changed files of this folder."),
        click.option("--job", "job_type", metavar="TYPE", help="Enqueue a job of this type."),
        click.option("--payload", metavar="JSON", help="With --job: its payload; {day} and {slot} are filled in."),
        click.option("--every", metavar="LENGTH", help="Interval: 5m, 15m, 1h, 6h, 1d."),
        click.option("--cron", metavar="'M H D M W'", help="Minute, hour, day, month, weekday; or @daily."),
        click.option("--zone", metavar="NAME", help="Time zone of --cron, such as Europe/Berlin."),
        click.option("--priority", type=click.IntRange(1, 10), metavar="1-10", help="1 is the highest. Default: 7."),
        click.option("--missed", type=click.Choice(["skip", "once", "all"]), help="After an outage. Default: once."),
    )  # fmt: skip


def _definition(options: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """Return the former definition, a table [[schedule]], changed by the options that the user gave."""
    definition = dict(former)
    for name in ("zone", "priority", "missed", "cron"):
        if options[name] is not None:
            definition[name] = options[name]
    if options["every"] is not None:
        definition["cron"] = cron_every(options["every"])
    folder, job_type, payload = options["folder"], options["job_type"], options["payload"]
    # A schedule starts only one of crawl, job and batch.
    if folder is not None:
        definition = {key: value for key, value in definition.items() if key not in ("job", "batch")}
        definition["crawl"] = folder if "://" in folder else path_to_text(absolute(folder))
    if job_type is not None or payload is not None:
        definition = {key: value for key, value in definition.items() if key not in ("crawl", "batch")}
        job = dict(definition.get("job", {}))
        job["type"] = job_type or job.get("type")
        if payload:
            job["payload"] = _parse_payload(payload)
        definition["job"] = job
    if "cron" not in definition:
        raise BadInput("say when: --every 15m, or --cron '0 6 * * 1-5'")
    return definition


def _parse_payload(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"--payload is not JSON: {error}") from None


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill schedules
    pagemill schedules ls --json

    List the schedules: what each one starts, its next and last run, and the state of the last job.
    """
    listed = operations.list_schedules(call.session)
    note = "there are no schedules; to make one: pagemill schedules add nightly --crawl /srv/reports --every 1h"
    call.show_items(listed, _COLUMNS, _schedule_cells, note_if_empty=note, drop_first=_DROP_FIRST)
    if call.as_json:
        return
    for schedule in listed:
        if schedule.trouble is not None:
            output.note(schedule.trouble)
    if any(schedule.is_waiting for schedule in listed):
        output.note(f"no timer runs the schedules: {operations.HOW_TO_RUN_TICKS}")


@verb
@click.argument("name")
@_definition_options
@click.option("--owner", default="", metavar="NAME", help="Owner of what it starts.")
def add(call: Invocation, name: str, owner: str, **options: Any) -> None:
    """\b
    pagemill schedules add reports --crawl /srv/reports --every 15m --owner alice
    pagemill schedules add nightly --job nightly_report --cron '30 2 * * *' --zone Europe/Berlin

    Make a schedule: each time, it reads what is new in a folder, or adds a job. A running daemon starts it.
    """
    _show(call, operations.add_schedule(call.session, name, _definition(options, {}), owner=owner))


@verb
@_name_argument
@_definition_options
def change(call: Invocation, name: str, **options: Any) -> None:
    """\b
    pagemill schedules change reports --every 1h

    Change a schedule. Other options keep their values. A schedule of the settings file is changed there.
    """
    definition_by_name = {schedule.name: schedule.definition for schedule in operations.list_schedules(call.session)}
    former = definition_by_name.get(name)
    # Without a definition, the schedule is unknown or in the settings file, and `change_schedule` refuses the change.
    definition = _definition(options, former) if former else {}
    _show(call, operations.change_schedule(call.session, name, definition))


@verb
@_name_argument
def rm(call: Invocation, name: str) -> None:
    """\b
    pagemill schedules rm reports

    Remove a schedule. Jobs that it has started stay. `pagemill undo` brings it back.
    """
    operations.remove_schedule(call.session, name)
    call.show_result({"removed": name}, f"removed schedule {name}; to bring it back: pagemill undo")


@verb
@_name_argument
def pause(call: Invocation, name: str) -> None:
    """\b
    pagemill schedules pause reports

    Start nothing until `pagemill schedules resume`. What is missed meanwhile is not made up for.
    """
    _show(call, operations.pause_schedule(call.session, name))


@verb
@_name_argument
def resume(call: Invocation, name: str) -> None:
    """\b
    pagemill schedules resume reports

    Run a paused schedule again.
    """
    _show(call, operations.resume_schedule(call.session, name))


@verb
def tick(call: Invocation) -> int:
    """\b
    pagemill schedules tick
    * * * * *  pagemill schedules tick       # in a crontab, if there is no systemd

    Start what is due, and send due notifications. Several ticks may run at once: each slot starts its job once.
    """
    tick_result = run_tick(call.session)
    if not call.print_if_json(tick_result):
        for started in tick_result.items:
            live = ", which is already live" if started.existing else ""
            slot = output.whole_seconds(started.slot)
            output.show(f"{started.schedule}: {slot} UTC: {_title_of_run(started)}{live}")
        for missed in tick_result.missed:
            output.note(missed.sentence)
        for trouble in tick_result.troubles:
            output.note(trouble.why)
    return 1 if tick_result.troubles else 0


@verb
@_name_argument
def run_now(call: Invocation, name: str) -> None:
    """\b
    pagemill schedules run-now nightly

    Start a schedule now, and print the id of its job, or batch:7. Its next slot does not change.
    """
    started = operations.start_schedule_now(call.session, name)
    if call.print_if_json(started):
        return
    output.show(str(started.job_id) if started.batch_id is None else f"batch:{started.batch_id}")
    if started.existing:
        output.note(f"nothing was added: job {started.job_id} already does this")


@verb
def example(call: Invocation) -> None:
    """\b
    pagemill schedules example
    pagemill schedules example >> /etc/pagemill/pagemill.toml

    Print two example schedules for the settings file.
    """
    if not call.print_if_json({"toml": EXAMPLE}):
        output.show_text(EXAMPLE)


schedules = DefaultVerbGroup("schedules", ls, add, change, rm, pause, resume, run_now, tick, example)


def _show(call: Invocation, schedule: operations.ScheduleState) -> None:
    next_start = f"next {output.whole_seconds(schedule.next_at) or 'never'} UTC"
    if schedule.paused_at:
        next_start = "paused"
    when = schedule.when[:1].lower() + schedule.when[1:]
    call.show_result(schedule, f"{schedule.name}: {when} ({schedule.zone}), {schedule.what}; {next_start}")


def _title_of_run(run: StartedSchedule | operations.ScheduleState) -> str:
    return f"job {run.job_id}" if run.batch_id is None else f"batch {run.batch_id}"


def _schedule_cells(schedule: operations.ScheduleState) -> tuple[object, ...]:
    has_run = schedule.job_id is not None or schedule.batch_id is not None
    job = schedule.job
    if job is not None:
        state = state_of(job)
    elif schedule.batch is not None:
        state = schedule.batch.state
    else:
        # The job or batch of the last run may have been deleted.
        state = "gone" if has_run else ""
    next_start = "paused" if schedule.paused_at else output.whole_minutes(schedule.next_at or "never")
    last_start = output.whole_minutes(schedule.last_slot or schedule.last_at or "")
    return (
        schedule.name, schedule.what, schedule.when, schedule.zone, schedule.owner or None,
        "settings" if schedule.definition is None else "database", next_start, last_start,
        _title_of_run(schedule) if has_run else None, state, job and job.progress_message, job and job.error_code,
    )  # fmt: skip
