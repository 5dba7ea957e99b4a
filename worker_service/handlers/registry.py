"""Find what distributions bring: the entry points of a group, handlers before all, and what each of them offers.

Finding reads metadata only. Loading imports the handler's module, so only the nursery and its children do that,
and each in a trial child first (`worker_service.children.trial`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.metadata import EntryPoint, distributions
from typing import Any

from worker_service.errors import PagemillError
from worker_service.handlers.contract import Family, Handler
from worker_service.jobs.values import dataclass

GROUP = "worker_service.handlers"

Commands = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """One entry point, not yet imported."""

    name: str
    spec: str
    """module:attribute"""
    distribution: str

    def load(self) -> Any:
        """Import it. Whatever goes wrong inside it comes out as it is."""
        return EntryPoint(self.name, self.spec, GROUP).load()


@dataclass(frozen=True, slots=True)
class Offer:
    """What one entry point turned out to hold."""

    handlers: Sequence[Handler[Any]] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Job types that it names and cannot provide, each with the reason."""


def find(extra: Sequence[str] = (), path: Sequence[str] | None = None, group: str = GROUP) -> list[FoundEntry]:
    """Every entry point of the group on the path (None: Python's own), by name; `extra` are specs that no distribution
    carries."""
    found: dict[FoundEntry, None] = {}
    seen: set[str] = set()
    for distribution in distributions(path=list(path)) if path is not None else distributions():
        name = distribution.name
        # The first one on the path is the one that is imported.
        if name in seen:
            continue
        seen.add(name)
        for point in distribution.entry_points.select(group=group):
            found[FoundEntry(point.name, point.value, name)] = None
    for spec in extra:
        found[FoundEntry(spec, spec, "extra")] = None
    return sorted(found, key=lambda one: (one.name, one.distribution))


def load(found: FoundEntry, settings: Mapping[str, Commands]) -> Offer:
    offered = found.load()
    if isinstance(offered, Family):
        return _of_family(offered, settings.get(offered.section, {}))
    if isinstance(offered, Handler):
        return Offer([offered])
    if isinstance(offered, Iterable):
        handlers = list(offered)
        if all(isinstance(one, Handler) for one in handlers):
            return Offer(handlers)
    raise TypeError(f"{found.spec} is {type(offered).__name__}: an entry point names a Handler, several, or a Family")


def clashes(claims: Iterable[tuple[str, FoundEntry]]) -> dict[str, str]:
    """The job types that more than one entry point provides, each with a sentence. Nobody gets them: which one is
    meant cannot be known."""
    by_type: dict[str, list[FoundEntry]] = {}
    for job_type, found in claims:
        by_type.setdefault(job_type, []).append(found)
    return {
        job_type: f"{job_type} is provided by {' and by '.join(_named(several))}: uninstall or rename one of them"
        for job_type, several in by_type.items()
        if len(several) > 1
    }


def _of_family(family: Family, tables: Commands) -> Offer:
    handlers: list[Handler[Any]] = []
    refused: dict[str, str] = {}
    for key, table in tables.items():
        try:
            handlers.append(family.make(key, table))
        except (ValueError, PagemillError) as error:
            refused[key] = f"[{family.section}.{key}]: {error}"
    return Offer(handlers, refused)


def _named(several: Sequence[FoundEntry]) -> Iterator[str]:
    for found in several:
        yield f"{found.distribution} ({found.spec})"
