"""Options for the password of locked PDFs."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.base.path_text import legible
from worker_service.cli.context import Function, Invocation
from worker_service.jobs.job import NewJob
from worker_service.services import passwords
from worker_service.services.passwords import DocumentPassword


class TypedPassword(Struct, frozen=True):
    text: str
    is_kept: bool

    def save(self, call: Invocation, documents: Iterable[tuple[str, str, str]]) -> None:
        """Store the password for each (platform, owner, source key)."""
        for key in documents:
            passwords.save(call.session.settings.workspace, DocumentPassword(*key, self.text, self.is_kept))

    def save_for_files(self, call: Invocation, jobs: Sequence[NewJob]) -> None:
        if any(job.job_type != "download" or job.platform != "local" for job in jobs):
            raise BadInput(
                "a password opens files, not what a folder or an address leads to",
                "add it without a password, then give the password of each document: pagemill reindex 7 --password",
            )
        self.save(call, [(job.platform, job.owner, job.source_key or "") for job in jobs])


def password_options(function: Function) -> Function:
    """Add --password and --remember-password, and let --password-file take a file as well as a credential."""

    @functools.wraps(function)
    def run(call: Invocation, *arguments: Any, password: bool, remember: bool, **values: Any) -> Any:
        text, name = None, values["password_file"]
        if password:
            if not sys.stdin.isatty():
                raise BadInput("--password asks for the password, and there is no terminal", "use --password-file FILE")
            text = click.prompt("Password", hide_input=True, err=True)
        elif name is not None and (name == "-" or os.access(name, os.F_OK)):
            text = sys.stdin.readline() if name == "-" else _read_password(Path(name))
        if text is None and remember:
            raise BadInput("there is no password to remember", "give --password, or --password-file FILE")
        typed = None if text is None else TypedPassword(passwords.check(text), remember)
        return function(call, *arguments, typed=typed, **values | ({} if typed is None else {"password_file": None}))

    asks = click.option("--password", is_flag=True, help="Type the password of locked PDFs. All files get it.")
    keeps = click.option(
        "--remember-password",
        "remember",
        is_flag=True,
        help="Keep the password after the PDF is read.",
    )
    return asks(keeps(run))


def _read_password(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{legible(path)} cannot be read as a password: {error}") from error
