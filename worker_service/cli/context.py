"""`Invocation` and `verb`, which every verb uses; completion, selectors of jobs, and questions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput, Refused
from worker_service.base.sanitize import harmless
from worker_service.cli import output, refuse_empty_words
from worker_service.jobs.job import Status
from worker_service.jobs.selector import FILTER_COLUMNS, Column, Selector
from worker_service.services.parse import is_id, read_job_reference, read_selector
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings

if TYPE_CHECKING:
    from worker_service.services.session import Session

Function = Callable[..., Any]
T = TypeVar("T")


class Invocation:
    def __init__(self, *, as_json: bool, database: str | None) -> None:
        self.as_json = as_json
        self._database = database

    @functools.cached_property
    def settings(self) -> Settings:
        return load_settings({"database": self._database} if self._database else {})

    @functools.cached_property
    def session(self) -> Session:
        from worker_service.services.session import open_session  # not every verb needs a database

        return open_session(self.settings, on_long_wait=note_lock_wait)

    def print_if_json(self, value: object) -> bool:
        """Print the value as the whole answer if --json was given. Return whether it was."""
        if self.as_json:
            output.show_json(value)
        return self.as_json

    def show_result(self, value: object, *lines: str) -> None:
        """Print the value with --json, otherwise the lines."""
        if not self.print_if_json(value):
            for line in lines:
                output.show(line)

    def show_items(
        self,
        items: Sequence[T],
        headers: Sequence[str],
        row_of: Callable[[T], Sequence[object]],
        *,
        note_if_empty: str = "",
        drop_first: Sequence[str] = (),  # headers of the columns to leave out of a wide table
    ) -> None:
        if self.print_if_json({"items": items}):
            return
        if note_if_empty and not items:
            output.note(note_if_empty)
        else:
            output.show_table(headers, [*map(row_of, items)], drop_first=drop_first)

    def close(self) -> None:
        if "session" in self.__dict__:  # only if it was opened
            self.session.close()


def note_lock_wait(_: float, holder: object) -> None:
    output.note(f"waiting to write: {holder or 'another process'} holds the write lock")


class Verb(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_words(self, ctx, args)
        return super().parse_args(ctx, args)


def verb(function: Function) -> Verb:
    """Return a command. The docstring is its help: examples, an empty line, and text."""

    @functools.wraps(function)
    def run(as_json: bool, database: str | None, **values: Any) -> Any:
        # Users may give both options before the verb, too: pagemill --json ls.
        before_verb = click.get_current_context().find_root().obj or {}
        as_json = as_json or before_verb.get("as_json", False)
        with closing(Invocation(as_json=as_json, database=database or before_verb.get("database"))) as call:
            return function(call, **values)

    click.option("--database", metavar="PATH", type=click.Path(), help="Use this database.")(run)
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(run)
    # Click lists the parameters in reverse. The common options go to the front, so that the help has them at the end.
    params: list[click.Parameter] = run.__click_params__  # type: ignore[attr-defined]
    params[:] = params[-2:] + params[:-2]
    return click.command(function.__name__.replace("_", "-"), cls=Verb, short_help=_first_sentence(function))(run)


def _first_sentence(function: Function) -> str:
    _examples, text = (function.__doc__ or "").split("\n\n")[:2]
    return " ".join(text.split()).split(". ")[0].rstrip(".") + "."


# ── Completion ──────────────────────────────────────────────────────────────────────────────────────────────────


Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def name_completer(list_names: Callable[[Invocation, str], Iterable[str]]) -> Complete:
    """`list_names` gets the prefix, and may return names without it."""

    def complete(ctx: click.Context, _: click.Parameter, prefix: str) -> list[Any]:
        before_verb = ctx.find_root().obj or {}
        database = ctx.params.get("database") or before_verb.get("database")
        # The user is typing, so an error is not shown.
        with suppress(Exception), closing(Invocation(as_json=False, database=database)) as call:
            names = dict.fromkeys(list_names(call, prefix))
            # The shell reads one name per line, so leave out names with control characters.
            return [name for name in names if name and name.startswith(prefix) and name.isprintable()]
        return []

    return complete


def completer(column: str) -> Complete:
    return name_completer(lambda call, prefix: call.session.job_queries.names(column, prefix))


def complete_job_type(ctx: click.Context, param: click.Parameter, prefix: str) -> list[Any]:
    # Types of the workers, of jobs, and installed ones. Without a database, the first two lists are empty.
    completers = (completer("handler"), completer("job_type"), name_completer(_installed_types))
    return sorted({name for complete in completers for name in complete(ctx, param, prefix)})


def _installed_types(call: Invocation, _: str) -> Iterable[str]:
    from worker_service.services.enqueue import installed_types

    return installed_types(call.settings)


def complete_file(_: click.Context, __: click.Parameter, prefix: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    # The shell itself completes an item of this type.
    return [CompletionItem(prefix, type="file")]


# ── Ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class JobId(click.ParamType[int]):
    name = "id"
    complaint = "is not a job id, which is a number as in pagemill ls"
    prefix = ""
    """Word that users may write before the number."""
    lowest_id = 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = str(value).removeprefix(self.prefix).removeprefix("#")
        if not is_id(digits) or int(digits) < self.lowest_id:
            self.fail(f"{value!r} {self.complaint}", param, ctx)
        return int(digits)


class DocumentId(JobId):
    name = "document"
    complaint = "is not a document id, which is a number as in pagemill documents"
    prefix = "document:"


class BatchId(JobId):
    name = "batch"
    complaint = "is not a batch id, which is a number as in pagemill batch ls"
    prefix = "batch:"
    lowest_id = 0


class _JobReference(click.ParamType[str]):
    """The id of a job, or `batch:7` or `document:7` for its jobs."""

    name = "reference"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            read_job_reference(value)
        except BadInput as error:
            self.fail(str(error), param, ctx)
        return str(value)


optional_job_id_argument = click.argument(
    "job_id", metavar="[ID]", required=False, type=JobId(), shell_complete=completer("id")
)


# ── Selectors ───────────────────────────────────────────────────────────────────────────────────────────────────


def _filter_option(column: Column) -> Callable[[Function], Function]:
    is_repeatable = isinstance(getattr(Selector(), column.filter_field), tuple)
    complete = complete_job_type if column.name == "job_type" else completer(column.name)
    return click.option(
        column.flag,
        column.filter_field,
        multiple=is_repeatable,
        type=int if column.is_number else None,
        metavar=column.metavar,
        shell_complete=None if column.is_number else complete,
        help=column.filter_help or None,
    )


def owners_option(noun: str) -> Callable[[Function], Function]:
    return click.option(
        "--owner",
        "owners",
        multiple=True,
        metavar="NAME",
        shell_complete=completer("owner"),
        help=f"Only {noun} of this owner.",
    )


def status_option(statuses: Sequence[str]) -> Callable[[Function], Function]:
    def complete(_: click.Context, __: click.Parameter, prefix: str) -> list[Any]:
        return [str(status) for status in statuses if status.startswith(prefix)]

    return click.option(
        "--status",
        "statuses",
        multiple=True,
        metavar="STATUS",
        shell_complete=complete,
        help=f"{', '.join(statuses[:-1])} or {statuses[-1]}; several separated by commas.",
    )


_SELECTOR_OPTIONS: Sequence[Callable[[Function], Function]] = (
    status_option([*Status]),
    *map(_filter_option, FILTER_COLUMNS),
    click.option("--since", metavar="TIME", help="Created or ended since: 2h or 3d (ago), or a time."),
    click.option("--older-than", metavar="TIME", help="Ended before (live jobs: created before): 30d, or a time."),
    click.option("--match", multiple=True, metavar="payload.KEY=VALUE", help="Jobs with this value in their payload."),
)


def job_selector_options(function: Function) -> Function:
    """Add the ids and options that select jobs. The function gets them as one `Selector`."""

    @functools.wraps(function)
    def run(call: Invocation, **values: Any) -> Any:
        filters = {name: values.pop(name) for name in Selector.__struct_fields__ if name in values}
        return function(call, read_selector(now=wall_clock(), **filters), **values)

    ids = click.argument("ids", metavar="[ID]...", nargs=-1, type=_JobReference(), shell_complete=completer("id"))
    return add_options(run, ids, *_SELECTOR_OPTIONS)


# ── Other options, and questions ────────────────────────────────────────────────────────────────────────────────


def number_option(flag: str, name: str, default: int, help: str) -> Callable[[Function], Function]:
    number = click.IntRange(1, 1000)
    return click.option(flag, name, type=number, default=default, metavar="N", help=f"{help} Default: {default}.")


def add_options(function: Function, *decorators: Callable[[Function], Function]) -> Function:
    """Add options and arguments, in the order in which the help lists them."""
    for decorate in reversed(decorators):
        decorate(function)
    return function


dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")


def confirmation_options(function: Function) -> Function:
    return add_options(function, dry_run_option, click.option("--yes", is_flag=True, help="Do not ask."))


def read_stdin(bytes_max: int) -> bytes:
    # sys.stdin is None if it was closed before the start.
    return sys.stdin.buffer.read(bytes_max) if sys.stdin is not None else b""


def confirm(question: str, *, yes: bool, sample: Sequence[str] = (), number: int | None = None) -> None:
    """Raise `Refused` unless the user agrees: by typing `number`, or y if there is none."""
    if yes:
        return
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stderr)):
        raise Refused(f"{question} Nothing was done, because this is not a terminal", "add --yes, or --dry-run")
    for line in sample:
        output.note(line)
    question = harmless(question)
    if number is None:
        has_agreed = click.confirm(question, err=True)
    else:
        answer = click.prompt(f"{question} Type {number} to continue", default="", show_default=False, err=True)
        has_agreed = str(answer) == str(number)
    if not has_agreed:
        raise Refused("nothing was done")
