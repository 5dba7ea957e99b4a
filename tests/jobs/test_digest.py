from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.full_length import short
from worker_service.jobs.digest import canonical, digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({}, "{}"),
        ([], "[]"),
        ({"b": 1, "a": [1, 2.5, "x", None, True]}, '{"a":[1,2.5,"x",null,true],"b":1}'),
        ({"é": "ü"}, '{"é":"ü"}'),
        ({"b": {"d": 1, "c": 2}}, '{"b":{"c":2,"d":1}}'),
    ],
)
def test_equal_values_have_one_canonical_json(value: object, text: str) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_a_value_that_json_cannot_express_has_no_canonical_json(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "dc32537e27486e2c652e7b35ccc22eda"),
        ({}, "dc7048f8f8747f561349cde127705c16"),
        ({"content": "abc", "page": 1, "settings": {"lang": "eng"}}, "0cabfad8df5bf80247287835c7b78ba7"),
        ({"é": "ü"}, "76d9fbf5cc5776c66beec95e4c5fe167"),
    ],
)
def test_a_digest_never_changes(value: object, expected: str) -> None:
    assert digest(value) == expected


@settings(max_examples=short(40, full=1000), deadline=None)
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=6))
def test_the_digest_ignores_key_order_and_a_json_round_trip(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))

    assert digest(backwards) == digest(value)
    assert digest(json.loads(json.dumps(value))) == digest(value)
    assert json.loads(canonical(value)) == value


@settings(max_examples=short(40, full=1000), deadline=None)
@given(one=JSON, other=JSON)
def test_different_values_have_different_digests(one: object, other: object) -> None:
    assert (digest(one) == digest(other)) == (canonical(one) == canonical(other))


def test_types_that_look_alike_have_different_digests() -> None:
    alike: list[object] = [1, "1", 1.0, True, [1], {"1": 1}, None, "", "null", 0, False]

    assert len({digest(value) for value in alike}) == len(alike)
