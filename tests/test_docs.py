"""Every verb is told to its reader: in the README by name, and in its own help with an example first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from worker_service.commands import INDEX, pagemill
from worker_service.config import Settings, every_setting
from worker_service.config_values import declared_in

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
VERBS = [verb for verbs in INDEX.values() for verb in verbs]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(pagemill)
    for verb in VERBS:
        command = pagemill.get_command(context, verb)
        assert command is not None
        yield f"pagemill {verb}", command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield f"pagemill {verb} {name}", inner


EACH = pytest.mark.parametrize(("line", "command"), [pytest.param(*pair, id=pair[0]) for pair in commands()])


@pytest.mark.parametrize("verb", VERBS)
def test_the_readme_names_each_verb(verb: str) -> None:
    readme = README.read_text("utf-8")

    assert f"`{verb}" in readme or f"`pagemill {verb}" in readme


@EACH
def test_the_help_of_each_verb_begins_with_an_example(line: str, command: click.Command) -> None:
    text = command.get_help(click.Context(command, info_name=line))

    first = text.split("\n\n")[1]
    assert line in first
    assert command.name == line.split()[-1]


@EACH
def test_each_verb_speaks_json_and_takes_a_database(line: str, command: click.Command) -> None:
    if isinstance(command, click.Group):
        return
    options = {option for parameter in command.params for option in parameter.opts}
    flags = {setting.flag for setting in every_setting().values() if setting.has_flag}

    assert flags == {"--database"}
    assert {"--json", *flags} <= options


def test_the_page_of_the_settings_is_that_of_the_code() -> None:
    """`./run docs` writes it again."""
    told = CliRunner().invoke(pagemill, ["config", "docs"])

    assert (ROOT / "docs/settings.md").read_text("utf-8").endswith(f"\n\n{told.stdout}")


def test_every_setting_stands_in_the_page_of_the_settings() -> None:
    page = (ROOT / "docs/settings.md").read_text("utf-8")

    for key, setting in every_setting().items():
        assert f"| `{setting.table or key}` |" in page


def test_the_house_names_no_setting_of_a_handler() -> None:
    own = {*declared_in(Settings)}
    of_handlers = re.compile("|".join(every_setting().keys() - own), re.IGNORECASE)

    assert of_handlers.search("WORKER_WEBHOOK_ALLOW")
    for path in (ROOT / "worker_service").rglob("*.py"):
        assert not of_handlers.search(path.read_text("utf-8")), path


def test_the_examples_in_the_help_name_options_that_are_there() -> None:
    every = dict(commands())
    for line, command in every.items():
        examples = [part for part in (command.help or "").split("\n\n")[0].splitlines() if line in part]
        for example in examples:
            own = example.split(line, 1)[1].split("pagemill")[0].split("&&")[0]
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            written = {word.split("=")[0] for word in own.split() if word.startswith("--")}
            inner = isinstance(command, click.Group)
            assert inner or written <= options, f"{example!r} has {written - options}"
