from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import click
import msgspec
import pytest

from tests import manual
from tests.test_layers import LEVEL
from worker_service.settings.commands import Program
from worker_service.settings.config import Settings, every_setting
from worker_service.settings.value_types import find_settings

ROOT = Path(__file__).resolve().parent.parent
README_LINES_MOST = 120
ARCHITECTURE_LINES_MOST = 330
COLUMNS_MOST = 120

COMMANDS = dict(manual.commands())


def prose_pages() -> list[Path]:
    return sorted(path for pattern in ("*.md", "docs/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern))


def outside_of_blocks(page: Path) -> list[str]:
    """Return the lines that are outside of code blocks and hand-written."""
    text = page.read_text("utf-8").partition(manual.MARK)[0]
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()


@pytest.mark.parametrize(
    ("name", "most"), [("README.md", README_LINES_MOST), ("ARCHITECTURE.md", ARCHITECTURE_LINES_MOST)]
)
def test_the_first_pages_are_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= most


def test_prose_lines_are_at_most_120_characters() -> None:
    pages = [page for page in prose_pages() if page.name != "CHANGELOG.md" and page.parent.name != "benchmarks"]
    lines = [(page.name, line) for page in pages for line in outside_of_blocks(page)]

    too_long = [(page, line) for page, line in lines if len(line) > COLUMNS_MOST and not line.startswith("|")]
    assert too_long == []


def test_the_readme_shows_the_measured_figures() -> None:
    measured = rows_of(ROOT / "benchmarks/README.md")
    quoted = rows_of(ROOT / "README.md")
    assert quoted

    for what, (ours, beside, *_) in quoted.items():
        median, peer, of_peer, *_ = (re.sub(r" \(.*?\)", "", cell) for cell in measured[what])
        assert (ours, beside) == (median, "–" if peer == "–" else f"{of_peer}, {peer}"), what


def rows_of(page: Path) -> dict[str, list[str]]:
    """Return the rows of the tables that compare; of equal names the first."""
    lines = re.findall(r"^\| (.*) \|$", page.read_text("utf-8"), re.MULTILINE)
    cells = [line.split(" | ") for line in lines if not line.startswith("what ")]
    return {row[0]: row[1:] for row in reversed(cells)}


def test_the_layers_in_the_architecture_are_those_of_the_tests() -> None:
    [drawn] = re.findall(
        r"^```\n(\w+ → .*?)^```", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    layers = [[LEVEL[package] for package in layer.replace(",", " ").split()] for layer in drawn.split("→")]

    assert all(min(above) > max(below) for above, below in pairwise(layers))


def test_every_name_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    held = [path for package in ("worker_service", "job_handlers", "tests") for path in (ROOT / package).rglob("*.*")]
    files = {str(path.relative_to(ROOT)) for path in held} | {path.name for path in ROOT.glob("*.*")}
    source = "".join(path.read_text("utf-8") for path in [ROOT / "schema.sql", *held] if path.suffix in (".py", ".sql"))

    for name in re.findall(r"\w[\w/]*\.(?:py|sql)\b", text):
        assert any(f"/{file}".endswith(f"/{name}") for file in files), name
    for name in re.findall(r"`(\w*_\w*)`", text):
        assert re.search(rf"\b{name}\b", source), name
    for package in ("base", "settings", "jobs", "store", "handlers", "runner", "cluster", "services", "daemon"):
        for path in (ROOT / "worker_service" / package).glob("*.py"):
            assert path.name == "__init__.py" or path.name in text, path


@pytest.mark.parametrize("name", manual.pages())
def test_the_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == manual.generated_page(name), "write it again: ./run docs"


def test_every_key_of_a_program_is_documented() -> None:
    page = (ROOT / "docs/programs.md").read_text("utf-8")

    for key in (field.encode_name for field in msgspec.structs.fields(Program)):
        assert re.search(rf"^\| (`\w+`, )?`{key}`", page, re.MULTILINE), key


def test_every_link_has_a_target() -> None:
    links = ((page, link) for page in prose_pages() for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")))
    for page, link in links:
        if link.startswith(("https://", "http://")):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), (page, link)
        assert not heading or heading in headings(target), (page, link)


def headings(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_help_of_each_command_begins_with_an_example() -> None:
    for line, command in COMMANDS.items():
        text = command.get_help(click.Context(command, info_name=line))
        assert line in text.split("\n\n")[1]
        assert command.name == line.split()[-1]


def test_each_command_has_json_and_database_options() -> None:
    assert {setting.flag for setting in every_setting().values() if setting.has_flag} == {"--database"}

    for line, command in COMMANDS.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert isinstance(command, click.Group) or {"--json", "--database"} <= options, line


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs/settings.md").read_text("utf-8")

    for key, setting in every_setting().items():
        assert f"| `{setting.table or key}` |" in page


def test_settings_mention_no_setting_of_a_handler() -> None:
    own = {*find_settings(Settings)}
    of_handlers = re.compile("|".join(every_setting().keys() - own), re.IGNORECASE)

    assert of_handlers.search("WORKER_WEBHOOK_ALLOW")
    for path in (ROOT / "worker_service").rglob("*.py"):
        assert not of_handlers.search(path.read_text("utf-8")), path


def test_examples_in_the_help_use_existing_options() -> None:
    for line, command in COMMANDS.items():
        examples = [part for part in (command.help or "").split("\n\n")[0].splitlines() if line in part]
        for example in examples:
            own = example.split(line, 1)[1].split("pagemill")[0].split("&&")[0]
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            written = {word.split("=")[0] for word in own.split() if word.startswith("--")}
            inner = isinstance(command, click.Group)
            assert inner or written <= options, f"{example!r} has {written - options}"
