"""The `pagemill` command: the index of verbs, and how every verb ends.

A verb's module is imported only when the verb is called, so that `pagemill ls` starts in a moment. A verb returns its
exit code (None is 0); every error becomes one sentence on stderr, or one object with --json, and its own exit code.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

from worker_service.base.errors import PagemillError, did_you_mean, in_a_sentence

if TYPE_CHECKING:
    from worker_service.base.entry_points import EntryPoint

BROUGHT = "worker_service.verbs"
"""The group of the entry points of other verbs."""

# verb: (module, what it does). The headings are the help's.
INDEX: dict[str, dict[str, tuple[str, str]]] = {
    "Jobs": {
        "enqueue": ("enqueue", "Put a job into the queue and print its id."),
        "ls": ("jobs", "List jobs, the newest first."),
        "show": ("jobs", "Everything about one job."),
        "why": ("jobs", "Why a job has not started, and what to do about it."),
        "logs": ("jobs", "The lines that a job has logged."),
        "wait": ("wait", "Wait until jobs have ended."),
    },
    "Documents": {
        "ingest": ("reading", "Read files and directories."),
        "crawl": ("crawl", "Read a folder, or watch it."),
        "reindex": ("reading", "Read documents again."),
        "documents": ("documents", "The documents, and how far they are."),
        "text": ("documents", "The text of a document."),
        "search": ("documents", "Find pages, the best first."),
        "tables": ("documents", "The tables on the pages of a document."),
        "keywords": ("documents", "How often terms stand in each document."),
        "then": ("actions", "What follows for each document of an owner."),
        "export": ("documents", "Copy what was made of documents."),
    },
    "Steering": {
        "cancel": ("job_control", "Stop jobs, pending or running."),
        "retry": ("job_control", "Run ended jobs again, with a fresh budget."),
        "delete": ("job_control", "Remove jobs that are not running."),
        "priority": ("job_control", "Move pending jobs ahead, or back."),
        "run-now": ("job_control", "Let jobs start at once that wait for their time."),
        "batch": ("batches", "What was submitted together: how far it is; stop it, go on with it."),
        "pause": ("job_control", "Start no more jobs of a type, of an owner, or at all."),
        "unpause": ("job_control", "Lift a pause."),
        "schedule": ("schedules", "What is begun at which times."),
        "notify": ("notify", "Who is told what happens, and a message to try it."),
        "undo": ("job_control", "Put back what the last change of many jobs did."),
        "prune": ("job_control", "Remove old ended jobs for good."),
    },
    "Numbers": {
        "stats": ("status", "How many jobs there are, by type and status."),
        "errors": ("status", "What failed lately, by error code."),
    },
    "Daemon": {
        "run": ("run", "Run jobs, until somebody asks it to stop."),
        "cluster": ("cluster", "The nodes of the Ray cluster that run attempts."),
        "top": ("top", "What goes on now, drawn again every second."),
        "workers": ("status", "The daemons on this database."),
        "status": ("status", "Whether all is well, for monitoring."),
        "doctor": ("status", "Look for what is wrong, and say how to put it right."),
        "report": ("status", "Write what somebody who helps wants to see, in one file."),
    },
    "Handlers": {
        "handlers": ("handlers", "The handlers that are installed, and a new one."),
        "run-one": ("handlers", "Run one attempt here and now, without a database."),
    },
    "HTTP and the page": {
        "serve": ("serve", "Answer browsers and programs."),
        "token": ("token", "Tokens for programs, and links that sign a browser in."),
    },
    "Upkeep": {
        "init": ("database", "Make the database."),
        "db": ("database", "Migrate, back up, check or open the database."),
        "service": ("service", "Put the daemon under systemd, or take it away."),
        "config": ("settings", "The settings, and where each comes from."),
        "completion": ("completion", "Print the script that completes pagemill's words in a shell."),
    },
}
_MODULES = {verb: module for verbs in INDEX.values() for verb, (module, _) in verbs.items()}

EXIT_BUG = 70
EXIT_IO = 74
EXIT_NOT_ALLOWED = 77
EXIT_CONFIGURATION = 78
EXIT_INTERRUPTED = 130


@cache
def brought() -> Mapping[str, EntryPoint]:
    """The verbs that come in by the door, by what people type. To look for them takes longer than most verbs need to
    begin, so that they are looked for only where none of our own is meant."""
    from worker_service.base.entry_points import entry_points

    return {point.name: point for point in entry_points(BROUGHT)}


class Verbs(click.Group):
    """A group that other distributions may add verbs to, and that suggests the right verb for a misspelt one."""

    begins: str | None = None
    """What is typed before its verbs; None: other distributions add none."""
    imported_later: ClassVar[Mapping[str, str]] = {}
    """Modules of the verbs that are imported only when they are called, by verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = [*super().list_commands(ctx), *self.imported_later]
        if self.begins is None:
            return own
        words = [name.removeprefix(self.begins) for name in brought() if name.startswith(self.begins)]
        return [*own, *(word for word in words if " " not in word and word not in own)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is None and cmd_name in self.imported_later:
            own = getattr(import_module(f"{__name__}.{self.imported_later[cmd_name]}"), cmd_name)
        if own is not None or self.begins is None:
            return own
        point = brought().get(f"{self.begins}{cmd_name}")
        return None if point is None else _loaded(point)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0][:1] != "-" and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            suggestion = _suggestion(args[0], self.list_commands(ctx))
            raise click.UsageError(f"there is no command {args[0]!r}{suggestion}", ctx)
        return super().resolve_command(ctx, args)


