"""`pagemill schedules`: make, change and run schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from job_handlers.reading.find_files import absolute
from worker_service.base.errors import BadInput
from worker_service.base.path_text import written
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import Function, Invocation, name_completer, verb
from worker_service.services import schedules as operations
from worker_service.services.jobs import state_of
from worker_service.settings.cron_schedules import EXAMPLE, cron_every

_COLUMNS = (
    *("NAME", "WHAT", "WHEN", "ZONE", "OWNER", "MADE IN"),
    *("NEXT (UTC)", "LAST (UTC)", "STARTED", "STATE", "FOUND", "ERROR"),
)


_name_argument = click.argument(
    "name",
    shell_complete=name_completer(lambda call: [one.schedule.name for one in operations.known_schedules(call.session)]),
)


def _definition_options(function: Function) -> Function:
    for option in reversed((
        click.option("--crawl", "folder", metavar="FOLDER", help="Read new and changed files of this folder."),
        click.option("--job", "job_type", metavar="TYPE", help="Enqueue a job of this type."),
        click.option("--payload", metavar="JSON", help="With --job: its payload; {day} and {slot} are filled in."),
        click.option("--every", metavar="LENGTH", help="Interval: 5m, 15m, 1h, 6h, 1d."),
        click.option("--cron", metavar="'M H D M W'", help="Minute, hour, day, month, weekday; or @daily."),
        click.option("--zone", metavar="NAME", help="Time zone of --cron, such as Europe/Berlin."),
        click.option("--priority", type=click.IntRange(1, 10), metavar="1-10", help="1 is the highest. Default: 7."),
        click.option("--missed", type=click.Choice(["skip", "once", "all"]), help="After an outage. Default: once."),
    )):  # fmt: skip
        option(function)
    return function


def _definition(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    definition = dict(before)
    for name in ("zone", "priority", "missed", "cron"):
        if given[name] is not None:
            definition[name] = given[name]
    if given["every"] is not None:
        definition["cron"] = cron_every(given["every"])
    if given["folder"] is not None:
        definition = {key: value for key, value in definition.items() if key not in ("job", "batch")}
        definition["crawl"] = given["folder"] if "://" in given["folder"] else written(absolute(given["folder"]))
    if given["job_type"] is not None or given["payload"] is not None:
        definition = {key: value for key, value in definition.items() if key not in ("crawl", "batch")}
        job = {**definition.get("job", {}), "type": given["job_type"] or definition.get("job", {}).get("type")}
        definition["job"] = job | ({"payload": _json(given["payload"])} if given["payload"] else {})
    if "cron" not in definition:
        raise BadInput("say when: --every 15m, or --cron '0 6 * * 1-5'")
    return definition


def _json(text: str) -> object:
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
    found = operations.list_schedules(call.session)
    empty = "there are no schedules; to make one: pagemill schedules add nightly --crawl /srv/reports --every 1h"
    call.show_items(
        found, _COLUMNS, _row, note_if_empty=empty, drop_first=("ZONE", "OWNER", "MADE IN", "FOUND", "ERROR")
    )
    for one in found if not call.as_json else ():
        if one.trouble is not None:
            output.note(one.trouble)
    if any(one.is_waiting for one in found) and not call.as_json:
        output.note(f"no timer runs the schedules: {operations.HOW_TO_RUN_TICKS}")


@verb
@click.argument("name")
@_definition_options
@click.option("--owner", default="", metavar="NAME", help="Owner of what it starts.")
def add(call: Invocation, name: str, owner: str, **given: Any) -> None:
    """\b
    pagemill schedules add reports --crawl /srv/reports --every 15m --owner alice
    pagemill schedules add nightly --job nightly_report --cron '30 2 * * *' --zone Europe/Berlin

    Make a schedule: each time, it reads what is new in a folder, or adds a job. A running daemon starts it.
    """
    _show(call, operations.add_schedule(call.session, name, _definition(given, {}), owner=owner))


@verb
@_name_argument
@_definition_options
def change(call: Invocation, name: str, **given: Any) -> None:
    """\b
    pagemill schedules change reports --every 1h

    Change a schedule. What is not given stays. Those of the settings file are changed there.
    """
    before = next((one.definition for one in operations.list_schedules(call.session) if one.name == name), None)
    definition = _definition(given, before) if before else {}
    _show(call, operations.change_schedule(call.session, name, definition))


@verb
@_name_argument
def rm(call: Invocation, name: str) -> None:
    """\b
    pagemill schedules rm reports

    Remove a schedule. Jobs that it has started stay. `pagemill undo` brings it back.
    """
    operations.remove_schedule(call.session, name)
    if not call.print_if_json({"removed": name}):
        output.show(f"removed schedule {name}; to bring it back: pagemill undo")


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
    done = operations.run_tick(call.session)
    if not call.print_if_json(done):
        for one in done.items:
            is_there = ", which is already live" if one.existing else ""
            output.show(f"{one.schedule}: {output.whole_seconds(one.slot)} UTC: {_title_of_run(one)}{is_there}")
        for missed in done.missed:
            output.note(missed.sentence)
        for trouble in done.troubles:
            output.note(trouble.why)
    return 1 if done.troubles else 0


@verb
@_name_argument
def run_now(call: Invocation, name: str) -> None:
    """\b
    pagemill schedules run-now nightly

    Start a schedule now, and print the id of its job, or batch:7. Its next slot does not change.
    """
    begun = operations.start_schedule_now(call.session, name)
    if call.print_if_json(begun):
        return
    output.show(str(begun.job_id) if begun.batch_id is None else f"batch:{begun.batch_id}")
    if begun.existing:
        output.note(f"nothing was added: job {begun.job_id} already does this")


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


def _show(call: Invocation, one: operations.ScheduleState) -> None:
    if call.print_if_json(one):
        return
    coming = "paused" if one.paused_at else f"next {output.whole_seconds(one.next_at) or 'never'} UTC"
    output.show(f"{one.name}: {one.when[:1].lower()}{one.when[1:]} ({one.zone}), {one.what}; {coming}")


def _title_of_run(one: operations.StartedSchedule | operations.ScheduleState) -> str:
    return f"job {one.job_id}" if one.batch_id is None else f"batch {one.batch_id}"


def _row(one: operations.ScheduleState) -> tuple[object, ...]:
    has_begun = one.job_id is not None or one.batch_id is not None
    state, found, error = "gone" if has_begun else "", None, None
    if one.job is not None:
        state, found, error = state_of(one.job), one.job.progress_message, one.job.error_code
    elif one.batch is not None:
        state = one.batch.state
    last, coming = (one.last_slot or one.last_at or "")[:16], (one.next_at or "never")[:16]
    began = _title_of_run(one) if has_begun else None
    made_in = "settings" if one.definition is None else "database"
    if one.paused_at:
        coming = "paused"
    return (
        one.name, one.what, one.when, one.zone, one.owner or None, made_in, coming, last, began, state, found, error,
    )  # fmt: skip
