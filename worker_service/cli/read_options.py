"""Options of `add` and `reindex`: how to read documents, and with which password."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from job_handlers.reading.reading_settings import QUALITIES
from job_handlers.reading.requests import ReadOptions
from worker_service.base.errors import BadInput
from worker_service.base.path_text import display_path
from worker_service.cli import output
from worker_service.cli.context import Function, Invocation, add_options
from worker_service.jobs.job import NewJob
from worker_service.jobs.library import Document
from worker_service.services import enqueue, passwords
from worker_service.services.batches import PRIORITY
from worker_service.services.passwords import DocumentPassword

force_option = click.option("--force", is_flag=True, help="Read files again that were read and have not changed.")
priority_option = click.option(
    "--priority",
    type=click.IntRange(1, 10),
    metavar="1-10",
    help=f"1 is the highest. Also applies to follow-up jobs. Default: {PRIORITY}.",
)
_READ_OPTIONS = (
    click.option("--as-usual", is_flag=True, help="Forget the document's remembered reading settings."),
    click.option(
        "--lang",
        "languages",
        multiple=True,
        metavar="CODE",
        help="OCR language, such as eng+deu. Default: detected for each page.",
    ),
    click.option("--quality", type=click.Choice(QUALITIES), help="OCR quality; better is slower."),
    click.option("--force-ocr", is_flag=True, help="Run OCR on pages with a good text layer, too."),
    click.option(
        "--password-file",
        metavar="FILE",
        help="Read the password from this file or credential. All files get it.",
    ),
    click.option("--then", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when a document is read."),
    click.option("--on-failure", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when reading fails."),
)


def read_options(options_type: type[ReadOptions]) -> Callable[[Function], Function]:
    """Add the reading options to a verb, which gets them as `options`.

    The verb itself declares the options for further fields of a subclass.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(call: Invocation, *arguments: Any, **values: Any) -> Any:
            fields = [name for name in options_type.__struct_fields__ if name in values]
            options = options_type(**{name: values.pop(name) for name in fields})
            for action in options.actions():
                enqueue.check_action_payload(call.session, action)
            warnings = enqueue.uninstalled_choice_warnings(call.session, options.reading_settings())
            for sentence in [*warnings, *enqueue.unknown_type_warnings(call.session, options.actions())]:
                output.note(sentence)
            return function(call, *arguments, options=options, **values)

        return add_options(run, *_READ_OPTIONS)

    return decorate


# ── The password of locked PDFs ─────────────────────────────────────────────────────────────────────────────────


class TypedPassword(Struct, frozen=True):
    text: str
    is_kept: bool
    """Keep it in the workspace after the PDF is read."""

    def save(self, call: Invocation, documents: Iterable[Document | NewJob]) -> None:
        for document in documents:
            password = DocumentPassword(
                document.platform, document.owner, document.source_key or "", self.text, self.is_kept
            )
            passwords.save(call.session.settings.workspace, password)


def password_options(function: Function) -> Function:
    """Add --password and --remember-password, and let --password-file name a file as well as a credential.

    The function gets the password as `typed_password`. The name of a credential stays in `password_file`.
    """

    @functools.wraps(function)
    def run(call: Invocation, *arguments: Any, password: bool, remember: bool, **values: Any) -> Any:
        text = _ask_for_password() if password else _password_in_file(values["password_file"])
        if text is None and remember:
            raise BadInput("there is no password to remember", "give --password, or --password-file FILE")
        typed_password = None
        if text is not None:
            typed_password = TypedPassword(passwords.check(text), remember)
            values["password_file"] = None
        return function(call, *arguments, typed_password=typed_password, **values)

    return add_options(
        run,
        click.option("--password", is_flag=True, help="Type the password of locked PDFs. All files get it."),
        click.option("--remember-password", "remember", is_flag=True, help="Keep the password after the PDF is read."),
    )


def _ask_for_password() -> str:
    if not sys.stdin.isatty():
        raise BadInput("--password asks for the password, and there is no terminal", "use --password-file FILE")
    return str(click.prompt("Password", hide_input=True, err=True))


def _password_in_file(name: str | None) -> str | None:
    """Return None unless there is a file of this name: it may be the name of a credential."""
    if name == "-":
        return sys.stdin.readline()
    if name is None or not os.access(name, os.F_OK):
        return None
    path = Path(name)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{display_path(path)} cannot be read as a password: {error}") from error
