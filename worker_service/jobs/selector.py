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
    setting_help: str = ""
    """Help of the flag that sets the column; empty if users do not set it."""
    must_be_filled: bool = False
    filter_field: str = ""
    """Field of `Selector`; empty if there is no filter."""
    takes_several: bool = False
    """A filter takes several values, separated by commas."""
    matches_part: bool = False
    """A filter matches any part; case is ignored."""
    filter_help: str = ""


# The order of the columns in lists.
COLUMNS = (
    Column("job_type", "--type", "TYPE", heading="TYPE", filter_field="job_types", takes_several=True,
           filter_help="Jobs of this type; several separated by commas."),
    Column("name", "--name", "TEXT", must_be_filled=True, filter_field="name", matches_part=True,
           setting_help="Name in lists, such as a file name.", filter_help="Jobs with this in their name."),
    Column("platform", "--platform", heading="PLATFORM", filter_field="platforms", takes_several=True,
           must_be_filled=True, setting_help="Default: local.",
           filter_help="Jobs of this platform; several separated by commas."),
    Column("account", "--account", heading="ACCOUNT", filter_field="accounts",
           setting_help="The job's remote account.", filter_help="Jobs of this remote account."),
    Column("owner", "--owner", heading="OWNER", filter_field="owners", setting_help="Owner of the job.",
           filter_help="Jobs of this owner."),
    Column("source", "--source",
           setting_help="Source that the job uses, such as a credential; a busy source delays its jobs."),
    Column("batch_id", "--batch", "N", is_number=True, filter_field="batch_id",
           setting_help="Add the job to this batch.", filter_help="Jobs of this batch."),
    Column("error_code", "--error", "CODE", filter_field="error_code",
           filter_help="Jobs whose last error has this code."),
)  # fmt: skip
SETTABLE_COLUMNS = tuple(column for column in COLUMNS if column.setting_help)
FILTER_COLUMNS = tuple(column for column in COLUMNS if column.filter_field)


class Selector(Struct, frozen=True):
    """Jobs that match all fields that are given."""

    ids: Sequence[int] = ()
    """A job matches if it is in `ids`, `batch_ids` or `document_ids`."""
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
        """Return whether batches or documents are named."""
        return bool(self.batch_ids or self.document_ids)


S = TypeVar("S", bound=StrEnum)


def parse_choice(choices: type[S], word: str, noun: str = "status") -> S:
    try:
        return choices(word)
    except ValueError:
        from worker_service.base.suggestions import did_you_mean  # only needed after a mistake

        hint = did_you_mean(word, choices, f"it is one of {', '.join(choices)}")
        raise BadInput(f"there is no {noun} {word!r}", hint) from None


def parse_match(text: str) -> tuple[str, object]:
    """Parse ``payload.file_id=abc``, whose value is JSON if possible, otherwise text."""
    path, equals, value = text.partition("=")
    path_in_payload = path.removeprefix("payload.")
    if not equals or path_in_payload in ("", path):
        raise BadInput(f"{text!r} does not say what to match", "write it like payload.file_id=abc")
    try:
        wanted: object = json.loads(value)
    except ValueError:
        wanted = value
    return path_in_payload, wanted
