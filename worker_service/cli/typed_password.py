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
        """Store the password for each document, named by (platform, owner, source key)."""
        for platform, owner, source_key in documents:
            password = DocumentPassword(platform, owner, source_key, self.text, self.is_kept)
            passwords.save(call.session.settings.workspace, password)

    def save_for_files(self, call: Invocation, jobs: Sequence[NewJob]) -> None:
        if any(job.job_type != "download" or job.platform != "local" for job in jobs):
            raise BadInput(
                "a password opens files, not what a folder or an address leads to",
                "add it without a password, then give the password of each document: pagemill reindex 7 --password",
            )
        self.save(call, [(job.platform, job.owner, job.source_key or "") for job in jobs])


def password_options(function: Function) -> Function:
    """Add --password and --remember-password, and let --password-file take a file as well as a credential.

    The function gets the password as `typed`. The name of a credential stays in `password_file`.
    """

    @functools.wraps(function)
    def run(call: Invocation, *arguments: Any, password: bool, remember: bool, **values: Any) -> Any:
        text = _ask_for_password() if password else _read_password_file(values["password_file"])
        if text is None and remember:
            raise BadInput("there is no password to remember", "give --password, or --password-file FILE")
        typed = None
        if text is not None:
            typed = TypedPassword(passwords.check(text), remember)
            values["password_file"] = None
        return function(call, *arguments, typed=typed, **values)

    click.option("--remember-password", "remember", is_flag=True, help="Keep the password after the PDF is read.")(run)
    return click.option("--password", is_flag=True, help="Type the password of locked PDFs. All files get it.")(run)


def _ask_for_password() -> str:
    if not sys.stdin.isatty():
        raise BadInput("--password asks for the password, and there is no terminal", "use --password-file FILE")
    return str(click.prompt("Password", hide_input=True, err=True))


def _read_password_file(name: str | None) -> str | None:
    """Return None unless there is a file of this name: it may be the name of a credential."""
    if name == "-":
        return sys.stdin.readline()
    return _read_password(Path(name)) if name is not None and os.access(name, os.F_OK) else None


def _read_password(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{legible(path)} cannot be read as a password: {error}") from error
