from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULE_SINCE = "dee6e8a"
CHARACTERS_MAX = 72
SUBJECT = re.compile(r"(?P<area>[a-z][a-z0-9_.]*(?:, [a-z0-9_.]+)*): (?P<verb>[a-z][a-z-]*),? \S.*[^.]")
# Words such as "added", "adding" and "adds" tell what somebody did; "add" tells what the commit does.
NOT_IMPERATIVE = re.compile(r"\w+(?:ing|[^e]ed|[^s]s)")
IMPERATIVE_ALL_THE_SAME = {"bring", "discuss", "process", "address", "focus", "bypass", "embed"}


def fault_of(subject: str) -> str | None:
    if len(subject) > CHARACTERS_MAX:
        return f"it has {len(subject)} characters"
    found = SUBJECT.fullmatch(subject)
    if found is None:
        return "it is not `area: imperative subject`"
    verb = found["verb"]
    if NOT_IMPERATIVE.fullmatch(verb) and verb not in IMPERATIVE_ALL_THE_SAME:
        return f"{verb!r} is not in the imperative mood"
    return None


def test_the_subject_of_each_new_commit_follows_the_rule() -> None:
    done = subprocess.run(
        ["git", "log", "--no-merges", "--format=%h %s", f"{RULE_SINCE}..HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("this is no clone with the history of the rule")

    faults = [f"{line}: {fault}" for line in done.stdout.splitlines() if (fault := fault_of(line.partition(" ")[2]))]

    assert faults == []


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("store: keep the lane index while a type is paused", None),
        ("settings, jobs: give classes names that no other class has", None),
        ("store: bring the lane index back", None),
        ("Keep the lane index", "it is not"),
        ("Store: keep the lane index", "it is not"),
        ("store: Keep the lane index", "it is not"),
        ("store: keep the lane index.", "it is not"),
        ("store: kept", "it is not"),
        ("store: keeps the lane index", "'keeps' is not in"),
        ("store: keeping the lane index", "'keeping' is not in"),
        ("store: added a lane index", "'added' is not in"),
        (f"store: keep {'x' * 70}", "it has 82 characters"),
    ],
)
def test_a_subject_that_breaks_the_rule_is_found(subject: str, fault: str | None) -> None:
    found = fault_of(subject)

    assert (found or "").startswith(fault or "")
    assert (found is None) == (fault is None)
