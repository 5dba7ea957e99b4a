"""`dataclass(frozen=True, slots=True)`, made in a ninth of the time: for what every process of ours imports.

The library compiles six methods for each class, and a fifth of what a command took to begin was that. Here all classes
share them but for `__init__` and `__eq__`, which are compiled when they are first called: of most classes there is
never a value. Whatever takes a dataclass takes these, and may inherit from them; to a type checker they are the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen, slots):
        assert (frozen, slots) == (True, True)
        return _made


def _made(cls: type) -> Any:
    if dataclasses.is_dataclass(cls):
        # By its base. There are few.
        return dataclasses.dataclass(frozen=True, slots=True)(cls)
    # Where a class has no text the library writes its signature there, which takes longer than all of this.
    text, cls.__doc__ = cls.__doc__, cls.__doc__ or "-"
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__doc__ = text
    made.__dataclass_params__.frozen = True
    names = [one.name for one in fields(made) if one.compare]
    made._compared = staticmethod(attrgetter(*names) if names else type)
    for method in (__init__, __repr__, __eq__, __hash__, __setattr__, __delattr__, __reduce__):
        setattr(made, method.__name__, method)
    return made


def __init__(self: Any, *values: object, **named: object) -> None:
    made: Any = self.__class__
    made.__init__ = _compiled(made)
    made.__init__(self, *values, **named)


def _compiled(made: type) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__}
    words, lines = [], []
    for one in fields(made):
        name, value = one.name, one.name
        if one.default is not MISSING:
            known[f"_{name}"] = one.default
        elif one.default_factory is not MISSING:
            known[f"_{name}"] = one.default_factory
            value = f"_{name}() if {name} is _{name} else {name}"
        words.append(f"{name}=_{name}" if f"_{name}" in known else name)
        lines.append(f"    _set(self, {name!r}, {value})\n")
    exec(f"def __init__({', '.join(['self', *words])}):\n{''.join(lines) or '    pass'}", known)
    return known["__init__"]


def __repr__(self: Any) -> str:
    named = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
    return f"{self.__class__.__qualname__}({named})"


def __eq__(self: Any, other: Any) -> Any:
    made: Any = self.__class__
    made.__eq__ = _equality(made)
    return made.__eq__(self, other)


def _equality(made: type) -> Any:
    known: dict[str, Any] = {}
    names = [one.name for one in fields(made) if one.compare]
    ours, theirs = ("".join(f"{whose}.{name}, " for name in names) for whose in ("self", "other"))
    exec(
        "def __eq__(self, other):\n    if other.__class__ is not self.__class__:\n        return NotImplemented\n"
        f"    return ({ours}) == ({theirs})",
        known,
    )
    return known["__eq__"]


def __hash__(self: Any) -> int:
    return hash(self._compared(self))


def __setattr__(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def __reduce__(self: Any) -> tuple[type, tuple[object, ...]]:
    return self.__class__, tuple(getattr(self, one.name) for one in fields(self))
