"""What `pagemill handlers new` writes: one handler that works, its test, and the lines that make it known."""

from __future__ import annotations

import keyword
import re
import sys

from worker_service.errors import BadInput


def check(name: str) -> None:
    """It becomes a job type and a module."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} cannot name a handler: use small letters, digits and _, such as count_words")
    if name in sys.stdlib_module_names or name in ("worker_service", "job_handlers", "tests"):
        raise BadInput(f"{name} is a module already: choose another name, such as {name}_pages")


def files(name: str) -> dict[str, str]:
    """By name, what stands in each."""
    return {f"{name}.py": _HANDLER.replace("NAME", name), f"test_{name}.py": _TEST.replace("NAME", name)}


def entry_point(name: str) -> str:
    return f'[project.entry-points."worker_service.handlers"]\n{name} = "{name}:handler"'


_HANDLER = '''"""NAME: find the longest of some words. Say here what yours does, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from worker_service.handlers import Context, Done, Handler, Limits, Permanent


@dataclass(frozen=True, slots=True)
class Payload:
    """What a job is given. What does not fit fails with PAYLOAD_INVALID before `run` is called."""

    words: list[str]


def run(context: Context[Payload]) -> Done:
    # It may be stopped between any two lines, and run again: write into context.staging only.
    words = context.payload.words
    if not words:
        # No other attempt can succeed. Where one can: raise Retryable("the server is busy", after=60).
        raise Permanent("NO_WORDS", "there are no words")
    longest = ""
    for number, word in enumerate(words, start=1):
        longest = max(longest, word, key=len)
        context.progress(100 * number / len(words), f"word {number} of {len(words)}")
    return Done({"longest": longest})


handler = Handler("NAME", run, Payload, limits=Limits(wall_seconds=600, network=False))
'''

_TEST = '''"""NAME in a real child, with its limits and its sandbox, and without a database."""

from pathlib import Path

import NAME
from worker_service.testing import How, run_handler


def test_the_longest_word_is_found(tmp_path: Path) -> None:
    run = run_handler(NAME.handler, {"words": ["a", "abc", "ab"]}, directory=tmp_path)

    assert run.how is How.DONE, run.ended.message
    assert run.result == {"longest": "abc"}


def test_without_words_no_attempt_can_succeed(tmp_path: Path) -> None:
    run = run_handler(NAME.handler, {"words": []}, directory=tmp_path)

    assert (run.how, run.ended.code) == (How.PERMANENT, "NO_WORDS")
'''
