"""Selectors of jobs, and the columns by which users select, list and set jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.job import Status


class Column(Struct, frozen=True):
    """A column that users set, filter by or see."""

    name: str
    flag: str
    metavar: str = "NAME"
    is_number: bool = False
    heading: str = ""
    """Heading in lists of jobs; empty if the column is not listed."""
    written: str = ""
    """Help of the flag that sets the column; empty if users do not set it."""
    needs_text: bool = False
    filter_field: str = ""
    """Field of `Selector`; empty if there is no filter."""
    takes_several: bool = False
    """A filter takes several values, separated by commas."""
    is_part: bool = False
    """A filter matches any part; case is ignored."""
    about: str = ""


# The order of the columns in lists.
COLUMNS = (
    Column("job_type", "--type", "TYPE", heading="TYPE", filter_field="job_types", takes_several=True,
           about="Jobs of this type; several separated by commas."),
    Column("name", "--name", "TEXT", needs_text=True, filter_field="name", is_part=True,
           written="Name in lists, such as a file name.", about="Jobs with this in their name."),
    Column("platform", "--platform", heading="PLATFORM", filter_field="platforms", takes_several=True, needs_text=True,
           written="Default: local.",
           about="Jobs of this platform; several separated by commas."),
    Column("account", "--account", heading="ACCOUNT", filter_field="accounts",
           written="The job's remote account.", about="Jobs of this remote account."),
    Column("owner", "--owner", heading="OWNER", filter_field="owners", written="Owner of the job.",
           about="Jobs of this owner."),
    Column("source", "--source",
           written="Source that the job uses, such as a credential; a busy source delays its jobs."),
    Column("batch_id", "--batch", "N", is_number=True, filter_field="batch_id", written="Add the job to this batch.",
           about="Jobs of this batch."),
    Column("error_code", "--error", "CODE", filter_field="error_code", about="Jobs whose last error has this code."),
)  # fmt: skip
SETTABLE_COLUMNS = tuple(column for column in COLUMNS if column.written)
FILTER_COLUMNS = tuple(column for column in COLUMNS if column.filter_field)


class Selector(Struct, frozen=True):
    """Jobs that match all fields that are given."""

    ids: Sequence[int] = ()
    """Jobs in any of `ids`, `batch_ids` and `document_ids` are selected."""
    statuses: Sequence[Status] = ()
    job_types: Sequence[str] = ()
    platforms: Sequence[str] = ()
    accounts: Sequence[str] = ()
    owners: Sequence[str] = ()
    batch_id: int | None = None
    error_code: str | None = None
    name: str | None = None
    since: str | None = None
    """UTC text: jobs that ended, or if live were created, at this time or later."""
    older_than: str | None = None
    match: Sequence[tuple[str, object]] = ()
    """Paths into the payload (`file_id`, `page_range[0]`), with JSON values."""
    batch_ids: Sequence[int] = ()
    document_ids: Sequence[int] = ()

    @property
    def is_empty(self) -> bool:
        return self == Selector()

    @property
    def names_groups(self) -> bool:
        """Return whether batches or documents are named besides ids."""
        return bool(self.batch_ids or self.document_ids)


S = TypeVar("S", bound=StrEnum)


def one_of(choices: type[S], word: str, noun: str = "status") -> S:
    try:
        return choices(word)
    except ValueError:
        from worker_service.base.suggestions import did_you_mean  # only needed after a mistake

        hint = did_you_mean(word, choices, f"it is one of {', '.join(choices)}")
        raise BadInput(f"there is no {noun} {word!r}", hint) from None


def parse_match(text: str) -> tuple[str, object]:
    """Parse ``payload.file_id=abc``, whose value is JSON if possible, otherwise text."""
    path, equals, value = text.partition("=")
    if not equals or not path.removeprefix("payload.") or not path.startswith("payload."):
        raise BadInput(f"{text!r} does not say what to match", "write it like payload.file_id=abc")
    try:
        wanted: object = json.loads(value)
    except ValueError:
        wanted = value
    return path.removeprefix("payload."), wanted
