from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.full_length import short
from worker_service.handlers import Handler
from worker_service.jobs.payloads import PayloadCheck


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"

    @classmethod
    def _missing_(cls, value: object) -> Size | None:
        return cls.LARGE if value == "huge" else None


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    side: int


@dataclass
class Zoo:
    """A field of each kind that is described in one way and decoded in another."""

    number: int
    money: Decimal = Decimal(0)
    ratio: float | None = None
    digits: Annotated[str, msgspec.Meta(pattern=r"^\d+$")] = "0"
    short: Annotated[str, msgspec.Meta(max_length=2)] = ""
    tenth: Annotated[float, msgspec.Meta(multiple_of=0.1)] = 0.0
    few: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1
    once: frozenset[int] = frozenset()
    pair: tuple[int, str] = (0, "")
    by_number: dict[int, str] | None = None
    raw: bytes = b""
    small: Annotated[bytes, msgspec.Meta(max_length=2)] = b""
    size: Size = Size.SMALL
    mode: Literal["text", 1] = 1
    when: datetime = datetime(2026, 11, 18, tzinfo=UTC)
    length: timedelta = timedelta(0)
    name: UUID | None = None
    shape: Circle | Square | None = None
    anything: Any = None
    inner: Zoo | None = None


def shipped() -> list[tuple[str, Any]]:
    """Return the payload types of the shipped handlers."""
    found = {entry.name: entry.load() for entry in entry_points(group="worker_service.handlers")}
    types = [(name, offer.payload) for name, offer in found.items() if isinstance(offer, Handler)]
    return [*types, ("command", dict[str, Any]), ("zoo", Zoo)]


TYPES = dict(shipped())

ODD = [
    0, 1, 3, 4, -1, 1.0, 0.1, 0.3, 1.5, 2**53 + 1, 10**30, True, False, None, "", "1", "1\n", "١", "abc", "AA==",
    "AAAA", "huge", "small", "text", "2026-11-18T10:00:00Z", "PT1S", "0" * 32, [], [1, 1], [1, "a"], [1, "a", 2], {},
    {"1": "a"}, {"type": "Circle", "radius": 1}, {"type": "Square", "side": 1, "more": 1}, {"url": 3},
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def names_in(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {name for part in schema for name in names_in(part)}
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own | {name for part in schema.values() for name in names_in(part)}


def payloads_of(name: str) -> st.SearchStrategy[Any]:
    """Return objects with the keys of the type and values of all kinds, nested, so that most are nearly valid."""
    names = st.sampled_from(sorted(names_in(msgspec.json.schema(TYPES[name]))) or ["any"])
    values = st.sampled_from(ODD) | JSON
    inner = st.dictionaries(names, values, max_size=4)
    whole = st.dictionaries(names, values | inner, max_size=6)
    return whole | whole.map(lambda value: {"number": 1, "url": "https://x", "event": {}} | value) | values


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=short(20, full=200), deadline=None)
@given(data=st.data())
def test_the_check_refuses_no_payload_that_the_decoder_accepts(name: str, data: st.DataObject) -> None:
    text = json.dumps(data.draw(payloads_of(name)))
    check = PayloadCheck(json.dumps(msgspec.json.schema(TYPES[name])))

    fault = check.fault(text)

    if fault is not None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=TYPES[name])


@pytest.mark.parametrize("name", Zoo.__dataclass_fields__)
def test_the_check_refuses_no_odd_value_that_the_decoder_accepts(name: str) -> None:
    for odd in ODD:
        text = json.dumps({"number": 1, name: odd})

        if ZOO.fault(text) is not None:
            with pytest.raises(msgspec.ValidationError):
                msgspec.json.decode(text, type=Zoo)


ZOO = PayloadCheck(json.dumps(msgspec.json.schema(Zoo)))


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (None, 'payload: "number" is a required property'),
        ('{"number": "secret"}', 'payload.number: the value is not of type "integer"'),
        ('{"number": 1, "pair": [1, 2]}', 'payload.pair[1]: the value is not of type "string"'),
        ('{"number": 1, "few": 9}', "payload.few: the value is greater than the maximum of 3"),
        ('{"number": 1, "short": "abc"}', "payload.short: the value is longer than 2 characters"),
        ("[]", 'payload: the value is not of type "object"'),
    ],
)
def test_a_mismatch_is_described_without_its_value(payload: str | None, sentence: str) -> None:
    assert ZOO.fault(payload) == sentence


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "{}",
        '{"type": "nonsense"}',
        '{"$ref": "https://example.com/schema.json"}',
        '{"$ref": "#/$defs/none"}',
        "[]",
    ],
)
def test_a_schema_that_cannot_be_compiled_refuses_nothing(schema: str | None) -> None:
    assert PayloadCheck(schema).fault('{"url": 3}') is None


@pytest.mark.parametrize(
    "payload", ['{"number": 1, "junk": "\\ud800"}', "{" * 3, '{"anything": ' + "[" * 900 + "]" * 900 + "}"]
)
def test_a_payload_that_cannot_be_checked_is_left_to_the_decoder(payload: str) -> None:
    assert ZOO.fault(payload) is None


@pytest.mark.parametrize(
    "schema",
    [
        '{"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}',
        '{"not": {"type": "string", "pattern": "^b"}}',
        '{"if": {"type": "string", "format": "uuid"}, "then": {"maxLength": 1}}',
        '{"type": "string", "anyOf": [{"minLength": 1}], "oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}',
    ],
)
def test_a_keyword_that_is_not_checked_never_makes_a_schema_stricter(schema: str) -> None:
    assert PayloadCheck(schema).fault('"ab"') is None


def test_a_list_with_few_matches_is_accepted_although_their_pattern_is_not_checked() -> None:
    schema = '{"contains": {"type": "string", "pattern": "^a"}, "maxContains": 1}'

    assert PayloadCheck(schema).fault('["ab", "b"]') is None


def test_a_value_that_fits_no_alternative_is_refused() -> None:
    assert PayloadCheck('{"oneOf": [{"type": "string"}, {"type": "null"}]}').fault("1") is not None
