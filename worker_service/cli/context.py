"""Parts of all verbs: common options, selectors of jobs, completion, and questions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput, Refused
from worker_service.base.sanitize import harmless
from worker_service.cli import output, refuse_empty_words
from worker_service.jobs.job import Status
from worker_service.jobs.selector import CHOSEN_BY, Column, Selector
from worker_service.services.parse import read_job_reference, read_selector
from worker_service.settings.config import Settings, load_settings

if TYPE_CHECKING:
    from worker_service.services.database import Session

Function = Callable[..., Any]
T = TypeVar("T")


class Invocation:
    """One call of a verb."""

    def __init__(self, *, as_json: bool, database: str | None) -> None:
        self.as_json = as_json
        self._database = database
        self._session: Session | None = None

    @functools.cached_property
    def settings(self) -> Settings:
        return load_settings({"database": self._database} if self._database else {})

    @property
    def session(self) -> Session:
        if self._session is None:
            from worker_service.services.database import open_session  # not every verb needs a database

            self._session = open_session(self.settings, on_long_wait=note_lock_wait)
        return self._session

    def print_if_json(self, value: object) -> bool:
        """Print the value as the whole answer and return True if --json was given."""
        if self.as_json:
            output.show_json(value)
        return self.as_json

    def show_items(
        self,
        items: Sequence[T],
        headers: Sequence[str],
        row: Callable[[T], Sequence[object]],
        *,
        empty: str = "",
        gives_up: Sequence[str] = (),
    ) -> None:
        """Print a list as a table, or the sentence `empty`."""
        if self.print_if_json({"items": items}):
            return
        if items or not empty:
            output.show_table(headers, [*map(row, items)], gives_up=gives_up)
        else:
            output.note(empty)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def note_lock_wait(_: float, holder: object) -> None:
    output.note(f"waiting to write: {holder or 'another process'} holds the write lock")


class Verb(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_words(self, ctx, args)
        return super().parse_args(ctx, args)


def verb(function: Function) -> Verb:
    """Make a verb of a function, whose docstring is the help."""

    @functools.wraps(function)
    def run(as_json: bool, database: str | None, **values: Any) -> Any:
        above = click.get_current_context().find_root().obj or {}
        call = Invocation(as_json=as_json or above.get("as_json", False), database=database or above.get("database"))
        try:
            return function(call, **values)
        finally:
            call.close()

    named: Function = click.option("--database", metavar="PATH", type=click.Path(), help="Use this database.")(run)
    named = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(named)
    # The help lists the common options after the verb's own.
    params: list[click.Parameter] = named.__click_params__  # type: ignore[attr-defined]
    params[:] = params[-2:] + params[:-2]
    return click.command(function.__name__.replace("_", "-"), cls=Verb, short_help=_summary(function))(named)


def _summary(function: Function) -> str:
    prose = (function.__doc__ or "").split("\n\n")[1]
    return " ".join(prose.split()).split(". ")[0].rstrip(".") + "."


# ── Completion ──────────────────────────────────────────────────────────────────────────────────────────────────


Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def completer(column: str) -> Complete:
    return lambda ctx, _, begun: complete_quietly(ctx, lambda call: _values(call, begun, column))


def complete_job_type(ctx: click.Context, param: click.Parameter, begun: str) -> list[Any]:
    # There may be no database.
    known = complete_quietly(ctx, lambda call: _values(call, begun, "handler", "job_type"))
    return sorted({*known, *name_completer(_installed_types)(ctx, param, begun)})


def complete_file(_: click.Context, __: click.Parameter, begun: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    # The shell itself completes an item of this type.
    return [CompletionItem(begun, type="file")]


def name_completer(names: Callable[[Invocation], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[Any]:
        return complete_quietly(ctx, lambda call: sorted({name for name in names(call) if name.startswith(begun)}))

    return complete


def _values(call: Invocation, begun: str, *columns: str) -> list[str]:
    return [name for column in columns for name in call.session.reading.names(column, begun)]


def _installed_types(call: Invocation) -> Iterable[str]:
    from worker_service.services.enqueue import installed_types

    return installed_types(call.settings)


def complete_quietly(ctx: click.Context, names: Callable[[Invocation], Sequence[str]]) -> list[str]:
    """Return the names; none after an error, because the user is typing."""
    try:
        above = ctx.find_root().obj or {}
        call = Invocation(as_json=False, database=ctx.params.get("database") or above.get("database"))
        try:
            # The shell reads one name per line, so leave out names with control characters.
            return [name for name in names(call) if name.isprintable() and name]
        finally:
            call.close()
    except Exception:
        return []


# ── Ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class JobId(click.ParamType[int]):
    name = "id"
    sentence = "is not a job id, which is a number as in pagemill ls"
    prefix = ""
    least = 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        word = str(value).removeprefix(self.prefix).removeprefix("#")
        if not (word.isascii() and word.isdigit() and len(word) < 19 and int(word) >= self.least):
            self.fail(f"{value!r} {self.sentence}", param, ctx)
        return int(word)


class DocumentId(JobId):
    name = "document"
    sentence = "is not a document id, which is a number as in pagemill documents"
    prefix = "document:"


class BatchId(JobId):
    name = "batch"
    sentence = "is not a batch id, which is a number as in pagemill batch ls"
    prefix = "batch:"
    least = 0


class _SelectorName(click.ParamType[str]):
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            read_job_reference(value)
        except BadInput as error:
            self.fail(str(error), param, ctx)
        return str(value)


job_or_problem_argument = click.argument(
    "job_id", metavar="[ID]", required=False, type=JobId(), shell_complete=completer("id")
)


# ── Selectors ───────────────────────────────────────────────────────────────────────────────────────────────────


def _column_option(column: Column) -> Callable[[Function], Function]:
    several = isinstance(getattr(Selector(), column.chosen_by), tuple)
    complete = complete_job_type if column.name == "job_type" else completer(column.name)
    return click.option(
        column.flag,
        column.chosen_by,
        multiple=several,
        type=int if column.is_number else None,
        metavar=column.metavar,
        shell_complete=None if column.is_number else complete,
        help=column.about or None,
    )


def owners_option(what: str) -> Callable[[Function], Function]:
    about, complete = f"Only {what} of this owner.", completer("owner")
    return click.option("--owner", "owners", multiple=True, metavar="NAME", shell_complete=complete, help=about)


def status_option(statuses: Sequence[str]) -> Callable[[Function], Function]:
    return click.option(
        "--status",
        "statuses",
        multiple=True,
        metavar="STATUS",
        shell_complete=lambda _, __, begun: [str(one) for one in statuses if one.startswith(begun)],
        help=f"{', '.join(statuses[:-1])} or {statuses[-1]}; several separated by commas.",
    )


_SELECTORS: Sequence[Callable[[Function], Function]] = (
    status_option([*Status]),
    *map(_column_option, CHOSEN_BY),
    click.option("--since", metavar="TIME", help="Created or ended since: 2h or 3d (ago), or a time."),
    click.option("--older-than", metavar="TIME", help="Ended before (live jobs: created before): 30d, or a time."),
    click.option("--match", multiple=True, metavar="payload.KEY=VALUE", help="Jobs with this value in their payload."),
)


def job_selector_options(function: Function) -> Function:

    @functools.wraps(function)
    def run(call: Invocation, **values: Any) -> Any:
        words = {name: values.pop(name) for name in Selector.__struct_fields__ if name in values}
        return function(call, read_selector(now=wall_clock(), **words), **values)

    for option in reversed(_SELECTORS):
        option(run)
    ids = click.argument("ids", metavar="[ID]...", nargs=-1, type=_SelectorName(), shell_complete=completer("id"))
    return ids(run)


# ── Questions ───────────────────────────────────────────────────────────────────────────────────────────────────


def number_option(flag: str, name: str, default: int, about: str) -> Callable[[Function], Function]:
    help_text = f"{about} Default: {default}."
    return click.option(flag, name, type=click.IntRange(1, 1000), default=default, metavar="N", help=help_text)


dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")


def confirmation_options(function: Function) -> Function:
    return dry_run_option(click.option("--yes", is_flag=True, help="Do not ask.")(function))


def read_stdin(bytes_max: int) -> bytes:
    # sys.stdin is None if it was closed before the start.
    return sys.stdin.buffer.read(bytes_max) if sys.stdin is not None else b""


def confirm(question: str, *, yes: bool, sample: Sequence[str] = (), number: int | None = None) -> None:
    """Raise `Refused` unless the user agrees. `number` has to be typed where a change is final."""
    if yes:
        return
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stderr)):
        raise Refused(f"{question} Nothing was done, because this is not a terminal", "add --yes, or --dry-run")
    for line in sample:
        output.note(line)
    question = harmless(question)
    if number is None:
        agrees = click.confirm(question, err=True)
    else:
        typed = click.prompt(f"{question} Type {number} to continue", default="", show_default=False, err=True)
        agrees = str(typed) == str(number)
    if not agrees:
        raise Refused("nothing was done")
