"""Options of `add` and `reindex`: how to read documents, and with which password."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from job_handlers.reading.reading_settings import QUALITIES
from job_handlers.reading.requests import ReadOptions
from worker_service.cli import output
from worker_service.cli.context import Function, Invocation
from worker_service.services import enqueue
from worker_service.services.batches import PRIORITY

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
    """Give a verb the reading options. Its function gets them as one object of this type.

    The verb itself declares the options for further fields of a subclass.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(call: Invocation, *arguments: Any, **values: Any) -> Any:
            fields = [name for name in options_type.__struct_fields__ if name in values]
            options = options_type(**{name: values.pop(name) for name in fields})
            for action in options.actions():
                enqueue.check_action_payload(call.session, action)
            warnings = enqueue.missing_capability_warnings(call.session, options.reading_settings())
            for sentence in [*warnings, *enqueue.unknown_type_warnings(call.session, options.actions())]:
                output.note(sentence)
            return function(call, *arguments, options=options, **values)

        for option in reversed(_READ_OPTIONS):
            option(run)
        return run

    return decorate
