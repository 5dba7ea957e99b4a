"""Each transition in document_states.md names existing tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("document_states.md")
TESTS = Path(__file__).resolve().parents[1]
STATES = {"–", "any", "gone", "not_indexed", "queued", "indexing", "success", "failed"}
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| from ")
]


@cache
def written_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_each_transition_of_a_document_names_an_existing_test(row: list[str]) -> None:
    states, _, _, _, shown_by = row

    assert {word.partition(" (")[0] for word in re.sub(r" \([^)]*\)", "", states).split(", ")} <= STATES
    for file, name in re.findall(r"`([\w/.]*)::(\w+)`", shown_by):
        assert name in written_in(TESTS / (file or "store/test_contract_documents.py")), f"{file}::{name}"
    assert "::" in shown_by or "the same" in shown_by
