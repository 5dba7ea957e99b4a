"""`pagemill pause` and `unpause`: start no more jobs of a type, of an owner, or at all."""

from __future__ import annotations

import click

from worker_service.clock import as_text
from worker_service.commands import output
from worker_service.commands.desk import Desk, Function, completes, completes_type, verb
from worker_service.operations import steer
from worker_service.operations.objects import iso
from worker_service.operations.overview import title_of_pause


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
    paused = steer.pause(desk.session, scope, name, length=length, reason=reason)
    until = paused.until
    if desk.as_json:
        ends = None if until is None else iso(as_text(until))
        output.show_json({"scope": scope, "name": name, "until": ends, "reason": reason})
        return
    ends_at = "until it is unpaused" if until is None else f"until {output.seconds(as_text(until))} UTC"
    output.show(f"paused {title_of_pause(scope, name)} {ends_at}")
    if not paused.is_known:
        output.say(
            f"none of the newest jobs is of {title_of_pause(scope, name)}: is it spelled as pagemill ls shows it?"
        )


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
    steer.unpause(desk.session, scope, name)
    if desk.as_json:
        output.show_json({"scope": scope, "name": name})
    else:
        output.show(f"unpaused {title_of_pause(scope, name)}")


def _scope(job_type: str | None, owner: str | None, everything: bool) -> tuple[str, str]:
    given = [("type", job_type)] * bool(job_type) + [("owner", owner)] * bool(owner) + [("all", "")] * everything
    if len(given) != 1:
        raise click.UsageError("say what: a TYPE, or --owner NAME, or --all", click.get_current_context())
    scope, name = given[0]
    return scope, name or ""
