"""The `pagemill` command. A verb is a subcommand, such as `ls`.

`VerbGroup` imports the module of a verb when it is called, so that each command starts quickly. `_exit_code_of` turns
what a verb raises into a message and an exit code.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn

import click

from worker_service.base.errors import PagemillError, in_a_sentence

if TYPE_CHECKING:
    from worker_service.base.entry_points import EntryPoint

VERBS = "worker_service.verbs"
"""Entry point group of the verbs of other distributions."""

# {heading in the help: {verb: (module, summary)}}
COMMON_VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "Everyday commands": {
        "add": ("add", "Read files, directories, folders of Google Drive and addresses."),
        "search": ("contents", "Find pages by words and phrases."),
        "documents": ("documents", "List, adopt or remove documents."),
        "status": ("status", "Print the health in one line, for monitoring."),
        "text": ("contents", "Print the text of a document."),
        "show": ("jobs", "Show everything about one job or document."),
        "why": ("jobs", "Explain why a job waits or failed, and what to do."),
        "batch": ("batches", "List, stop and resume what was added together."),
        "wait": ("wait", "Wait for batches, documents or jobs."),
    },
    "Documents": {
        "reindex": ("reading", "Read documents again."),
        "export": ("export", "Copy texts, searchable PDFs and other files of documents."),
        "tables": ("contents", "Print or export the tables of a document."),
        "keywords": ("contents", "Count how often terms occur in each document."),
        "tag": ("tags", "List tags; tag documents."),
    },
    "Jobs": {
        "ls": ("jobs", "List jobs, newest first."),
        "logs": ("jobs", "Print the log of a job."),
        "cancel": ("job_control", "Stop pending or running jobs."),
        "retry": ("job_control", "Run failed or cancelled jobs again."),
        "failures": ("failures", "List the files that need attention; dismiss them."),
        "undo": ("job_control", "Undo the last cancel, retry or change of priority."),
        "pause": ("job_control", "Start no new jobs of a type, of an owner, or at all."),
        "enqueue": ("enqueue", "Add a job to the queue."),
        "schedules": ("schedules", "List, make, change and run schedules."),
    },
    "Service": {
        "doctor": ("doctor", "Find problems and say how to fix them."),
        "top": ("top", "Show running work, updated every second."),
        "serve": ("serve", "Serve the web page and the HTTP API."),
        "run": ("run", "Run the daemon in the foreground."),
        "service": ("service", "Install or remove the systemd units."),
        "upgrade": ("upgrade", "Install another version, and return to this one if it does not run."),
        "db": ("database", "Back up, restore, check or open the database."),
    },
}
OTHER_VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "More about documents and jobs": {
        "actions": ("actions", "Manage the jobs that follow documents with a tag."),
        "delete": ("job_control", "Delete jobs that are not running."),
        "prune": ("job_control", "Delete old ended jobs."),
        "priority": ("job_control", "Change the priority of jobs."),
        "run-now": ("job_control", "Start jobs that wait for a time or a retry."),
        "unpause": ("job_control", "End a pause."),
        "notify": ("notify", "List and test the notification rules in the settings."),
    },
    "More about the service": {
        "help": ("help", "Show the help of a command, or all commands."),
        "init": ("database", "Create the database."),
        "config": ("settings", "Show the settings and their origin."),
        "reload": ("settings", "Make the daemons read the settings file again."),
        "stats": ("status", "Count jobs by type and status, and documents by owner."),
        "workers": ("status", "List the daemons and cluster nodes."),
        "report": ("report", "Write a support report without names and contents."),
        "token": ("token", "Manage API tokens and sign-in links."),
        "mcp": ("mcp", "Let an AI assistant search and read the documents."),
        "cluster": ("cluster", "Set up and list the nodes of a Ray cluster."),
        "handlers": ("handlers", "List the installed handlers, or create one."),
        "run-one": ("run_one", "Run one attempt without a database, for testing."),
        "completion": ("completion", "Print a shell completion script."),
    },
}
"""Verbs that `pagemill help` lists, but `pagemill --help` does not."""
_MODULE_BY_VERB = {
    verb: module
    for verbs in (*COMMON_VERBS.values(), *OTHER_VERBS.values())
    for verb, (module, _summary) in verbs.items()
}
_MODULE_BY_FORMER_VERB = {"ingest": "add", "crawl": "add", "then": "actions"}
"""Former verbs still work for a release and are not listed."""

EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_IO = 74
EXIT_NOT_ALLOWED = 77
EXIT_CONFIGURATION = 78
EXIT_INTERRUPTED = 130

_EXCERPT_MARGIN_CHARACTERS = 20


@cache
def installed_verbs() -> Mapping[str, EntryPoint]:
    # Finding them takes longer than most commands.
    from worker_service.base.entry_points import entry_points

    return {point.name: point for point in entry_points(VERBS)}


class VerbGroup(click.Group):
    """A group that imports the module of a verb when it is called. Hidden verbs are not listed.

    With a `prefix` such as `"documents "`, it also has the verbs of other packages whose names begin with it.
    """

    def __init__(
        self,
        name: str | None = None,
        help: str | None = None,
        *verbs: click.Command,
        module_by_verb: Mapping[str, str] | None = None,
        module_by_hidden_verb: Mapping[str, str] | None = None,
        prefix: str | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(name, help=help, **attributes)
        for command in verbs:
            self.add_command(command)
        self._module_by_verb = module_by_verb or {}
        self._module_by_hidden_verb = module_by_hidden_verb or {}
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [*super().list_commands(ctx), *self._module_by_verb]
        if self._prefix is None:
            return names
        own_names = {*names, *self._module_by_hidden_verb}
        installed = [name.removeprefix(self._prefix) for name in installed_verbs() if name.startswith(self._prefix)]
        # A name with a space is that of a verb of a subgroup.
        return [*names, *(name for name in installed if " " not in name and name not in own_names)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        module = self._module_by_verb.get(cmd_name) or self._module_by_hidden_verb.get(cmd_name)
        if command is None and module is not None:
            command = getattr(import_module(f"{__name__}.{module}"), cmd_name.replace("-", "_"))
        if command is not None or self._prefix is None:
            return command
        # Our own verbs come first, so no distribution can replace one.
        entry_point = installed_verbs().get(f"{self._prefix}{cmd_name}")
        return None if entry_point is None else _load_verb(entry_point)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_option = args[0].startswith("-")
        is_completing = ctx.resilient_parsing
        if not is_option and not is_completing and self.get_command(ctx, args[0]) is None:
            suggestion = _suggestion(args[0], self.list_commands(ctx))
            raise click.UsageError(f"there is no command {args[0]!r}{suggestion}", ctx)
        return super().resolve_command(ctx, args)


class DefaultVerbGroup(VerbGroup):
    """A group that runs its default verb unless the first argument names a subcommand."""

    def __init__(self, name: str, default: click.Command, *subcommands: click.Command, **attributes: Any) -> None:
        super().__init__(name, default.help, default, *subcommands, params=default.params, **attributes)
        self.short_help = default.short_help
        self._default = default

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        first_word = args[0] if args else ""
        is_completing_first_word = not args and extra.get("resilient_parsing")
        if is_completing_first_word or first_word == "--help":
            return super().make_context(info_name, args, parent, **extra)
        # To look for an option among the verbs would import the entry points of other distributions.
        is_option = first_word.startswith("-")
        if not is_option and first_word.replace("-", "").isalpha():
            ctx = click.Context(self, parent, info_name)
            subcommand = self.get_command(ctx, first_word)
            if subcommand is not None:
                return subcommand.make_context(f"{info_name} {first_word}", args[1:], parent, **extra)
            # Another word is an argument of the default verb.
            suggestion = _suggestion(first_word, self.list_commands(ctx))
            if suggestion:
                raise click.UsageError(f"there is no command {first_word!r}{suggestion}", ctx)
        return self._default.make_context(info_name, args, parent, **extra)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return self._default.collect_usage_pieces(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._default.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class VerbUnusable(PagemillError, code="verb_unusable", exit_code=69): ...


def _load_verb(entry_point: EntryPoint) -> click.Command:
    """Import the verb, or return one that only says why that is impossible."""
    try:
        command: click.Command = entry_point.load()
    except Exception as error:  # foreign code, which must not break our own verbs
        sentence = f"{entry_point.name} cannot be used: {entry_point.spec}: {error}"
        any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}

        def refuse() -> None:
            raise VerbUnusable(sentence)

        return click.Command(entry_point.name, callback=refuse, short_help=sentence, context_settings=any_arguments)
    return command


def refuse_empty_words(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse empty arguments and paths, as of an unset shell variable: `Path("")` is the current directory."""
    # Parsing takes time, and most command lines have no empty word.
    may_be_empty = any(not word or word.endswith("=") for word in args)
    if ctx.resilient_parsing or not may_be_empty:
        return
    values, _, _ = command.make_parser(ctx).parse_args([*args])
    for param in command.get_params(ctx):
        value = values.get(param.name or "")
        is_empty = "" in value if isinstance(value, list | tuple) else value == ""
        is_argument = isinstance(param, click.Argument)
        if is_empty and (is_argument or isinstance(param.type, click.Path | click.File)):
            label = param.make_metavar(ctx) if is_argument else param.opts[-1]
            raise click.UsageError(f"{label} is empty: is a variable of the shell unset?", ctx)


