"""`pagemill token`: tokens for programs, and one-time links that sign a browser in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from worker_service.cli import group, output
from worker_service.cli.context import Function, Invocation, completes, completions, verb
from worker_service.jobs.tokens import Power
from worker_service.services import server_address
from worker_service.services import tokens as operations

_OWNER = "Only the things of this owner can be seen with it."
_SCOPE = "What it is good for; each has those before it."


def _for(default: str) -> Callable[[Function], Function]:
    def options(function: Function) -> Function:
        click.option("--until", metavar="TIME", help="How long it is good: 90d, or a time.")(function)
        click.option("--owner", metavar="NAME", shell_complete=completes("owner"), help=_OWNER)(function)
        scopes = click.Choice([one.value for one in Power])
        return click.option("--scope", type=scopes, default=default, show_default=True, help=_SCOPE)(function)

    return options


@verb
@click.argument("name")
@_for("read")
def make(call: Invocation, name: str, scope: str, owner: str | None, until: str | None) -> None:
    """\b
    pagemill token make grafana
    pagemill token make scanner --scope operate --owner alice --until 90d
    curl -H "Authorization: Bearer $(cat token)" http://127.0.0.1:8470/api/jobs

    Make a token and print it. It is shown this once: the database keeps a digest.

    read: look at everything. operate: enqueue, upload, cancel, retry and so on. admin: the rest, such as to undo what
    others did.
    """
    made = operations.create_token(call.session, name, [Power(scope)], owner=owner, until=until)
    if call.printed_json({"id": made.id, "name": made.name, "token": made.word, "until": made.until}):
        return
    output.show(made.word)
    output.say("shown this once: keep it where only its user can read it")


@verb
@click.argument("name", required=False)
@_for("admin")
def link(call: Invocation, name: str | None, scope: str, owner: str | None, until: str | None) -> None:
    """\b
    pagemill token link
    pagemill token link bob --scope operate --owner bob --until 1d

    Print a link that signs one browser in, once, within ten minutes: yours, or a colleague's under the name NAME. The
    browser stays signed in for a week.
    """
    made = operations.create_link(call.session, name, [Power(scope)], owner=owner, until=until)
    there = server_address.address(call.settings)
    # A proxy's address is the proxy's, wherever we listen.
    base = call.settings.web_address if there is None or call.settings.web_urls else there
    address = f"{base}/session?link={made.word}"
    if call.printed_json({"id": made.id, "name": made.name, "link": address, "until": made.until}):
        return
    output.show(address)
    if there is None:
        output.say("nothing serves there yet: pagemill serve")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill token ls

    List tokens, unused links, and browsers that are signed in.
    """
    found = operations.list_tokens(call.session)
    if call.printed_json({"items": found}):
        return
    if not found:
        output.say("no tokens yet: `pagemill token make NAME` makes one, `pagemill token link` signs a browser in")
        return
    output.show_table(
        ("ID", "KIND", "NAME", "SCOPES", "OWNER", "MADE", "BY", "USED", "UNTIL"),
        [
            (one.id, one.kind, one.name, one.scopes, one.owner or "", one.made_at[:16], one.made_by,
             (one.used_at or "")[:16], (one.until or "")[:16])
            for one in found
        ],
        gives_up=("NAME", "BY"),
    )  # fmt: skip


def _complete(ctx: click.Context, _: click.Parameter, begun: str) -> Sequence[Any]:
    names = completions(ctx, lambda call: [one.name for one in operations.list_tokens(call.session)])
    return sorted({name for name in names if name.startswith(begun)})


@verb
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_complete)
def rm(call: Invocation, names: tuple[str, ...]) -> None:
    """\b
    pagemill token rm grafana
    pagemill token rm 12

    Remove tokens by name, or anything that `pagemill token ls` shows by its id. Browsers that signed in with it are
    signed out at once.
    """
    removed = operations.remove_tokens(call.session, names)
    if not call.printed_json({"removed": removed}):
        output.say(f"removed: {removed}")


token = group(
    "token",
    "\b\npagemill token make grafana\npagemill token link\npagemill token ls\npagemill token rm grafana\n\n"
    "Tokens for programs, and one-time links that sign a browser in.",
    *(make, link, ls, rm),
)
