"""One word has one meaning, and one spelling wherever it stands: SQL statement, store method, command, event.

The second half looks for words that this project does not use, in every name that its source defines. A constant is
left alone, for it may carry the kernel's own word (such as a right to EXECUTE); so are tests, and prose.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from worker_service import events
from worker_service.commands import INDEX
from worker_service.store.base import Intake, Leases, Steering
from worker_service.store.sqlite import sqlite_statements

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("worker_service", "job_handlers", "benchmarks", "cli.py", "schema.sql")

ROW_VERBS = ("enqueue", "claim", "beat", "report", "complete", "fail", "release", "requeue", "cancel", "retry", "pause",
             "prune")  # fmt: skip
PEOPLES_VERBS = ("enqueue", "cancel", "retry", "delete", "priority", "pause", "unpause", "prune", "undo")
COMMANDS = {verb for verbs in INDEX.values() for verb in verbs}

# As a whole word of a name: SkillTable and multitasking_seconds are left alone, TaskTable and util_path are not.
NOT_USED = re.compile(r"tasks?|managers?|util(s|ity|ities)?|execut(e|es|ed|ing|ion|or|ors)")
# A thing may be killed by the system and be a process; what we do is to stop it, and to run it.
NOT_DONE = re.compile(r"kill(s|ed|er|ing)?")
NOT_A_VERB = "process"

STATEMENT = re.compile(r"^-- (?:name|fragment): (\w+)", re.MULTILINE)
CREATED = re.compile(r"^CREATE (?:TEMP |UNIQUE )*(?:TABLE|INDEX|TRIGGER|VIEW) (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Name:
    place: str
    text: str
    is_deed: bool
    """Whether it names something that is done or that does it (function, class, statement), or a mere value."""


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


# --- words that are not used ----------------------------------------------------------------------


def test_our_names_use_none_of_the_words_that_are_not_used() -> None:
    found = list(complaints(ROOT))

    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_no_command_has_a_word_that_is_not_used() -> None:
    assert [verb for verb in COMMANDS if flaw(Name("", verb, is_deed=True))] == []


def test_the_names_of_the_real_source_are_seen() -> None:
    seen = {name.text for name in names(ROOT)}

    assert {"worker_service", "leases", "SqliteStore", "claim", "free_due", "lane_gates", "job_guard"} <= seen
    assert {"job_handlers", "cli", "benchmarks", "orphan_after_seconds", "FREED_MOST"} <= seen


FLAWED: Mapping[str, tuple[str, str, str]] = {
    "a class": ("queue.py", "class TaskManager: ...", "worker_service/queue.py:1: TaskManager: 'task' is not used"),
    "a function": ("a.py", "def run_all_tasks(): ...", "worker_service/a.py:1: run_all_tasks: 'tasks' is not used"),
    "a method": (
        "a.py",
        "class Slot:\n    async def execute(self): ...",
        "worker_service/a.py:2: execute: 'execute' is not used",
    ),
    "a parameter": ("a.py", "def run(taskId): ...", "worker_service/a.py:1: taskId: 'task' is not used"),
    "a variable": ("a.py", "\nexecutor = 1", "worker_service/a.py:2: executor: 'executor' is not used"),
    "a field": ("a.py", "class Job:\n    task_id: int", "worker_service/a.py:2: task_id: 'task' is not used"),
    "an attribute": ("a.py", "def f(x):\n    x.util = 1", "worker_service/a.py:2: util: 'util' is not used"),
    "an alias": ("a.py", "import json as utils", "worker_service/a.py:1: utils: 'utils' is not used"),
    "a module": ("path_utils.py", "", "worker_service/path_utils.py: path_utils: 'utils' is not used"),
    "a package": ("managers/__init__.py", "", "worker_service/managers/__init__.py: managers: 'managers' is not used"),
    "a deed": ("a.py", "def kill_child(): ...", "worker_service/a.py:1: kill_child: say stop, or SIGKILL"),
    "a verb": ("a.py", "def process_rows(): ...", "worker_service/a.py:1: process_rows: 'process' is no verb here"),
    "a statement": ("store/x.sql", "\n-- name: execute_job\n", "worker_service/store/x.sql:2: execute_job: "
                    "'execute' is not used"),
    "a trigger": ("x.sql", "CREATE TRIGGER job_killer", "worker_service/x.sql:1: job_killer: say stop, or SIGKILL"),
}  # fmt: skip


@pytest.mark.parametrize("what", FLAWED)
def test_a_word_that_is_not_used_is_reported_where_it_stands(what: str, tmp_path: Path) -> None:
    file, text, sentence = FLAWED[what]

    write(tmp_path / "worker_service" / file, text)

    assert list(complaints(tmp_path)) == [sentence]


def test_words_that_only_look_alike_are_left_alone(tmp_path: Path) -> None:
    text = "from asyncio import Task\n_EXECUTE = 1\ndef skill(process, killed_by):\n    return Task.execute()  # kill"

    write(tmp_path / "worker_service" / "processes.py", text)

    assert list(complaints(tmp_path)) == []


# --- names ----------------------------------------------------------------------------------------


def complaints(root: Path) -> Iterator[str]:
    for name in names(root):
        reason = flaw(name)
        if reason:
            yield f"{name.place}: {name.text}: {reason}"


def flaw(name: Name) -> str | None:
    if name.text.isupper() and not name.is_deed:
        return None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.text)]
    for word in words:
        if NOT_USED.fullmatch(word):
            return f"{word!r} is not used"
        if name.is_deed and NOT_DONE.fullmatch(word):
            return "say stop, or SIGKILL"
    if name.is_deed and words[:1] == [NOT_A_VERB]:
        return f"{NOT_A_VERB!r} is no verb here"
    return None


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


def names(root: Path) -> Iterator[Name]:
    """Every name that our source defines: modules, what is inside of them, SQL statements, and things in the schema."""
    for source in SOURCES:
        for path in sorted([*root.glob(source), *(root / source).rglob("*")]):
            place = str(path.relative_to(root))
            if path.suffix == ".py":
                yield Name(place, path.parent.name if path.stem == "__init__" else path.stem, is_deed=False)
                yield from names_in(ast.parse(path.read_text("utf-8")), place)
            elif path.suffix == ".sql":
                text = path.read_text("utf-8")
                for match in sorted([*STATEMENT.finditer(text), *CREATED.finditer(text)], key=lambda at: at.start()):
                    line = text.count("\n", 0, match.start(1)) + 1
                    yield Name(f"{place}:{line}", match[1], is_deed=True)


def names_in(tree: ast.Module, place: str) -> Iterator[Name]:
    for node in ast.walk(tree):
        at = f"{place}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                yield Name(at, text, is_deed=True)
            case ast.arg(arg=text) | ast.Name(id=text, ctx=ast.Store()) | ast.Attribute(attr=text, ctx=ast.Store()):
                yield Name(at, text, is_deed=False)
            case ast.alias(asname=str(text)):
                yield Name(at, text, is_deed=False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