def refuse_empty_words(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """Raise a usage error if an argument, or an option that takes a path, is the empty string.

    An unset shell variable gives one, and `Path("")` is the current directory.
    """
    if ctx.resilient_parsing or ("" not in args and not any(word.endswith("=") for word in args)):
        return
    given, _, _ = command.make_parser(ctx).parse_args([*args])
    for param in command.get_params(ctx):
        value = given.get(param.name or "")
        values = value if isinstance(value, list | tuple) else [value]
        if "" not in values:
            continue
        if isinstance(param, click.Argument):
            raise click.UsageError(f"{param.make_metavar(ctx)} is empty: is a variable of the shell unset?", ctx)
        if isinstance(param.type, click.Path | click.File):
            raise click.UsageError(f"{param.opts[-1]} is empty: is a variable of the shell unset?", ctx)


def group(name: str, about: str, *verbs: click.Command, cls: type[Verbs] = Verbs) -> Verbs:
    made = cls(name, help=about)
    for one in verbs:
        made.add_command(one)
    return made


class VerbUnusable(PagemillError):
    """Somebody has installed it, and it cannot be loaded."""

    code = "verb_unusable"
    exit_code = 69


def _loaded(point: EntryPoint) -> click.Command:
    try:
        command: click.Command = point.load()
    except Exception as error:  # somebody else's code, which may not spoil what is ours
        sentence = f"{point.name} cannot be used: {point.spec}: {error}"

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}

        def refuse() -> None:
            raise VerbUnusable(sentence)

        return click.Command(point.name, callback=refuse, short_help=sentence, context_settings=anything)
    return command


