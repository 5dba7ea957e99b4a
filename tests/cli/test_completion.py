"""Completion in a real bash with the script of `pagemill completion bash`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.conftest import COMMAND, Daemon, Run
from tests.cli.stored_documents import Shelf
from worker_service.cli import pagemill

Press = Callable[[str], str]


@pytest.fixture
def press(tmp_path: Path) -> Iterator[Press]:
    """Return a function that types the start of a line and Tab, and returns the completed line."""
    binary = tmp_path / "bin" / "pagemill"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    binary.chmod(0o755)
    settings = 'PS1="$ "\nbind "set enable-bracketed-paste off"\nbind "set bell-style none"\n'
    (tmp_path / "rc").write_text(f'{settings}eval "$(pagemill completion bash)"\n')
    our_end, bash_end = pty.openpty()
    environ = {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "200"}
    bash = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"],
        stdin=bash_end, stdout=bash_end, stderr=bash_end, env=environ, start_new_session=True,
    )  # fmt: skip
    os.close(bash_end)

    def read_until(pattern: str) -> re.Match[str]:
        screen = ""
        while (found := re.search(pattern, screen)) is None:
            screen += os.read(our_end, 65536).decode()
        return found

    def press(line: str) -> str:
        os.write(our_end, f"{line}\t".encode())
        read_until(f"{re.escape(line)}.")
        # Ctrl-A, then turn the line into an echo of itself. The quote tells its output from what was typed.
        os.write(our_end, b"\x01echo M'ADE' \n")
        return read_until(r"MADE (.*)\n")[1].strip()

    read_until(r"\$ ")
    yield press
    os.close(our_end)
    bash.terminate()
    bash.kill()
    bash.wait(timeout=30)


def test_bash_completes_paths_verbs_types_states_and_error_codes(press: Press, shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "report of May.pdf").touch()
    (tmp_path / "photograph.txt").touch()
    shelf.fail("a.pdf", "PDF_BROKEN", "it is broken")

    assert press("pagemill add rep") == "pagemill add report of May.pdf"
    assert press("pagemill documents adopt pho") == "pagemill documents adopt photos/"
    assert press("pagemill handlers show ocr") == "pagemill handlers show ocr_pages"
    assert press("pagemill ls --error PDF_") == "pagemill ls --error PDF_BROKEN"
    assert press("pagemill documents --status fa") == "pagemill documents --status failed"


def completed(monkeypatch: pytest.MonkeyPatch, line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    for name, value in (
        ("_PAGEMILL_COMPLETE", f"{shell}_complete"), ("COMP_WORDS", line), ("COMP_CWORD", str(len(words) - 1)),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    return CliRunner().invoke(pagemill, [], prog_name="pagemill").output.splitlines()


def test_each_argument_and_option_completes_its_values(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.fail("a.pdf", "PDF_BROKEN", "it is broken")
    shelf.read("b.pdf", "one", owner="alice")

    def plain(line: str) -> set[str]:
        return {item.removeprefix("plain,") for item in completed(monkeypatch, f"pagemill {line}")}

    for line in ("text ", "export ", "reindex ", "search x --document "):
        assert plain(line) == {"1", "2"}, line
    assert plain("retry --error ") == {"PDF_BROKEN"}
    assert plain("pa") == {"pause"}
    assert {"1", "2"} <= plain("show ")
    assert plain("ls --owner a") == {"alice"}
    assert plain("cancel --status p") == {"pending"}
    for line in ("enqueue ", "handlers show ", "run-one --type ", "pause ", "ls --type "):
        assert {"download", "ocr_pages", "webhook"} <= plain(line), line
    assert plain("documents --status f") == {"failed"}
    for line, kind in (("add ", "file"), ("export -o ", "dir"), ("keywords ", "file"),
                       ("db backup ", "file"), ("documents adopt ", "dir"), ("ls --database ", "file")):  # fmt: skip
        assert [item.partition(",")[0] for item in completed(monkeypatch, f"pagemill {line}")] == [kind], line


def test_completion_without_a_database_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(completed(monkeypatch, "pagemill show "))


def test_a_job_of_an_unknown_type_waits_with_a_warning(run: Run, daemon: Daemon) -> None:
    result = run("enqueue", "downlod")

    assert result.stdout == "1\n"
    assert result.stderr == "job 1 waits: no handler is installed for 'downlod': did you mean download?\n"
    assert "handlers ls" in run("enqueue", "zzzzzz").stderr
    assert run("enqueue", "download", "--set", "source=/srv/a").stderr == ""
    # It is installed, although no running worker takes it.
    assert run("enqueue", "webhook").stderr == ""
    Path("pagemill.toml").write_text(f'[commands.scrape]\nargv = ["{sys.executable}"]\n')
    assert "scrape" in run("enqueue", "scrape").stderr
