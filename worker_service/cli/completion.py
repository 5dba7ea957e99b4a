"""`pagemill completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from worker_service.cli import output
from worker_service.cli.context import Invocation, verb

_COMPLETE_CLASS_BY_SHELL = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@verb
@click.argument("shell", type=click.Choice(list(_COMPLETE_CLASS_BY_SHELL)))
def completion(call: Invocation, shell: str) -> None:
    """\b
    eval "$(pagemill completion bash)"                                    in ~/.bashrc
    pagemill completion zsh > ~/.zfunc/_pagemill
    pagemill completion fish > ~/.config/fish/completions/pagemill.fish

    Print a script for your shell that completes commands, options, and the ids, types and owners in the database.
    """
    root = click.get_current_context().find_root().command
    script = _COMPLETE_CLASS_BY_SHELL[shell](root, {}, "pagemill", "_PAGEMILL_COMPLETE").source()
    if not call.print_if_json({"shell": shell, "script": script}):
        output.show_text(f"{script}\n")