class Pagemill(Verbs):
    """The group of all verbs, which knows their names without importing them."""

    begins = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_words(self, ctx, args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"{__name__}.{_MODULES[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = {heading: [(verb, summary) for verb, (_, summary) in verbs.items()] for heading, verbs in INDEX.items()}
        for word in super().list_commands(ctx):
            command = super().get_command(ctx, word)
            heading = getattr(command, "heading", "") or "Others"
            shown.setdefault(heading, []).append((word, command.get_short_help_str(100) if command else ""))
        for heading, verbs in shown.items():
            with formatter.section(heading):
                formatter.write_dl(verbs)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        # The name is ours however we were started: usage lines and completion are made from it.
        sys.exit(_ended(lambda: super(Pagemill, self).main(words, "pagemill", **extra), as_json="--json" in words))


@click.group(
    cls=Pagemill,
    invoke_without_command=True,
    help="\b\n"
    "pagemill                                        the state of the queue\n"
    "pagemill enqueue scrape_account --set id=42     a job into the queue\n"
    "pagemill ls --status failed --since 1d          what failed today\n"
    "pagemill why 42                                 why job 42 does not start\n"
    "pagemill retry --status failed --since 1d       run it all again\n\n"
    "A queue of jobs in one SQLite database, to see and to steer. Each verb has its own --help with examples.",
    epilog="Exit codes: 0 done · 1 refused, or some failed · 2 usage · 3 not yet · 65 bad payload · 66 no such job · "
    "69 database or handler absent · 70 bug · 74 I/O · 75 busy, try again · 77 not allowed · 78 configuration · "
    "124 wait timed out.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--database", metavar="PATH", type=click.Path(), help="Use this database.")
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def pagemill(ctx: click.Context, as_json: bool, database: str | None, version: bool) -> None:
    ctx.obj = {"as_json": as_json, "database": database}
    if version:
        from worker_service import VERSION
        from worker_service.cli import output

        output.show(f"pagemill {VERSION}")
        ctx.exit(0)
    if ctx.invoked_subcommand is not None:
        return
    from worker_service.cli.status import show_state

    show_state(as_json, database)
    return


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A name that the terminal cannot spell is no reason to stop.
            stream.reconfigure(errors="replace")
    try:
        pagemill.main()
    finally:
        # Else the interpreter looks through all that was imported before it leaves: an eighth of a command.
        gc.freeze()


# ── How a verb ends ─────────────────────────────────────────────────────────────────────────────────────────────


def _ended(run: Any, *, as_json: bool) -> int:
    """Run it, and turn however it ends into an exit code. The outermost frame: it catches everything."""
    try:
        code = run()
    except PagemillError as error:
        return _say(error.code, error.detail, error.exit_code, as_json, remedy=error.remedy)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "pagemill"
        return _say("usage", _usage_sentence(error), error.exit_code, as_json, hint=f"help: {path} --help")
    except click.ClickException as error:
        return _say("error", error.format_message(), error.exit_code, as_json)
    except click.Abort:
        return EXIT_INTERRUPTED
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end + 20]
        return _say("bad_input", f"that is not UTF-8 text: …{around}…", 2, as_json)
    except PermissionError as error:
        return _say("not_allowed", _file_sentence(error), EXIT_NOT_ALLOWED, as_json)
    except OSError as error:
        return _say("io", _file_sentence(error), EXIT_IO, as_json)
    except MemoryError:
        remedy = "raise the limit of address space (ulimit -v, LimitAS= in a unit), or free memory"
        return _say("too_little_memory", "there is not enough memory", EXIT_CONFIGURATION, as_json, remedy=remedy)
    except Exception as error:
        if os.environ.get("PAGEMILL_DEBUG"):
            raise
        sentence = f"a bug in pagemill: {type(error).__name__}: {error}"
        return _say("bug", sentence, EXIT_BUG, as_json, hint="set PAGEMILL_DEBUG=1 to see where")
    return code if isinstance(code, int) else 0


def _say(code: str, detail: str, exit_code: int, as_json: bool, *, remedy: str = "", hint: str = "") -> int:
    from worker_service.cli import output

    if as_json:
        problem = {"error": {"code": code, "message": detail, "remedy": remedy, "exit_code": exit_code}}
        output.say_json(problem)
    else:
        output.say(f"pagemill: {in_a_sentence(detail, remedy)}")
        if hint:
            output.say(hint)
    return exit_code


def _usage_sentence(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and isinstance(error.ctx.command, click.Group):
        return f"say what to do: {', '.join(error.ctx.command.list_commands(error.ctx))}"
    if isinstance(error, click.NoSuchOption):
        options = (option for one in (error.ctx.command.params if error.ctx else ()) for option in one.opts)
        return f"there is no option {error.option_name}{_suggestion(error.option_name, options)}"
    message = error.format_message().strip()
    return (message[:1].lower() + message[1:]).rstrip(".")


_MEANT = {"purge": "jobs that wait are removed by `pagemill delete --status pending`, ended ones by `pagemill prune`"}
"""Words of other queues for what has another name here."""


def _suggestion(word: str, known: Iterable[str]) -> str:
    hint = _MEANT.get(word) or did_you_mean(word, known, "")
    return hint and f": {hint}"


def _file_sentence(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no file {error.filename}"
    return f"{error.filename} cannot be used: {reason}" if error.filename else reason
