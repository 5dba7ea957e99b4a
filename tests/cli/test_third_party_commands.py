"""Verbs of other distributions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fake_distributions import install
from worker_service.cli import VERBS, installed_verbs

VERB = '''
import click

from worker_service.verbs import Invocation, output, verb


@verb
@click.argument("name")
def greet(call: Invocation, name: str) -> int:
    """\\b
    pagemill greet Anna

    Greet somebody.
    """
    output.show(f"hello {name}")
    return 3
'''


@pytest.fixture
def _other_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "others_verbs.py").write_text(VERB)
    names = {"greet": "others_verbs:greet", "documents greet": "others_verbs:greet", "broken": "no_such_module:verb"}
    install(tmp_path, "others", {}, {VERBS: {**names, "ls": "others_verbs:greet"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    installed_verbs.cache_clear()
    yield
    installed_verbs.cache_clear()
    sys.modules.pop("others_verbs", None)


@pytest.mark.usefixtures("_other_distribution", "database")
def test_a_verb_of_another_package_is_listed_and_called_and_replaces_no_own_verb(run: Run) -> None:
    assert run("greet", "Anna", fails=3).stdout == "hello Anna\n"
    assert run("documents", "greet", "Bob", fails=3).stdout == "hello Bob\n"
    assert "hello" not in run("ls").stdout

    stdout = run("--help").stdout
    assert "greet      Greet somebody." in stdout or "greet   Greet somebody." in stdout
    assert all(verb in stdout for verb in ("add", "search", "reindex"))


@pytest.mark.usefixtures("_other_distribution", "database")
def test_a_verb_that_cannot_be_imported_breaks_no_other(run: Run) -> None:
    assert "broken cannot be used: no_such_module:verb" in run("broken", "--whatever", fails=69).stderr
    assert "no_such_module" in run("--help").stdout
    assert run("ls", "--json").stdout
