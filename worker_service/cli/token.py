"""`pagemill token`: make, list and delete API tokens and sign-in links."""

from __future__ import annotations

from collections.abc import Callable

import click

from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Function, Invocation, add_options, completer, name_completer, verb
from worker_service.cli.output import whole_minutes
from worker_service.jobs.tokens import TokenScope
from worker_service.services import server_address
from worker_service.services import tokens as operations

_OWNER_HELP = "Give access to this owner's jobs and documents only."
_SCOPE_HELP = "What it allows; each scope includes the ones before it."


def _access_options(default_scope: str, until_help: str) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        scopes = click.Choice([scope.value for scope in TokenScope])
        return add_options(
            function,
            click.option("--scope", type=scopes, default=default_scope, show_default=True, help=_SCOPE_HELP),
            click.option("--owner", metavar="NAME", shell_complete=completer("owner"), help=_OWNER_HELP),
            click.option("--until", metavar="TIME", help=f"When the access ends: 90d, or a time. {until_help}"),
        )

    return decorate


@verb
@click.argument("name")
@_access_options("read", "Default: never.")
def make(call: Invocation, name: str, scope: str, owner: str | None, until: str | None) -> None:
    """\b
    pagemill token make grafana
    pagemill token make scanner --scope operate --owner alice --until 90d
    curl -H "Authorization: Bearer $(cat token)" http://127.0.0.1:8470/api/jobs

    Create a token for a program and print it. It is printed only once; the database has its digest.

    Scopes: read sees everything; operate also enqueues, uploads, cancels and retries; admin does the rest, such as undo
    other users' actions.
    """
    token = operations.create_token(call.session, name, [TokenScope(scope)], owner=owner, until=until)
    if call.print_if_json({"id": token.id, "name": token.name, "token": token.text, "until": token.until}):
        return
    output.show(token.text)
    output.note("this token is not shown again; store it where only its user can read it")


@verb
@click.argument("name", required=False)
@_access_options("admin", "Then the browser is signed out, if not earlier.")
def link(call: Invocation, name: str | None, scope: str, owner: str | None, until: str | None) -> None:
    """\b
    pagemill token link
    pagemill token link bob --scope operate --owner bob --until 1d

    Print a link that signs one browser in, once, within ten minutes: your own, or that of a colleague called NAME. The
    browser stays signed in for a week.
    """
    token = operations.create_link(call.session, name, [TokenScope(scope)], owner=owner, until=until)
    running_at = server_address.address(call.settings)
    # With `web_urls`, the server is behind a proxy, and `web_address` is the address of the proxy.
    base = call.settings.web_address if running_at is None or call.settings.web_urls else running_at
    url = f"{base}/session?link={token.text}"
    if call.print_if_json({"id": token.id, "name": token.name, "link": url, "until": token.until}):
        return
    output.show(url)
    if running_at is None:
        output.note("the server is not running: pagemill serve")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill token ls

    List tokens, unused links, and signed-in browsers.
    """
    call.show_items(
        operations.list_tokens(call.session),
        ("ID", "KIND", "NAME", "SCOPES", "OWNER", "CREATED", "BY", "USED", "EXPIRES"),
        lambda token: (
            token.id, token.kind, token.name, token.scopes, token.owner or "", whole_minutes(token.made_at),
            token.made_by, whole_minutes(token.used_at or ""), whole_minutes(token.until or ""),
        ),
        note_if_empty="there are no tokens: pagemill token make NAME; to sign a browser in: pagemill token link",
        drop_first=("NAME", "BY"),
    )  # fmt: skip


_complete_token = name_completer(lambda call, _: [token.name for token in operations.list_tokens(call.session)])


@verb
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_complete_token)
def rm(call: Invocation, names: tuple[str, ...]) -> None:
    """\b
    pagemill token rm grafana
    pagemill token rm 12

    Delete tokens by name, or anything in `pagemill token ls` by id. Browsers that signed in with it are signed out.
    """
    removed = operations.remove_tokens(call.session, names)
    if not call.print_if_json({"removed": removed}):
        output.note(f"removed: {removed}")


token = VerbGroup(
    "token",
    "\b\npagemill token make grafana\npagemill token link\npagemill token ls\npagemill token rm grafana\n\n"
    "Manage tokens for programs, and one-time links that sign a browser in.",
    *(make, link, ls, rm),
)
