"""What every verb stands on: the options that all have, the selectors that many have, and the question before a change.

A verb's function is given a `Invocation` first: the settings, the database once it is asked for, and whether
to speak JSON.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput, Refused
from worker_service.base.sanitize import harmless
from worker_service.cli import output, refuse_empty_words
from worker_service.jobs.job import Status
from worker_service.jobs.selector import CHOSEN_BY, Column, Selector
from worker_service.services.parse import read_name, read_selector
from worker_service.settings.config import Settings, load_settings

if TYPE_CHECKING:
    from worker_service.services.database import Session

Function = Callable[..., Any]


class Invocation:
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

            self._session = open_session(self.settings, on_long_wait=say_that_it_waits)
        return self._session

    def printed_json(self, value: object) -> bool:
        """Where JSON is asked for, this is the answer, and nothing else is to be shown."""
        if self.as_json:
            output.show_json(value)
        return self.as_json

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def say_that_it_waits(_: float, holder: object) -> None:
    """At once, and not after half a minute: somebody may have left a transaction open."""
    output.say(f"waiting to write: {holder or 'somebody else'} keeps the write lock")


class Verb(click.Command):
    heading = ""
    """Under which `pagemill --help` lists it, if it came in by the door."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_words(self, ctx, args)
        return super().parse_args(ctx, args)


def verb(function: Function, heading: str = "") -> Verb:
    """A function as a verb. Its docstring is the help; its options are given to it after the call, by name."""

    @functools.wraps(function)
    def run(as_json: bool, database: str | None, **values: Any) -> Any:
        above = click.get_current_context().find_root().obj or {}
        call = Invocation(as_json=as_json or above.get("as_json", False), database=database or above.get("database"))
        try:
            return function(call, **values)
        finally:
            call.close()

    named: Function = click.option("--database", metavar="PATH", type=click.Path(), help="Use this database.")(run)
    named = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")(named)
    # The common options stand last in the help, after the verb's own.
    params: list[click.Parameter] = named.__click_params__  # type: ignore[attr-defined]
    params[:] = params[-2:] + params[:-2]
    made = click.command(function.__name__.replace("_", "-"), cls=Verb, short_help=_summary(function))(named)
    made.heading = heading
    return made


class DefaultVerbGroup(click.Group):
    """A verb that has subcommands: `crawl FOLDER`, and `crawl ls`."""

    def __init__(self, name: str, default: Verb, *others: click.Command) -> None:
        named = {one.name: one for one in others if one.name is not None}
        super().__init__(name, named, help=default.help, short_help=default.short_help, params=default.params)
        self._default = default

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and (other := self.commands.get(args[0])) is not None:
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return self._default.make_context(info_name, args, parent, **extra)


def _summary(function: Function) -> str:
    """The first sentence after the examples."""
    prose = (function.__doc__ or "").split("\n\n")[1]
    return " ".join(prose.split()).split(". ")[0].rstrip(".") + "."


# ── Completion ──────────────────────────────────────────────────────────────────────────────────────────────────


Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def completes(column: str) -> Complete:
    """Complete from the values in the database; never fail, for a person is in the middle of typing."""
    return lambda ctx, _, begun: completions(ctx, lambda call: _names(call, begun, column))


def completes_type(ctx: click.Context, _: click.Parameter, begun: str) -> list[Any]:
    """Of what workers and installed handlers can run, and of jobs that are there."""
    known = completions(ctx, lambda call: _names(call, begun, "handler", "job_type"))
    installed = completions(ctx, lambda call: _installed(call, begun))
    return sorted({*known, *installed})


