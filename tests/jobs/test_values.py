"""Values are what the library's dataclasses are, and are made sooner."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import msgspec
import pytest

from worker_service.jobs import values


def paper(made_by: Any) -> Any:
    @made_by(frozen=True, slots=True)
    class Paper:
        number: int
        name: str = "untitled"
        pages: Sequence[int] = field(default_factory=list)
        size: int = field(default=0, compare=False)

        @property
        def is_named(self) -> bool:
            return self.name != "untitled"

    return Paper


def nothing(made_by: Any) -> Any:
    @made_by(frozen=True, slots=True)
    class Nothing:
        """Of which there is nothing to say."""

    return Nothing


def basket(made_by: Any) -> Any:
    @made_by(slots=True)
    class Basket:
        owner: str
        papers: list[int] = field(default_factory=list)
        number: int = field(init=False)

        def __post_init__(self) -> None:
            self.number = len(self.papers)

    return Basket


def thing(made_by: Any) -> Any:
    @made_by(slots=True, eq=False)
    class Thing:
        name: str

    return Thing


def longer(made_by: Any, base_by: Any) -> Any:
    @made_by(frozen=True, slots=True)
    class Longer(paper(base_by)):  # type: ignore[misc]
        by: str = ""

    return Longer


OURS, THEIRS = (pytest.param(one, id=name) for one, name in ((values.dataclass, "ours"), (dataclass, "the library's")))
both = pytest.mark.parametrize("made_by", [OURS, THEIRS])


@both
def test_a_value_is_what_was_said_of_it(made_by: Any) -> None:
    Paper, Nothing = paper(made_by), nothing(made_by)

    assert repr(Paper(1, pages=(2, 3))).endswith("Paper(number=1, name='untitled', pages=(2, 3), size=0)")
    assert repr(Nothing()).endswith("Nothing()")
    assert Paper(1).pages is not Paper(1).pages
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        Paper()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Paper(1, colour="red")


@both
def test_values_of_one_class_with_the_same_fields_are_equal_and_hash_alike(made_by: Any) -> None:
    Paper, Nothing = paper(made_by), nothing(made_by)

    assert Paper(1, pages=(2,), size=3) == Paper(1, pages=(2,), size=4)
    assert {Paper(1, pages=()), Paper(1, pages=(), size=9)} == {Paper(1, pages=())}
    assert Paper(1) != Paper(2)
    assert Paper(1) != (1, "untitled", [], 0)
    assert (Nothing() == Nothing(), len({Nothing(), Nothing()})) == (True, 1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Paper(1))


@both
def test_nobody_changes_a_value_or_adds_to_it(made_by: Any) -> None:
    one = paper(made_by)(1)

    for name in ("number", "colour"):
        with pytest.raises((FrozenInstanceError, TypeError)):
            setattr(one, name, 2)
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'number'"):
        del one.number
    assert not hasattr(one, "__dict__")


@both
def test_whatever_takes_a_dataclass_takes_it(made_by: Any) -> None:
    Paper = paper(made_by)
    one = Paper(1, "a", [2])

    assert replace(one, name="b") == Paper(1, "b", [2])
    assert dataclasses.asdict(one) == {"number": 1, "name": "a", "pages": [2], "size": 0}
    assert msgspec.json.encode(one) == b'{"number":1,"name":"a","pages":[2],"size":0}'
    match one:
        case Paper(number, name):
            assert (number, name) == (1, "a")


@both
def test_what_is_not_frozen_may_be_changed_and_is_made_ready_by_itself(made_by: Any) -> None:
    Basket = basket(made_by)
    one, other = Basket("ann", [1, 2]), Basket("ann")

    assert (one.number, other.number, one == other) == (2, 0, False)
    other.papers, other.number = [1, 2], 2
    assert one == other
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    with pytest.raises(AttributeError):
        one.colour = "red"


@both
def test_things_are_told_apart_by_what_they_are_where_that_was_asked(made_by: Any) -> None:
    Thing = thing(made_by)
    one = Thing("a")

    assert (one == one, one == Thing("a"), len({one, Thing("a")})) == (True, False, 2)


@both
def test_who_inherits_calls_what_was_made_for_its_base(made_by: Any) -> None:
    class Named(paper(made_by)):  # type: ignore[misc]
        __slots__ = ()

        def __init__(self, name: str) -> None:
            super().__init__(1, name)

    assert [Named(name).name for name in ("a", "b")] == ["a", "b"]
    assert (Named("a") == Named("a"), Named("a") == paper(made_by)(1, "a")) == (True, False)


@pytest.mark.parametrize("base_by", [OURS, THEIRS])
@both
def test_either_may_inherit_from_the_other(made_by: Any, base_by: Any) -> None:
    Longer = longer(made_by, base_by)
    one = Longer(1, by="ann")

    assert (one.number, one.by, one.is_named) == (1, "ann", False)
    assert repr(one).endswith("Longer(number=1, name='untitled', pages=[], size=0, by='ann')")
    assert (one == Longer(1, by="ann"), one == Longer(1), one == paper(base_by)(1)) == (True, False, False)
    with pytest.raises(FrozenInstanceError):
        one.number = 2


def test_a_value_passes_between_processes() -> None:
    from worker_service.jobs.model import Lease

    lease = Lease(1, 2, "w1")

    assert pickle.loads(pickle.dumps(lease)) == lease
