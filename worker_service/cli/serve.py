"""`pagemill serve`: serve the web page and the HTTP API."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from worker_service.cli import output
from worker_service.cli.context import Invocation, verb
from worker_service.settings.config import Settings
from worker_service.settings.value_types import LISTEN


@verb
@click.option(
    "--listen", metavar="HOST:PORT", help="Address, or path of a Unix socket. Default: the setting web_listen."
)
def serve(call: Invocation, listen: str | None) -> int:
    """\b
    pagemill serve
    pagemill serve --listen 127.0.0.1:9000
    pagemill serve --listen /run/pagemill/web.sock

    Serve the web page and the HTTP API until stopped. Starting or stopping it does not affect jobs.

    On a terminal, it prints a link that signs one browser in, once, within ten minutes; `pagemill token link` prints
    another. Programs need a token: `pagemill token make NAME`.
    """
    from worker_service.web.app import serve as serve_web

    changed_settings: dict[str, Any] = {}
    if listen is not None:
        changed_settings["web_listen"] = LISTEN.read(listen, "--listen", Path.cwd())
    if call.as_json:
        changed_settings["log_format"] = "json"
    settings = replace(call.settings, values={**call.settings.values, **changed_settings})
    return serve_web(settings, lambda: _print_address_and_close(call, settings))


def _print_address_and_close(call: Invocation, settings: Settings) -> None:
    """Print the sign-in link on a terminal only: elsewhere it may land in a log. The server has its own session."""
    from worker_service.services import tokens

    address = settings.web_address
    if output.is_terminal(sys.stdout):
        address += f"/session?link={tokens.create_link(call.session).text}"
    call.close()
    output.show(address)
