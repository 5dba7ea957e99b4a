"""`pagemill help`: all commands, or the help of one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from worker_service.cli import output, pagemill
from worker_service.cli.context import Invocation, verb

# {question: commands that users confuse, each with what it does}
SIMILAR_COMMANDS = {
    "Is all well": (
        ("status", "the health in one line, with an exit code for monitoring"),
        ("doctor", "each problem of the machine and the queue, and how to fix it"),
    ),
    "Remove something": (
        ("cancel", "stop jobs; they stay in the list"),
        ("delete", "remove jobs from the list"),
        ("prune", "remove old ended jobs; the daemon does so by itself after 90 days"),
        ("documents rm", "remove documents with their text; the source files stay"),
        ("batch rm", "forget a batch that has ended; its jobs and documents stay"),
    ),
    "Try again": (
        ("retry", "run failed or cancelled jobs again, as they were"),
        ("batch retry", "run the failed jobs of a batch again"),
        ("batch resume", "continue a batch that was stopped, with its failed and cancelled jobs"),
        ("reindex", "read documents again, for example with another language"),
    ),
    "Hold something back": (
        ("pause", "start no more jobs of a type or owner, or at all; unpause ends it"),
        ("batch stop", "start nothing more of one batch; batch resume continues it"),
    ),
}


@verb
@click.argument("command", nargs=-1)
@click.pass_context
def help(ctx: click.Context, call: Invocation, command: Sequence[str]) -> None:
    """\b
    pagemill help
    pagemill help add
    pagemill help batch stop

    Show all commands, and which of similar ones does what; or the help of one command.
    """
    found_command: click.Command = pagemill
    context = click.Context(pagemill, info_name="pagemill")
    for word in command:
        subcommand = found_command.get_command(context, word) if isinstance(found_command, click.Group) else None
        if subcommand is None:
            raise click.UsageError(f"there is no command {' '.join(command)!r}", ctx)
        found_command, context = subcommand, click.Context(subcommand, parent=context, info_name=word)
    if command:
        text = found_command.get_help(context)
    else:
        formatter = context.make_formatter()
        pagemill.format_commands(context, formatter, show_all=True)
        for question, lines in SIMILAR_COMMANDS.items():
            with formatter.section(question):
                formatter.write_dl(lines)
        text = formatter.getvalue().rstrip()
    if not call.print_if_json({"help": text}):
        output.show_text(f"{text}\n")
