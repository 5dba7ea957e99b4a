"""Types of the settings that are tables of the settings file.

The modules of commands, schedules, notifications, cluster and proxy are imported only if they are set: they would add
35 ms to each start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from worker_service.base.clock import parse_duration
from worker_service.base.errors import ConfigError
from worker_service.settings.value_types import (
    INTERVAL,
    YEAR_SECONDS,
    Jobs,
    ValueType,
    format_seconds,
    read_struct,
    read_table,
)

if TYPE_CHECKING:
    from worker_service.jobs.retries import RetryRule
    from worker_service.settings.cluster import Cluster
    from worker_service.settings.cron_schedules import Schedule
    from worker_service.settings.notifications import NotifyRule
    from worker_service.settings.trusted_proxy import TrustedProxy

T = TypeVar("T")
NEVER = "never"

_LIMIT_KINDS = ("type", "class", "owner")


# ── Limits, retries and prune ─────────────────────────────────────────────────────────────────────────────────────────


def _parse_limits(raw: object, label: str, _: Path) -> dict[str, dict[str, int]]:
    limits: dict[str, dict[str, int]] = {}
    for kind, table in read_table(raw, label).items():
        if kind not in _LIMIT_KINDS:
            raise ConfigError(f"{label}: there is no limit of {kind!r}", "write [limits.type], .class or .owner")
        limits[kind] = {
            name: _JOBS.read(most, f"{label}: limits.{kind}.{name}")
            for name, most in read_table(table, f"{label}: limits.{kind}").items()
        }
    for name in limits.get("class", {}):
        if name not in ("cpu", "io", "node"):
            raise ConfigError(f"{label}: limits.class.{name}: the classes are cpu, io and node")
    return limits


def _show_limits(limits: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    return {f"{kind}.{name}": str(most) for kind, most_by_name in limits.items() for name, most in most_by_name.items()}


_JOBS = ValueType("a number of jobs", lambda raw, _, __: msgspec.convert(raw, Jobs))
LIMITS = ValueType("a table", _parse_limits, _show_limits)


class _RetryTable(Struct, frozen=True):
    max: Annotated[int, Meta(ge=0, le=1000, description="a number of retries from 0 to 1000")] | None = None
    first: Annotated[float | None, INTERVAL] = None
    most: Annotated[float | None, INTERVAL] = None


def _parse_retries(raw: object, label: str, _: Path) -> dict[str, RetryRule]:
    return {
        name: _parse_retry_rule(table, f"{label}: retries.{name}") for name, table in read_table(raw, label).items()
    }


def _parse_retry_rule(raw: object, label: str) -> RetryRule:
    from worker_service.jobs.retries import RetryRule

    table, default = read_struct(_RetryTable, raw, label), RetryRule()
    first, most = table.first, table.most
    # If only one is set, adjust the default of the other to it.
    if first is None:
        first = default.first_seconds if most is None else min(default.first_seconds, most)
    if most is None:
        most = max(default.most_seconds, first)
    if first > most:
        raise ConfigError(
            f"{label}: first is {format_seconds(first)} and most {format_seconds(most)}: no wait is longer than most"
        )
    return RetryRule(table.max, first, most)


def _show_retries(rules: Mapping[str, RetryRule]) -> dict[str, str]:
    return {job_type: _show_retry_rule(rule) for job_type, rule in rules.items()}


def _show_retry_rule(rule: RetryRule) -> str:
    max_retries = "" if rule.max is None else f"max {rule.max}, "
    return f"{max_retries}first {format_seconds(rule.first_seconds)}, most {format_seconds(rule.most_seconds)}"


RETRIES = ValueType("a table", _parse_retries, _show_retries)


def _parse_age(raw: object, _: str, __: Path) -> str:
    age = msgspec.convert(raw, str)
    if age != NEVER and not 1 <= parse_duration(age).total_seconds() <= 100 * YEAR_SECONDS:
        raise ValueError
    return age


_Age = Annotated[str, ValueType("a length of time such as 30d, or never", _parse_age)]


class _PruneTable(Struct, frozen=True):
    completed: _Age = "90d"
    failed: _Age = "90d"
    cancelled: _Age = "90d"
    logs: _Age = "30d"


def _parse_prune(raw: object, label: str, _: Path) -> dict[str, str]:
    return msgspec.structs.asdict(read_struct(_PruneTable, raw, f"{label}: prune"))


PRUNE = ValueType("a table", _parse_prune, dict)


# ── Tables with a module of their own ─────────────────────────────────────────────────────────────────────────────────


def _imported_if_set(what: str, path: str, unset: T, raw_unset: Sequence[object]) -> ValueType[T]:
    """Return the type at `path` (module.NAME), whose module is imported only for another value than `raw_unset`."""

    def load() -> ValueType[T]:
        module, _, name = path.partition(".")
        value_type: ValueType[T] = getattr(import_module(f"worker_service.settings.{module}"), name)
        return value_type

    def parse(raw: object, label: str, base: Path) -> T:
        return unset if raw in raw_unset else load().parse(raw, label, base)

    def write(value: T) -> str | Mapping[str, str]:
        if value == unset:
            return "" if unset is None else {}
        return load().write(value)

    return ValueType(what, parse, write)


COMMANDS: ValueType[dict[str, Any]] = _imported_if_set("a table", "commands.COMMANDS", {}, ({},))
SCHEDULES: ValueType[tuple[Schedule, ...]] = _imported_if_set("a list of tables", "cron_schedules.SCHEDULES", (), ([],))
CLUSTER: ValueType[Cluster | None] = _imported_if_set("a cluster", "cluster.CLUSTER", None, ("", {}))
RULES: ValueType[tuple[NotifyRule, ...]] = _imported_if_set("a list of tables", "notifications.RULES", (), ([],))
ADDRESSES: ValueType[dict[str, str]] = _imported_if_set("a table", "notifications.ADDRESSES", {}, ({},))
PROXY: ValueType[TrustedProxy | None] = _imported_if_set(
    "a proxy that signs users in", "trusted_proxy.PROXY", None, ({},)
)