class _Pagemill(VerbGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_words(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter, *, show_all: bool = False) -> None:
        groups = {**COMMON_VERBS, **OTHER_VERBS} if show_all else COMMON_VERBS
        sections = {
            heading: [(name, summary) for name, (_module, summary) in verbs.items()]
            for heading, verbs in groups.items()
        }
        for name in self.list_commands(ctx):
            command = None if name in _MODULE_BY_VERB else self.get_command(ctx, name)
            if command is not None:
                sections.setdefault("From other packages", []).append((name, command.get_short_help_str(100)))
        for heading, names_and_summaries in sections.items():
            with formatter.section(heading):
                formatter.write_dl(names_and_summaries)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        # Usage lines and completion show this name, however the program was started.
        run_verb = partial(super().main, words, "pagemill", **extra)
        sys.exit(_exit_code_of(run_verb, as_json="--json" in words))


@click.group(
    cls=_Pagemill,
    invoke_without_command=True,
    module_by_verb=_MODULE_BY_VERB,
    module_by_hidden_verb=_MODULE_BY_FORMER_VERB,
    prefix="",
    help="Self-hosted OCR and full-text search for folders of documents.\n\n"
    "\b\n"
    "pagemill add reports/ --wait             read the files of a directory\n"
    "pagemill search 'climate NEAR risk'      find pages\n"
    "pagemill documents --status failed       list what could not be read\n"
    "pagemill why                             explain the newest problem, and what to do\n"
    "pagemill                                 show the state in five lines\n\n"
    "Run `pagemill COMMAND --help` for the options and examples of a command, and `pagemill help` for all commands.",
    epilog="Exit codes: 0 done · 1 refused, or some failed · 2 usage · 3 not yet · 65 bad payload · 66 not found · "
    "69 database or handler absent · 70 bug · 74 I/O · 75 busy, try again · 77 not allowed · 78 configuration · "
    "124 wait timed out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
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
    if ctx.invoked_subcommand is None:
        from worker_service.cli.status import show_state

        show_state(as_json, database)


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Print names that the terminal's encoding lacks with question marks.
            stream.reconfigure(errors="replace")
    try:
        pagemill.main()
    finally:
        # A last garbage collection over all imported modules would take an eighth of a command's time.
        gc.freeze()


# ── How a verb ends ─────────────────────────────────────────────────────────────────────────────────────────────


def _exit_code_of(run_verb: Callable[[], Any], *, as_json: bool) -> int:
    """Run the verb, print any error, and return the exit code."""
    print_error = partial(_print_error, as_json=as_json)
    try:
        code = run_verb()
    except PagemillError as error:
        return print_error(error.code, error.detail, error.exit_code, remedy=error.remedy)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "pagemill"
        return print_error("usage", _usage_sentence(error), error.exit_code, hint=f"help: {path} --help")
    except click.ClickException as error:
        return print_error("error", error.format_message(), error.exit_code)
    except click.Abort:
        return EXIT_INTERRUPTED
    except UnicodeEncodeError as error:
        start = max(0, error.start - _EXCERPT_MARGIN_CHARACTERS)
        excerpt = error.object[start : error.end + _EXCERPT_MARGIN_CHARACTERS]
        return print_error("bad_input", f"that is not UTF-8 text: …{excerpt}…", EXIT_USAGE)
    except PermissionError as error:
        return print_error("not_allowed", _file_sentence(error), EXIT_NOT_ALLOWED)
    except OSError as error:
        return print_error("io", _file_sentence(error), EXIT_IO)
    except MemoryError:
        remedy = "raise the limit of address space (ulimit -v, LimitAS= in a unit), or free memory"
        return print_error("too_little_memory", "there is not enough memory", EXIT_CONFIGURATION, remedy=remedy)
    except Exception as error:
        if os.environ.get("PAGEMILL_DEBUG"):
            raise
        sentence = f"a bug in pagemill: {type(error).__name__}: {error}"
        return print_error("bug", sentence, EXIT_BUG, hint="set PAGEMILL_DEBUG=1 to see where")
    return code if isinstance(code, int) else 0


def _print_error(code: str, detail: str, exit_code: int, *, as_json: bool, remedy: str = "", hint: str = "") -> int:
    from worker_service.cli import output

    if as_json:
        output.show_error_json({"error": {"code": code, "message": detail, "remedy": remedy, "exit_code": exit_code}})
    else:
        output.note(f"pagemill: {in_a_sentence(detail, remedy)}")
        if hint:
            output.note(hint)
    return exit_code


def _usage_sentence(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and isinstance(error.ctx.command, click.Group):
        return f"add a command: {', '.join(error.ctx.command.list_commands(error.ctx))}"
    if isinstance(error, click.NoSuchOption):
        params = error.ctx.command.params if error.ctx else []
        options = [option for param in params for option in param.opts]
        return f"there is no option {error.option_name}{_suggestion(error.option_name, options)}"
    message = error.format_message().strip()
    is_acronym = not message[1:2].islower()
    if not is_acronym:
        message = message[0].lower() + message[1:]
    return message.rstrip(".")


_FOREIGN_VERBS = {"purge": "to delete pending jobs: `pagemill delete --status pending`; ended ones: `pagemill prune`"}
"""Verbs of other job queues, and what to use here."""


def _suggestion(word: str, choices: Iterable[str]) -> str:
    """Return, for example, `: did you mean search?`, or "" if no choice is similar."""
    from worker_service.base.suggestions import did_you_mean  # only needed after a mistake

    hint = _FOREIGN_VERBS.get(word) or did_you_mean(word, choices, "")
    return f": {hint}" if hint else ""


def _file_sentence(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no file {error.filename}"
    return f"{error.filename} cannot be used: {reason}" if error.filename else reason
