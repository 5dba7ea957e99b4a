"""`pagemill handlers new`: write the files of a new handler."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from pathlib import Path

import click

from worker_service.base.errors import BadInput, Refused
from worker_service.cli import output
from worker_service.cli.context import Invocation, verb


@verb
@click.argument("name", metavar="NAME")
def new(call: Invocation, name: str) -> None:
    """\b
    pagemill handlers new count_words

    Create a handler in the current directory: NAME.py, test_NAME.py and pyproject.toml.

    No file is overwritten; for an existing pyproject.toml, the lines to add are printed. The test passes as it is:
    `pytest test_NAME.py`.
    """
    _check_name(name)
    text_by_file = {f"{name}.py": _HANDLER.replace("NAME", name), f"test_{name}.py": _TEST.replace("NAME", name)}
    for file in text_by_file:
        if Path(file).exists():
            raise Refused(f"{file} exists already, so nothing was written")
    entry_point = _ENTRY_POINT.replace("NAME", name)
    has_project = Path("pyproject.toml").exists()
    if not has_project:
        text_by_file["pyproject.toml"] = _PROJECT.replace("NAME", name) + entry_point
    for file, text in text_by_file.items():
        with Path(file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    if call.print_if_json({"files": list(text_by_file), "entry_point": entry_point}):
        return
    output.note(f"wrote {', '.join(text_by_file)}")
    if has_project:
        output.note("add this to your pyproject.toml:")
        output.show_text(entry_point)
    output.note(f"to install it: {shlex.quote(sys.executable)} -m pip install . (or copy {name}.py to handlers_dir)")
    output.note(f"then restart the daemon: {call.settings.restart_command}")


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} cannot name a handler", "use small letters, digits and _, such as count_words")
    if name in sys.stdlib_module_names or name in ("worker_service", "job_handlers", "tests"):
        raise BadInput(f"{name} is an existing module", f"choose another name, such as {name}_pages")


_HANDLER = '''"""NAME: find the longest word. Describe here what your handler does, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from worker_service.handlers import Context, Done, Handler, Limits, Permanent


@dataclass(frozen=True, slots=True)
class Payload:
    """Input of a job. A payload that does not fit fails with PAYLOAD_INVALID before `run` is called."""

    words: list[str]


def run(context: Context[Payload]) -> Done:
    # It may be stopped at any line, and run again: write into context.staging only.
    words = context.payload.words
    if not words:
        # A permanent failure. For a temporary one: raise Retryable("the server is busy", after=60).
        raise Permanent("NO_WORDS", "there are no words")
    longest = ""
    for number, word in enumerate(words, start=1):
        longest = max(longest, word, key=len)
        context.progress(done=number, total=len(words), unit="words")
    return Done({"longest": longest})


handler = Handler("NAME", run, Payload, limits=Limits(wall_seconds=600, network=False))
'''

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
only-include = ["NAME.py"]

"""
_ENTRY_POINT = """[project.entry-points."worker_service.handlers"]
NAME = "NAME:handler"
"""

_TEST = '''"""Run NAME in a child process, with its limits and sandbox, but without a database."""

from pathlib import Path

import NAME
from worker_service.testing import How, run_handler


def test_the_longest_word_is_found(tmp_path: Path) -> None:
    run = run_handler(NAME.handler, {"words": ["a", "abc", "ab"]}, directory=tmp_path)

    assert run.how is How.DONE, run.ended.message
    assert run.result == {"longest": "abc"}


def test_no_words_is_a_permanent_failure(tmp_path: Path) -> None:
    run = run_handler(NAME.handler, {"words": []}, directory=tmp_path)

    assert (run.how, run.ended.code) == (How.PERMANENT, "NO_WORDS")
'''