def completes_directory(_: click.Context, __: click.Parameter, begun: str) -> list[Any]:
    """The shell completes it."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="dir")]


def _names(call: Invocation, begun: str, *columns: str) -> list[str]:
    return [name for column in columns for name in call.session.reading.names(column, begun)]


def _installed(call: Invocation, begun: str) -> list[str]:
    from worker_service.services.enqueue import installed_types

    return [name for name in installed_types(call.settings) if name.startswith(begun)]


def completions(ctx: click.Context, names: Callable[[Invocation], Sequence[str]]) -> list[str]:
    try:
        call = Invocation(
            as_json=False, database=ctx.params.get("database") or (ctx.find_root().obj or {}).get("database")
        )
        try:
            # A shell's reply is lines: what cannot stand on one, or cannot be seen, has to be typed.
            return [name for name in names(call) if name.isprintable() and name]
        finally:
            call.close()
    except Exception:
        return []


class JobId(click.ParamType[int]):
    name = "id"
    sentence = "is not the id of a job: ids are numbers, as pagemill ls shows them"
    prefix = ""
    least = 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        word = str(value).removeprefix(self.prefix).removeprefix("#")
        if not (word.isascii() and word.isdigit() and len(word) < 19 and int(word) >= self.least):
            self.fail(f"{value!r} {self.sentence}", param, ctx)
        return int(word)


class DocumentId(JobId):
    name = "document"
    sentence = "is not a document: they are numbers, as pagemill documents shows them"
    prefix = "document:"


class BatchId(JobId):
    name = "batch"
    sentence = "is not a batch: they are numbers, as pagemill batch ls shows them"
    prefix = "batch:"
    least = 0


class _Name(click.ParamType[str]):
    """42, batch:7 or document:3."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            read_name(value)
        except BadInput as error:
            self.fail(str(error), param, ctx)
        return str(value)


def job_or_problem_argument(function: Function) -> Function:
    """None: the newest job that has a problem is meant."""
    argument = click.argument("job_id", metavar="[ID]", required=False, type=JobId(), shell_complete=completes("id"))
    return argument(function)


# ── Selectors ───────────────────────────────────────────────────────────────────────────────────────────────────


def _flag(column: Column) -> Callable[[Function], Function]:
    """That chooses by this column."""
    several = isinstance(getattr(Selector(), column.chosen_by), tuple)
    complete = completes_type if column.name == "job_type" else completes(column.name)
    return click.option(
        column.flag,
        column.chosen_by,
        multiple=several,
        type=int if column.is_number else None,
        metavar=column.metavar,
        shell_complete=None if column.is_number else complete,
        help=column.about or None,
    )


def status_option(statuses: Sequence[str]) -> Callable[[Function], Function]:
    return click.option(
        "--status",
        "statuses",
        multiple=True,
        metavar="STATUS",
        shell_complete=lambda _, __, begun: [str(one) for one in statuses if one.startswith(begun)],
        help=f"{', '.join(statuses[:-1])} or {statuses[-1]}; several by commas.",
    )


_SELECTORS: Sequence[Callable[[Function], Function]] = (
    status_option([*Status]),
    *map(_flag, CHOSEN_BY),
    click.option("--since", metavar="TIME", help="Created or ended since then: 2h, 3d (ago), or a time."),
    click.option("--older-than", metavar="TIME", help="Ended (or, of live jobs, created) before then: 30d, or a time."),
    click.option("--match", multiple=True, metavar="payload.KEY=VALUE", help="Jobs with this in their payload."),
)


def selecting(function: Function) -> Function:
    """Give the verb the selectors; its function gets a `Selector` after the call."""

    @functools.wraps(function)
    def run(call: Invocation, **values: Any) -> Any:
        words = {name: values.pop(name) for name in Selector.__struct_fields__ if name in values}
        return function(call, read_selector(now=wall_clock(), **words), **values)

    for option in reversed(_SELECTORS):
        option(run)
    return click.argument("ids", metavar="[ID]...", nargs=-1, type=_Name(), shell_complete=completes("id"))(run)


def confirming(function: Function) -> Function:
    """Give the verb --dry-run and --yes."""
    click.option("--yes", is_flag=True, help="Do not ask.")(function)
    return click.option("--dry-run", is_flag=True, help="Only say what would be done.")(function)


def read_stdin(most: int) -> bytes:
    # None: it was closed before we began.
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""


def confirm(question: str, *, yes: bool, sample: Sequence[str] = (), number: int | None = None) -> None:
    """Return if the person agrees. `number`: what they have to type, where nothing brings it back."""
    if yes:
        return
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stderr)):
        raise Refused(
            f"{question} There is nobody to ask, so nothing was done", "say --yes, or --dry-run to look first"
        )
    for line in sample:
        output.say(line)
    question = harmless(question)
    if number is None:
        agrees = click.confirm(question, err=True)
    else:
        agrees = str(
            click.prompt(f"{question} Type {number} to go on", default="", show_default=False, err=True)
        ) == str(number)
    if not agrees:
        raise Refused("nothing was done")
