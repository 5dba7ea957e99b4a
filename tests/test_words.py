"""A verb has one spelling in SQL statement, store method, command and event. Counted nouns agree in number."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_service.base import events
from worker_service.cli import INDEX
from worker_service.store.intake import Intake
from worker_service.store.leases import Leases
from worker_service.store.steering import Steering
from worker_service.store.store import sqlite_statements

ROOT = Path(__file__).resolve().parent.parent
ROW_VERBS = ("enqueue", "claim", "beat", "report", "complete", "fail", "release", "requeue", "cancel", "retry", "pause",
             "prune")  # fmt: skip
PEOPLES_VERBS = ("enqueue", "cancel", "retry", "delete", "priority", "pause", "unpause", "prune", "undo")
COMMANDS = {verb for verbs in INDEX.values() for verb in verbs}

# --- one spelling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ROW_VERBS)
def test_a_verb_is_a_statement_of_its_name(verb: str) -> None:
    assert verb in sqlite_statements()


@pytest.mark.parametrize("verb", sorted({*ROW_VERBS, *PEOPLES_VERBS}))
def test_a_verb_is_promised_by_the_store_under_its_name(verb: str) -> None:
    assert any(callable(getattr(part, verb, None)) for part in (Intake, Leases, Steering))


@pytest.mark.parametrize("verb", PEOPLES_VERBS)
def test_a_verb_of_people_is_a_command_of_its_name(verb: str) -> None:
    assert verb in COMMANDS


# What the daemon does to a row is told under the verb's own name, as what has happened. Beats and reports are too many
# to be told; what people do is told by the audit tables.
TOLD = {
    "claim": "job.claimed",
    "complete": "job.completed",
    "fail": "job.failed",
    "snooze": "job.snoozed",
    "release": "job.released",
    "requeue": "job.requeued",
    "cancel": "job.cancelled",
    "prune": "jobs.pruned",
}


@pytest.mark.parametrize("verb", TOLD)
def test_an_event_is_named_after_its_verb(verb: str) -> None:
    names = {value for value in vars(events).values() if isinstance(value, str)}

    assert TOLD[verb] in names
    assert TOLD[verb].partition(".")[2].startswith(verb.removesuffix("e"))


# --- counted nouns -------------------------------------------------------------------------------


NOUNS = re.compile(
    r" (jobs|workers|files|folders|documents|pages|lines|types|attempts|retries|readings|steps|children)(?! and |/)\b"
)


def uncounted(tree: ast.Module) -> Iterator[str]:
    """Numbers put before a noun as if there were always several. A constant is known, and `counted` knows."""
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for value, after in itertools.pairwise(parts):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                said = ast.unparse(value.value)
                if NOUNS.match(str(after.value)) and not said.isupper() and said not in KNOWN_TO_BE_SEVERAL:
                    yield f"{said}{NOUNS.match(str(after.value))[0]}"  # type: ignore[index]


KNOWN_TO_BE_SEVERAL = {"most", "'+' if count >= AHEAD_MOST else ''"}


def test_one_of_a_thing_is_said_as_one() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {one}"
        for source in ("worker_service", "job_handlers")
        for path in (ROOT / source).rglob("*.py")
        for one in uncounted(ast.parse(path.read_text("utf-8")))
    }

    assert found == set()
    assert [*uncounted(ast.parse('f"{n} jobs, {len(x)} pages, {counted(n, 0)} x, {MOST} jobs"'))] == [
        "n jobs", "len(x) pages",
    ]  # fmt: skip
