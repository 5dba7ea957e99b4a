"""`pagemill notify`: who is told what, and a message to try it."""

from __future__ import annotations

from typing import Any

import click

from worker_service.cli import group, output
from worker_service.cli.context import Invocation, completions, verb
from worker_service.services import notifications as operations


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill notify ls

    The rules, and how much each has yet to tell: what has not gathered for long enough, or waits for the end of its
    quiet hours.
    """
    rules = operations.list_rules(call.session)
    if call.printed_json({"items": rules}):
        return
    if not rules:
        output.say("nobody is told anything: see [[notify]] in docs/notify.md")
        return
    output.show_table(
        ("NAME", "TO", "WAITING", "WHEN"), [(one.name, one.to, one.waiting, ", ".join(one.when)) for one in rules]
    )


def _complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[Any]:
    names = completions(ctx, lambda call: [one.name for one in call.settings.notify])
    return [name for name in names if name.startswith(begun)]


@verb
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete)
def test(call: Invocation, name: str | None) -> None:
    """\b
    pagemill notify test
    pagemill notify test ops

    Send a message to each address of a rule, or of all of them. It goes the way of every message: as a job, whose
    number is printed; `pagemill wait` tells whether it arrived.
    """
    told = operations.send_test(call.session, name)
    if call.printed_json({"items": told}):
        return
    for one in told:
        output.show(str(one.job_id))


notify = group(
    "notify",
    "\b\npagemill notify ls\npagemill notify test ops\n\n"
    "Who is told what: each [[notify]] of the settings. Daemons tell it, and so does `pagemill schedule tick`.",
    *(ls, test),
)
