"""`pagemill pause` and `unpause`: start no more jobs of a type, of an owner, or at all."""

from __future__ import annotations

import click

from worker_service.clock import as_text
from worker_service.commands import output
from worker_service.commands.desk import Desk, Function, completes, completes_type, verb
from worker_service.errors import Refused


def _scope_options(function: Function) -> Function:
    click.option("--all", "everything", is_flag=True, help="All jobs.")(function)
    click.option("--owner", metavar="NAME", shell_complete=completes("owner"), help="The jobs of this owner.")(function)
    return click.argument("job_type", metavar="[TYPE]", required=False, shell_complete=completes_type)(function)


@verb
@_scope_options
@click.option("--for", "length", metavar="LENGTH", help="Until this long from now: 1h, 30m. Else until unpaused.")
@click.option("--reason", metavar="TEXT", help="Shown to everybody who asks why.")
def pause(
    desk: Desk, job_type: str | None, owner: str | None, everything: bool, length: str | None, reason: str | None
) -> None:
    """\b
    pagemill pause ocr_pages
    pagemill pause ocr_pages --for 1h --reason "disk is being changed"
    pagemill pause --owner alice
    pagemill pause --all

    Start no more jobs of a type, of an owner, or at all. What runs goes on; what comes waits.
    """
    scope, name = _scope(job_type, owner, everything)
    queue = desk.queue
    until = queue.pause(scope, name, length=length, reason=reason)
    if desk.as_json:
        ends = None if until is None else output.iso(as_text(until))
        output.show_json({"scope": scope, "name": name, "until": ends, "reason": reason})
        return
    ends_at = "until it is unpaused" if until is None else f"until {output.seconds(as_text(until))} UTC"
    output.show(f"paused {_title(scope, name)} {ends_at}")
    column = {"type": "job_type", "owner": "owner"}.get(scope)
    if column is not None and name not in queue.store.reading.names(column, name):
        output.say(f"none of the newest jobs is of {_title(scope, name)}: is it spelled as pagemill ls shows it?")


@verb
@_scope_options
def unpause(desk: Desk, job_type: str | None, owner: str | None, everything: bool) -> None:
    """\b
    pagemill unpause ocr_pages
    pagemill unpause --owner alice
    pagemill unpause --all

    Lift a pause. Each pause is lifted by itself: --all lifts the pause of everything, not the pause of a type.
    """
    scope, name = _scope(job_type, owner, everything)
    store = desk.queue.store
    if not store.steering.unpause(scope, name):
        paused = ", ".join(_title(pause.scope, pause.name) for pause in store.reading.pauses()) or "nothing"
        raise Refused(f"{_title(scope, name)} was not paused; paused: {paused}")
    if desk.as_json:
        output.show_json({"scope": scope, "name": name})
    else:
        output.show(f"unpaused {_title(scope, name)}")


def _scope(job_type: str | None, owner: str | None, everything: bool) -> tuple[str, str]:
    given = [("type", job_type)] * bool(job_type) + [("owner", owner)] * bool(owner) + [("all", "")] * everything
    if len(given) != 1:
        raise click.UsageError("say what: a TYPE, or --owner NAME, or --all", click.get_current_context())
    scope, name = given[0]
    return scope, name or ""


def _title(scope: str, name: str) -> str:
    return "everything" if scope == "all" else f"{scope} {name}"
