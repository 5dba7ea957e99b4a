from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from worker_service.base import events
from worker_service.cli import COMMON_VERBS, OTHER_VERBS
from worker_service.store.intake import Intake
from worker_service.store.job_control import JobControl
from worker_service.store.leases import Leases
from worker_service.store.pruning import Pruning
from worker_service.store.statements import sqlite_statements

ROOT = Path(__file__).resolve().parent.parent
ROW_VERBS = ("enqueue", "claim", "beat", "report", "complete", "fail", "release", "requeue", "cancel", "retry", "pause",
             "prune")  # fmt: skip
PEOPLES_VERBS = ("enqueue", "cancel", "retry", "delete", "priority", "pause", "unpause", "prune", "undo")
COMMANDS = {verb for group in (COMMON_VERBS, OTHER_VERBS) for verbs in group.values() for verb in verbs}

# --- one spelling ---------------------------------------------------------------------------------


def test_a_verb_has_one_name_as_a_statement_a_method_and_a_command() -> None:
    methods = {name for part in (Intake, Leases, Pruning, JobControl) for name in dir(part)}

    assert {*ROW_VERBS} - sqlite_statements().keys() == set()
    assert {*ROW_VERBS, *PEOPLES_VERBS} - methods == set()
    assert {*PEOPLES_VERBS} - COMMANDS == set()


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


def test_an_event_is_named_after_its_verb() -> None:
    names = {value for value in vars(events).values() if isinstance(value, str)}

    assert {*TOLD.values()} <= names
    assert all(event.partition(".")[2].startswith(verb.removesuffix("e")) for verb, event in TOLD.items())


# --- the glossary ---------------------------------------------------------------------------------

GLOSSARY = re.findall(
    r"^\| \*\*(.+?)\*\* \| .+ \| (.*) \|$", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE
)
TERMS = [term for term, _ in GLOSSARY]
PROSE = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "schema.sql")]


def texts() -> Iterator[tuple[Path, str]]:
    folders = ("worker_service", "job_handlers", "systemd", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    yield from ((path, path.read_text("utf-8")) for path in (*PROSE, *files))


TEXT_SUFFIXES = {".py", ".sql", ".md", ".toml", ".html", ".js", ".service", ".timer", ".conf"}
ALL_TEXTS = dict(texts())


def test_a_term_is_listed_once() -> None:
    assert len(TERMS) > 20
    assert sorted(TERMS) == sorted(set(TERMS))


def test_a_term_of_several_words_has_one_spelling() -> None:
    # As one word, or with hyphens. A name in code has an underscore or capitals, and a CSS class hyphens.
    spellings = {"-?".join(term.split()): "".join(map(str.capitalize, term.split())) for term in TERMS if " " in term}
    wrong = re.compile(rf"(?<![\w./`\"-])(?:{'|'.join(spellings)})(?![\w./`\"-])", re.IGNORECASE)

    assert wrong.findall("a fork-server and a Forkserver, a fork server") == ["fork-server", "Forkserver"]
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path, text in ALL_TEXTS.items()
        for word in wrong.findall(text)
        if word not in spellings.values()
    }
    assert found == set()


def test_the_names_of_a_term_exist() -> None:
    everything = "\n".join(f"{path}\n{text}" for path, text in ALL_TEXTS.items() if path.name != "glossary.md")

    for name in (name for _, places in GLOSSARY for name in re.findall(r"`([^`]+)`", places)):
        if name.startswith("pagemill "):
            assert name.split()[1] in COMMANDS | SHOWN_COMMANDS
        else:
            assert name in everything


SHOWN_COMMANDS = {
    name.split()[0] for name in re.findall(r"^## pagemill (.+)$", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
}


# --- counted nouns -------------------------------------------------------------------------------


NOUNS = re.compile(
    r" (jobs|workers|files|folders|documents|pages|lines|types|attempts|retries|readings|steps|children)(?! and |/)\b"
)


def uncounted(tree: ast.Module) -> Iterator[str]:
    """Yield numbers before a plural noun without `counted`."""
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for value, after in itertools.pairwise(parts):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                expression = ast.unparse(value.value)
                if NOUNS.match(str(after.value)) and not expression.isupper() and expression not in KNOWN_TO_BE_SEVERAL:
                    yield f"{expression}{NOUNS.match(str(after.value))[0]}"  # type: ignore[index]


KNOWN_TO_BE_SEVERAL = {"most", "'+' if count >= JOBS_AHEAD_COUNTED_MAX else ''"}


def test_messages_use_the_singular_for_one() -> None:
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
