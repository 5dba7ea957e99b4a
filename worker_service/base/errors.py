"""The errors of all packages: one small class for each thing that a caller would do differently."""

from __future__ import annotations

from typing import NamedTuple


def in_a_sentence(detail: str, remedy: str | None) -> str:
    """Join detail and remedy for display. No code parses the result."""
    # The remedy belongs to the first line: the rest is the output of a program, or a traceback.
    first, newline, more = detail.partition("\n")
    return f"{': '.join(filter(None, [first, remedy]))}{newline}{more}"


class Problem(NamedTuple):
    code: str
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        return in_a_sentence(self.detail, self.remedy)


class PagemillError(Exception):
    code = "error"
    exit_code = 1

    def __init_subclass__(cls, code: str | None = None, exit_code: int | None = None) -> None:
        cls.code = code or cls.code
        cls.exit_code = cls.exit_code if exit_code is None else exit_code

    def __init__(self, detail: str = "", remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.detail, self.remedy = detail, remedy

    def __str__(self) -> str:
        return in_a_sentence(self.detail, self.remedy)


class BadInput(PagemillError, code="bad_input", exit_code=2): ...


class BadTime(BadInput, code="bad_time"): ...


class BadPayload(PagemillError, code="bad_payload", exit_code=65): ...


class ProgramAbsent(PagemillError, code="program_absent", exit_code=69): ...


class ConfigError(PagemillError, code="bad_configuration", exit_code=78): ...


class StoreError(PagemillError, code="store_error", exit_code=74): ...


class StoreAbsent(StoreError, code="database_absent", exit_code=69): ...


class StoreUnusable(StoreError, code="database_unusable", exit_code=78): ...


class SchemaMismatch(StoreUnusable, code="schema_mismatch"): ...


class StoreBusy(StoreError, code="database_busy", exit_code=75): ...


class StoreReadOnly(StoreError, code="database_read_only", exit_code=77): ...


class FileSystemReadOnly(StoreReadOnly, code="READ_ONLY"): ...


class StoreForbidden(StoreError, code="not_allowed", exit_code=77): ...


class DiskFull(StoreError, code="disk_full"): ...


class StoreDamaged(StoreError, code="database_damaged"): ...


class RuleBroken(StoreError, code="rule_broken", exit_code=1): ...


class PublishedFileRemoved(RuleBroken, code="file_forgotten"): ...


class JobNotFound(PagemillError, code="job_not_found", exit_code=66): ...


class NodeNotFound(PagemillError, code="node_not_found", exit_code=66): ...


class WaitTimedOut(PagemillError, code="wait_timed_out", exit_code=124): ...


class DocumentNotFound(PagemillError, code="document_not_found", exit_code=66): ...


class BatchNotFound(PagemillError, code="batch_not_found", exit_code=66): ...


class TokenNotFound(PagemillError, code="token_not_found", exit_code=66): ...


class Refused(PagemillError, code="refused", exit_code=1): ...


class IdempotencyConflict(Refused, code="asked_twice"): ...


class LeaseLost(PagemillError, code="lease_lost"):
    """Another worker owns the job now, or it has ended: write nothing."""


class CancelRequested(LeaseLost, code="cancel_requested"):
    """The job accepts only the end of its cancellation (P7)."""


class WorkerUnknown(PagemillError, code="worker_unknown"): ...
