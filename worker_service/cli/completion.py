"""`pagemill completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from worker_service.cli import output
from worker_service.cli.context import Invocation, verb


@verb
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(call: Invocation, shell: str) -> None:
    """\b
    eval "$(pagemill completion bash)"                                    in ~/.bashrc
    pagemill completion zsh > ~/.zfunc/_pagemill
    pagemill completion fish > ~/.config/fish/completions/pagemill.fish

    Print a script for your shell that completes commands, options, and the ids, types and owners in the database.
    """
    shell_complete = get_completion_class(shell)
    if shell_complete is None:
        raise click.UsageError(f"click does not know {shell}")
    root = click.get_current_context().find_root().command
    script = shell_complete(root, {}, "pagemill", "_PAGEMILL_COMPLETE").source()
    if not call.print_if_json({"shell": shell, "script": script}):
        output.show_text(f"{script}\n")
