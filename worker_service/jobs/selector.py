"""Which jobs: one grammar for the command line, HTTP and the page. Pure; the store turns it into SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from worker_service.base.errors import BadInput, did_you_mean
from worker_service.jobs.model import Status


class Column(Struct, frozen=True):
    """A column of jobs that people write, choose by or see in lists: declared here, for the command line, HTTP and SQL.

    A new one needs a field of `Job`, and of `NewJob` if people write it, and of `Selector` if they choose by it."""

    name: str
    flag: str
    metavar: str = "NAME"
    is_number: bool = False
    heading: str = ""
    """In lists of jobs; empty: it has no place of its own there."""
    written: str = ""
    """What the flag means where a job is written; empty: it has none there."""
    is_filled: bool = False
    """Refused where it is written as nothing but spaces."""
    chosen_by: str = ""
    """The field of `Selector`; empty: nobody chooses by it."""
    divides: bool = False
    """Where it is chosen by, commas stand between several."""
    is_part: bool = False
    """Chosen by what stands anywhere in it, in capitals or not."""
    about: str = ""
    """What the flag means there, if its name does not tell."""


# In the order of their places in lists.
COLUMNS = (
    Column("job_type", "--type", "TYPE", heading="TYPE", chosen_by="job_types", divides=True),
    Column("name", "--name", "TEXT", heading="NAME", is_filled=True, chosen_by="name", is_part=True,
           written="What it is about, as lists show it: a file's name.", about="Jobs with this in their name."),
    Column("platform", "--platform", heading="PLATFORM", chosen_by="platforms", divides=True, is_filled=True,
           written="'local' unless given."),
    Column("account", "--account", heading="ACCOUNT", chosen_by="accounts",
           written="The remote account that the job is about.", about="The remote account that jobs are about."),
    Column("owner", "--owner", heading="OWNER", chosen_by="owners", written="The person it belongs to."),
    Column("source", "--source", written="What may ask for a rest, such as a credential."),
    Column("batch_id", "--batch", "N", is_number=True, chosen_by="batch_id", written="The batch that it belongs to."),
    Column("error_code", "--error", "CODE", chosen_by="error_code", about="Jobs whose last error has this code."),
)  # fmt: skip
WRITTEN = tuple(column for column in COLUMNS if column.written)
CHOSEN_BY = tuple(column for column in COLUMNS if column.chosen_by)


class Selector(Struct, frozen=True):
    """Jobs that match everything that is given. Times are UTC text; an empty selector matches every job."""

    ids: Sequence[int] = ()
    """These jobs, and those of `batch_ids` and `document_ids`: what is named adds up, all else narrows it down."""
    statuses: Sequence[Status] = ()
    job_types: Sequence[str] = ()
    platforms: Sequence[str] = ()
    accounts: Sequence[str] = ()
    owners: Sequence[str] = ()
    batch_id: int | None = None
    error_code: str | None = None
    name: str | None = None
    """A part of it."""
    since: str | None = None
    """Created, or ended, at this time or later."""
    older_than: str | None = None
    """Ended before this time; of live jobs: created before it."""
    match: Sequence[tuple[str, object]] = ()
    """Path into the payload (`file_id`, `page_range[0]`) and the JSON value that must stand there."""
    batch_ids: Sequence[int] = ()
    document_ids: Sequence[int] = ()

    @property
    def is_empty(self) -> bool:
        return self == Selector()

    @property
    def names_more(self) -> bool:
        """Than jobs by their ids."""
        return bool(self.batch_ids or self.document_ids)


S = TypeVar("S", bound=StrEnum)


def one_of(statuses: type[S], word: str) -> S:
    try:
        return statuses(word)
    except ValueError:
        hint = did_you_mean(word, statuses, f"it is one of {', '.join(statuses)}.")
        raise BadInput(f"there is no status {word!r}", hint) from None


def parse_match(text: str) -> tuple[str, object]:
    """Read ``payload.file_id=abc``. The value is JSON where it can be read as JSON, else text."""
    path, equals, value = text.partition("=")
    if not equals or not path.removeprefix("payload.") or not path.startswith("payload."):
        raise BadInput(f"{text!r} does not say what to match", "write it like payload.file_id=abc")
    try:
        wanted: object = json.loads(value)
    except ValueError:
        wanted = value
    return path.removeprefix("payload."), wanted
