"""What people read: help begins with an example, what comes from the code is the code's, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests import manual
from worker_service.config import Settings, every_setting
from worker_service.config_values import declared_in
from worker_service.programs import READERS

ROOT = Path(__file__).resolve().parent.parent
README_LINES_MOST = 150

EACH = pytest.mark.parametrize(("line", "command"), [pytest.param(*pair, id=pair[0]) for pair in manual.commands()])


def written() -> list[Path]:
    return sorted(path for pattern in ("*.md", "docs/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern))


PAGES = pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in written()])


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MOST


@pytest.mark.parametrize("name", manual.pages())
def test_what_comes_from_the_code_is_the_code_s(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == manual.written(name), "write it again: ./run docs"


def test_every_key_of_a_program_of_one_s_own_is_told() -> None:
    page = (ROOT / "docs/handlers.md").read_text("utf-8")

    for key in READERS:
        assert re.search(rf"^\| (`\w+`, )?`{key}`", page, re.MULTILINE), key


@PAGES
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            assert heading in headings(target), link


def headings(page: Path) -> set[str]:
    """As GitHub names them."""
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


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
    every = dict(manual.commands())
    for line, command in every.items():
        examples = [part for part in (command.help or "").split("\n\n")[0].splitlines() if line in part]
        for example in examples:
            own = example.split(line, 1)[1].split("pagemill")[0].split("&&")[0]
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            written = {word.split("=")[0] for word in own.split() if word.startswith("--")}
            inner = isinstance(command, click.Group)
            assert inner or written <= options, f"{example!r} has {written - options}"
