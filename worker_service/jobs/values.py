"""The library's `dataclass`, in a ninth of the time: for what every process of ours imports.

The library compiles two to seven methods for each class, and a fourth of what a process took to begin was that. Here
all classes share them but for `__init__` and `__eq__`, which are compiled when they are first called: of most classes
there is never a value. Whatever takes a dataclass takes these, and may inherit from them; to a type checker they are
the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

_made_so_far: list[Any] = []

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen=False, slots=False, eq=True):
        return partial(_made, frozen=frozen, slots=slots, eq=eq)


def compile_now() -> None:
    """For whoever forks processes, each of which would else do it anew: to make a value of every class known so far."""
    for made in _made_so_far:
        made.__init__ = _init(made)
    _made_so_far.clear()


def _made(cls: type, *, frozen: bool, slots: bool, eq: bool) -> Any:
    if dataclasses.is_dataclass(cls):
        # By its base. There are few.
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq)(cls)
    # Where a class has no text the library writes its signature there, which takes longer than all of this.
    text, cls.__doc__ = cls.__doc__, cls.__doc__ or "-"
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    made.__doc__ = text
    made.__dataclass_params__.frozen = frozen
    made.__init__ = _at_first_call(made, "__init__", _init)
    made.__repr__ = _repr
    if eq:
        made.__eq__ = _at_first_call(made, "__eq__", _eq)
        made.__hash__ = _at_first_call(made, "__hash__", _hash) if frozen else None
    if frozen:
        made.__setattr__, made.__delattr__, made.__reduce__ = _set, _delete, _reduce
    _made_so_far.append(made)
    return made


def _at_first_call(made: Any, name: str, compiled: Callable[[Any], Any]) -> Callable[..., Any]:
    def first(self: Any, /, *values: object, **named: object) -> Any:
        method = compiled(made)
        setattr(made, name, method)
        return method(self, *values, **named)

    return first


def _init(made: Any) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__}
    words, lines = ["self"], []
    for one in fields(made):
        name, value = one.name, one.name
        if one.default is not MISSING:
            known[f"_{name}"] = one.default
        elif one.default_factory is not MISSING:
            known[f"_{name}"] = one.default_factory
            value = f"_{name}() if {name} is _{name} else {name}"
        assert one.init or f"_{name}" not in known, name
        if one.init:
            words.append(f"{name}=_{name}" if f"_{name}" in known else name)
            lines.append(f"    _set(self, {name!r}, {value})\n")
    if hasattr(made, "__post_init__"):
        lines.append("    self.__post_init__()\n")
    exec(f"def __init__({', '.join(words)}):\n{''.join(lines) or '    pass'}", known)
    return known["__init__"]


def _eq(made: Any) -> Any:
    known: dict[str, Any] = {}
    names = [one.name for one in fields(made) if one.compare]
    ours, theirs = ("".join(f"{whose}.{name}, " for name in names) for whose in ("self", "other"))
    exec(
        "def __eq__(self, other):\n    if other.__class__ is not self.__class__:\n        return NotImplemented\n"
        f"    return ({ours}) == ({theirs})",
        known,
    )
    return known["__eq__"]


def _hash(made: Any) -> Any:
    names = [one.name for one in fields(made) if one.compare]
    compared = attrgetter(*names) if names else type
    return lambda self: hash(compared(self))


def _repr(self: Any) -> str:
    named = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
    return f"{self.__class__.__qualname__}({named})"


def _set(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Any) -> tuple[type, tuple[object, ...]]:
    return self.__class__, tuple(getattr(self, one.name) for one in fields(self))
