"""`pagemill token`: tokens and sign-in links."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items


@pytest.fixture(autouse=True)
def _there_is_a_database(database: Path) -> None: ...


def test_a_token_is_printed_once_and_nothing_else_on_stdout(run: Run) -> None:
    result = run("token", "make", "grafana")

    assert re.fullmatch(r"pm_1_[\w-]{43}\n", result.stdout)
    assert "this token is not shown again" in result.stderr
    assert result.stdout.strip() not in run("token", "ls").stdout + run("token", "ls", "--json").stdout


def test_tokens_are_listed_with_scope_owner_and_end(run: Run) -> None:
    run("token", "make", "grafana")
    run("token", "make", "scanner", "--scope", "operate", "--owner", "alice", "--until", "90d")

    hers, his = items(run("token", "ls", "--json"))
    assert (hers["scopes"], hers["owner"], hers["until"]) == ("read", None, None)
    assert (his["scopes"], his["owner"]) == ("read operate", "alice")
    assert his["until"] > his["made_at"]
    assert "digest" not in his


@pytest.mark.parametrize("name", [" ", "7", "a\nb", "x" * 101, "\x1b[2J"])
def test_an_invalid_name_of_a_token_is_refused(run: Run, name: str) -> None:
    assert "the name of a token is one line" in run("token", "make", name, fails=2).stderr


@pytest.mark.parametrize("until", ["yesterday", "2020-01-01", "0d", "-1d", ""])
def test_an_invalid_or_past_end_of_a_token_is_refused(run: Run, until: str) -> None:
    run("token", "make", "grafana", "--until", until, fails=2)

    assert items(run("token", "ls", "--json")) == []


def test_a_misspelt_name_of_a_token_is_corrected(run: Run) -> None:
    run("token", "make", "grafana")

    assert "did you mean grafana?" in run("token", "rm", "grafanna", fails=66).stderr
    assert len(items(run("token", "ls", "--json"))) == 1


def test_a_link_is_listed_with_its_name_owner_and_scope(run: Run) -> None:
    link = run("token", "link", "bob", "--scope", "operate", "--owner", "bob").stdout

    assert re.fullmatch(r"http://127\.0\.0\.1:8470/session\?link=pm_1_[\w-]{43}\n", link)
    [listed] = items(run("token", "ls", "--json"))
    assert (listed["kind"], listed["name"], listed["owner"], listed["scopes"]) == ("link", "bob", "bob", "read operate")


def test_a_link_has_the_public_address(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_WEB_URLS", "https://docs.example.org/")

    answer = json.loads(run("token", "link", "--json").stdout)

    assert answer["link"].startswith("https://docs.example.org/session?link=")


@pytest.mark.parametrize("url", ["docs.example.org", "https://docs.example.org/pagemill", "ftp://a", "https://a b"])
def test_an_address_with_a_path_or_without_a_scheme_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("WORKER_WEB_URLS", url)

    assert "https://docs.example.org, without a path" in run("token", "ls", fails=78).stderr


def test_an_empty_list_of_tokens_says_how_to_make_one(run: Run) -> None:
    assert "there are no tokens" in run("token", "ls").stderr


def test_changes_of_tokens_are_recorded_without_the_secret(run: Run) -> None:
    word = run("token", "make", "scanner", "--scope", "operate", "--owner", "alice").stdout.strip()
    run("token", "link", "bob")
    run("token", "rm", "scanner")

    stdout = run("undo", "--list", "--json").stdout
    assert [(item["verb"], item["subject"]) for item in json.loads(stdout)["items"]] == [
        ("remove_token", "token scanner (read operate, only of alice)"),
        ("make_token", "link bob (read operate admin)"),
        ("make_token", "token scanner (read operate, only of alice)"),
    ]
    assert word.split("_", 2)[2] not in stdout
    refused = run("undo", "1", "--yes", fails=1)
    assert "change who may sign in" in refused.stderr
