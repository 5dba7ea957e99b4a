from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_service.base.errors import BadInput
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.selector import COLUMNS, FILTER_COLUMNS, SETTABLE_COLUMNS, Selector, parse_choice, parse_match


@pytest.mark.parametrize("status", list(Status))
def test_every_status_is_read_by_its_name(status: Status) -> None:
    assert parse_choice(Status, status.value) is status


@pytest.mark.parametrize(
    ("word", "meant"),
    [("failled", "failed"), ("complete", "completed"), ("canceled", "cancelled"), ("runing", "running")],
)
def test_a_misspelt_status_is_refused_with_the_nearest_one(word: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"there is no status '{word}': did you mean {meant}"):
        parse_choice(Status, word)


@pytest.mark.parametrize("word", ["", "x", "blocked", "42"])
def test_an_unknown_status_is_refused_with_all_statuses(word: str) -> None:
    with pytest.raises(BadInput, match=r"there is no status '.*': it is one of pending, running, completed"):
        parse_choice(Status, word)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("payload.file_id=abc", "file_id", "abc"),
        ("payload.n=1", "n", 1),
        ('payload.n="1"', "n", "1"),
        ("payload.n=1.5", "n", 1.5),
        ("payload.on=true", "on", True),
        ("payload.on=null", "on", None),
        ("payload.deep.er=x", "deep.er", "x"),
        ("payload.page_range[0]=1", "page_range[0]", 1),
        ("payload.pages=[1,2]", "pages", [1, 2]),
        ("payload.url=http://x/?a=b", "url", "http://x/?a=b"),
        ("payload.empty=", "empty", ""),
        ("payload.payload.x=1", "payload.x", 1),
    ],
)
def test_a_match_is_a_path_and_a_json_value_or_text(text: str, path: str, value: object) -> None:
    assert parse_match(text) == (path, value)


@pytest.mark.parametrize("text", ["", "payload", "payload.x", "payload.=1", "file_id=abc", "=x", "payloadx=1"])
def test_an_invalid_match_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"write it like payload\.file_id=abc"):
        parse_match(text)


@given(st.text())
def test_any_text_is_a_match_or_is_refused(text: str) -> None:
    try:
        path, _ = parse_match(text)
        is_told = text.startswith(f"payload.{path}=")
    except BadInput as refusal:
        is_told = repr(text) in str(refusal)

    assert is_told


def test_a_selector_without_fields_is_empty() -> None:
    assert Selector().is_empty
    assert not Selector(ids=(1,)).is_empty
    assert not Selector(batch_id=0).is_empty
    assert not Selector(match=(("a", None),)).is_empty


def test_declared_columns_exist_and_can_be_set_and_filtered() -> None:
    named = {column.name for column in COLUMNS}
    assert named <= set(Job._fields)
    assert {column.name for column in SETTABLE_COLUMNS} <= set(NewJob.__struct_fields__)

    filter_fields = [column.filter_field for column in FILTER_COLUMNS]
    by_other_means = {"ids", "batch_ids", "document_ids", "statuses", "since", "older_than", "match"}
    assert {*filter_fields} | by_other_means == {*Selector.__struct_fields__}
    assert len({*filter_fields}) == len(filter_fields)
