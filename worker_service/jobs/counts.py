"""Counts of jobs, errors and work, and results of checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from worker_service.jobs.job import Status


class Counts(Struct, frozen=True):
    by_status: Mapping[Status, int]
    oldest_pending_at: str | None


class LiveCounts(Struct, frozen=True):
    job_type: str
    pending: int
    held: int
    running: int


class TypeCounts(LiveCounts, frozen=True):
    completed: int
    failed: int
    cancelled: int


class PlatformCount(Struct, frozen=True):
    platform: str
    count: int
    """Number of pending jobs."""


class ErrorCount(Struct, frozen=True):
    code: str
    job_type: str
    jobs: int
    newest_job_id: int
    newest_message: str | None
    newest_remedy: str | None
    newest_name: str | None
    """Name of the newest job, such as that of its file."""
    newest_at: str


class HourOfWork(Struct, frozen=True):
    """Jobs of a type that completed or failed for good in an hour."""

    at: str
    """Start of the hour."""
    job_type: str
    completed: int
    failed: int
    pages: int
    """Pages read by the completed jobs."""
    seconds: float
    """Sum of the run times."""
    longest_seconds: float
    waited_seconds: float
    """Sum of the times from a job's earliest possible start to its attempt."""
    longest_wait_seconds: float

    @property
    def jobs(self) -> int:
        return self.completed + self.failed


class BrokenPromise(NamedTuple):
    """A rule about the history of jobs that a row in the database breaks."""

    promise: str
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


class Check(Struct, frozen=True):
    name: str
    is_good: bool
    detail: str
    fix: str = ""
