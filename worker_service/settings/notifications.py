"""The tables [[notify]] and [addresses]: which notices go to whom, and when. `services.notifications` sends them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Struct, field

from worker_service.base.clock import from_text, zone_of
from worker_service.base.errors import ConfigError
from worker_service.jobs.history import Notice
from worker_service.settings.value_types import (
    TIME_FROM_ZERO,
    ZONE,
    FilledText,
    ValueType,
    parse_words,
    read_struct,
    read_table,
)

OWNER = "owner"

# The kinds of notices, each as a message says it of one and of several.
KINDS = {
    "job.failed": ("job failed", "jobs failed"),
    "document.failed": ("document failed", "documents failed"),
    "document.ready": ("document is read", "documents are read"),
    "batch.done": ("batch is done", "batches are done"),
    "batch.failed": ("batch ended with failures", "batches ended with failures"),
    "batch.stopped": ("batch was stopped", "batches were stopped"),
    "batch.waiting": ("batch waits for another of its owner", "batches wait for others of their owner"),
    "worker.silent": ("worker is silent", "workers are silent"),
    "queue.old": ("job waits too long", "jobs wait too long"),
    "schedule.missed": ("schedule missed some of its times", "schedules missed some of their times"),
    "disk.low": ("disk is nearly full", "disks are nearly full"),
}


def _parse_address(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or ":" not in raw or not raw.isprintable():
        raise ValueError
    return raw


def _parse_to(raw: object, label: str, base: Path) -> str:
    return OWNER if raw == OWNER else _parse_address(raw, label, base)


def _parse_kinds(raw: object, _: str, __: Path) -> tuple[str, ...]:
    kinds = tuple(parse_words(raw))
    if not kinds or not set(kinds) <= KINDS.keys():
        raise ValueError
    return kinds


def _parse_quiet(raw: object, _: str, __: Path) -> QuietHours:
    begin, end = (time.fromisoformat(word.strip()) for word in str(raw).split("-"))
    return QuietHours(begin, end)


class QuietHours(NamedTuple):
    begin: time
    end: time
    """Earlier than `begin` if the hours go on after midnight."""

    def include(self, local: time) -> bool:
        if self.begin <= self.end:
            return self.begin <= local < self.end
        return local >= self.begin or local < self.end


_ADDRESS = ValueType("an address such as mailto:ops@example.com, https://example.com/hook or apprise:", _parse_address)


class NotifyRule(Struct, frozen=True):
    name: FilledText
    to: Annotated[str, ValueType(f"{_ADDRESS.description}, or {OWNER!r}", _parse_to)]
    when: Annotated[Sequence[str], ValueType(f"a list of {', '.join(KINDS)}", _parse_kinds)] = (
        "job.failed",
        "document.failed",
        "batch.done",
        "batch.failed",
        "worker.silent",
        "queue.old",
        "schedule.missed",
        "disk.low",
    )
    owners: Annotated[Sequence[str], ValueType("a list of owners", lambda raw, _, __: tuple(parse_words(raw)))] = ()
    group_seconds: Annotated[float, TIME_FROM_ZERO] = field(default=60.0, name="group")
    """Notices that follow the first one within this time share its message."""
    quiet: Annotated[QuietHours | None, ValueType("hours such as 22:00-07:00", _parse_quiet)] = None
    zone: Annotated[str, ZONE] = ""

    def is_quiet(self, moment: datetime, default_zone: str) -> bool:
        local = moment.astimezone(zone_of(self.zone or default_zone)).time()
        return self.quiet is not None and self.quiet.include(local)

    def concerns(self, notice: Notice) -> bool:
        # The failure of a job that reads a document is also a failure of the document.
        reads_document = notice.kind == "job.failed" and notice.generation is not None
        if reads_document and "document.failed" in self.when:
            return False
        return notice.kind in self.when and (not self.owners or notice.owner in self.owners)

    def is_due(self, oldest: Notice, now: datetime, default_zone: str) -> bool:
        waited_seconds = (now - from_text(oldest.at)).total_seconds()
        return waited_seconds >= self.group_seconds and not self.is_quiet(now, default_zone)


def hide_secrets(address: str) -> str:
    # Keep scheme and host: user, path and query may be secret.
    return re.sub(r"(?<=://)(?:[^/@]*@)?([^/]*).*", r"\1/…", address)


# ── The tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_rules(raw: object, label: str, _: Path) -> tuple[NotifyRule, ...]:
    if not isinstance(raw, list):
        raise ConfigError(f"{label}: notify is a list of tables", "write [[notify]]")
    rules = tuple(_parse_rule(table, f"{label}: notify[{number}]") for number, table in enumerate(raw))
    repeated = [name for name, count in Counter(rule.name for rule in rules).items() if count > 1]
    if repeated:
        raise ConfigError(f"{label}: two tables [[notify]] are called {repeated[0]!r}", "give each a name of its own")
    return rules


def _parse_rule(raw: object, label: str) -> NotifyRule:
    name = read_table(raw, label).get("name")
    return read_struct(NotifyRule, raw, f"{label} ({name})" if isinstance(name, str) else label)


def _format_rules(rules: Sequence[NotifyRule]) -> dict[str, str]:
    return {rule.name: f"{', '.join(rule.when)}: {hide_secrets(rule.to)}" for rule in rules}


def _parse_addresses(raw: object, label: str, _: Path) -> dict[str, str]:
    addresses = read_table(raw, f"{label}: addresses")
    return {owner: _ADDRESS.read(address, f"{label}: addresses.{owner}") for owner, address in addresses.items()}


def _format_addresses(addresses: Mapping[str, str]) -> dict[str, str]:
    return {owner: hide_secrets(address) for owner, address in addresses.items()}


RULES = ValueType("a list of tables", _parse_rules, _format_rules)
ADDRESSES = ValueType("a table", _parse_addresses, _format_addresses)
