"""All errors of a fetch, and the policy that answers each with a wait, a fresh start, or the end of the attempt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from worker_service.handlers import HandlerError, PauseSource, Permanent, Retryable, Snooze, in_a_sentence

# RETRY: wait, and try again in this attempt. DEFER: run the job again hours later. PAUSE: pause all jobs of the source.
# PERMANENT: fail the job. RESTART: discard the bytes, and fetch the file from the start.
ErrorKind = Literal["RETRY", "DEFER", "PAUSE", "PERMANENT", "RESTART"]

HOUR = 3600.0
DAY = 24 * HOUR

RANGE_ERRORS = ("RANGE_WRONG", "RANGE_IGNORED")


class ErrorRule(Struct, frozen=True):
    kind: ErrorKind
    detail: str
    remedy: str = ""
    # Number of retries before `kind` applies.
    grace: int = 0
    # Restarts per attempt, for the kind RESTART.
    restarts: int = 1
    # The end of the attempt after these restarts.
    then: Literal["PERMANENT", "RETRYABLE"] = "PERMANENT"


RULES: Mapping[str, ErrorRule] = {
    # The network, and servers that fail for a moment.
    "CONNECTION_LOST": ErrorRule("RETRY", "the connection to {host} failed ({reason})"),
    "HOST_UNKNOWN": ErrorRule("RETRY", "the address of {host} cannot be looked up"),
    "TIMED_OUT": ErrorRule("RETRY", "{host} stopped answering"),
    "CHUNK_TOO_SLOW": ErrorRule("RETRY", "{host} sends too slowly"),
    "CUT_SHORT": ErrorRule("RETRY", "{host} ended its answer too early"),
    "ANSWER_GARBLED": ErrorRule("RETRY", "{host} answered with something that is not HTTP"),
    "SERVER_ERROR": ErrorRule("RETRY", "{host} answered {status}"),
    "RATE_LIMITED": ErrorRule("RETRY", "{host} asks for fewer requests"),
    "TOKEN_UNREACHABLE": ErrorRule("RETRY", "no token could be fetched for the credential {credential}"),
    "STILL_WRITTEN": ErrorRule("RETRY", "{what} is still being written"),
    # Hours, not seconds.
    "QUOTA_USED_UP": ErrorRule(
        "DEFER", "the download quota of the file or the account is used up", "it is reset within a day"
    ),
    "DISK_FULL": ErrorRule("DEFER", "the disk is full", "free some space, or move the workspace"),
    # Errors of a credential or host, which all its jobs would meet.
    "CREDENTIAL_REFUSED": ErrorRule(
        "PAUSE",
        "Google refuses the credential {credential} ({reason})",
        "check the key and this machine's clock; the tokens of an OAuth app in testing mode end after 7 days",
    ),
    "SCOPE_MISSING": ErrorRule("PAUSE", "the credential {credential} lacks a scope", "give it drive.readonly"),
    "API_DISABLED": ErrorRule(
        "PAUSE", "the Google Drive API is not enabled in the project of the credential {credential}"
    ),
    "DOMAIN_POLICY": ErrorRule("PAUSE", "the administrator of the domain does not allow the credential {credential}"),
    "CERTIFICATE_INVALID": ErrorRule("PAUSE", "the certificate of {host} is not valid ({reason})"),
    # Errors that a user has to correct.
    "NOT_FOUND": ErrorRule(
        "PERMANENT", "the file does not exist, or {who} may not see it", "share it with {who}, then retry", grace=1
    ),
    "ACCESS_REFUSED": ErrorRule("PERMANENT", "{who} may not read the file", "share it with {who}, then retry"),
    "DOWNLOAD_FORBIDDEN": ErrorRule(
        "PERMANENT", "the owner of the file does not let viewers download it", "make {who} an editor, then retry"
    ),
    "BLOCKED": ErrorRule("PERMANENT", "{host} refuses without giving a reason", grace=2),
    "GONE": ErrorRule("PERMANENT", "{host} has no such file (it answered {status})", grace=1),
    "UNREADABLE": ErrorRule("PERMANENT", "{what} cannot be read: {reason}", "{remedy}"),
    "REFUSED": ErrorRule("PERMANENT", "{host} answered {status}"),
    "REQUEST_INVALID": ErrorRule("PERMANENT", "{host} did not understand the request ({reason})"),
    "REDIRECTS": ErrorRule("PERMANENT", "{host} redirects too often, or to an address that is not allowed"),
    "NATIVE_DOCUMENT": ErrorRule(
        "PERMANENT", "it is a {mime} and has no file", "choose a format to export it to, such as pdf"
    ),
    "EXPORT_TOO_LARGE": ErrorRule("PERMANENT", "Google exports at most 10 MB", "save it by hand, and ingest the file"),
    "IN_TRASH": ErrorRule("PERMANENT", "the file is in the trash"),
    "NO_FILE": ErrorRule("PERMANENT", "{what} is not a file"),
    "PATH_REFUSED": ErrorRule("PERMANENT", "{what} may not be read by jobs"),
    "EMPTY": ErrorRule("PERMANENT", "the file is empty"),
    "TOO_LARGE": ErrorRule("PERMANENT", "the file has {size} bytes; the limit is {most}"),
    "LENGTH_UNKNOWN": ErrorRule(
        "PERMANENT",
        "{host} does not say how long the file is",
        "set expected_sha256, so that missing bytes are noticed",
    ),
    "NOT_AS_EXPECTED": ErrorRule("PERMANENT", "its {digest} is {found}; {expected} was expected"),
    "ABUSE_NOT_ACKNOWLEDGED": ErrorRule(
        "PERMANENT", "Google marks the file as malware or spam", "set acknowledge_abuse to fetch it anyway"
    ),
    # Bytes that cannot be trusted.
    "CHANGED": ErrorRule("RESTART", "the file changed while it was fetched", restarts=3, then="RETRYABLE"),
    "RANGE_WRONG": ErrorRule("RESTART", "{host} answered with other bytes than requested", restarts=2),
    "RANGE_IGNORED": ErrorRule("RESTART", "{host} answered with the whole file instead of the requested part", grace=2),
    "PAGE_INSTEAD": ErrorRule("RESTART", "{host} answered with {page} instead of the file", grace=2),
    "DIGEST_WRONG": ErrorRule("RESTART", "the {digest} of the received bytes is {found}; the source says {expected}"),
    "SPOILT": ErrorRule("RESTART", "the bytes arrived damaged, each time differently", restarts=2, then="RETRYABLE"),
}


class FetchError(Exception):
    def __init__(self, code: str, *, after: float | None = None, **values: object) -> None:
        """`after` is the wait in seconds that the server asks for; `values` fill the placeholders of the texts."""
        self.code = code
        self.requested_seconds = after
        self.wait_seconds, note = limit_wait(after)
        self.rule, self.values = RULES[code], values
        self.detail = self.rule.detail.format_map(_MessageValues(values)) + note
        self.remedy = self.rule.remedy.format_map(_MessageValues(values))
        self.sentence = in_a_sentence(self.detail, self.remedy)
        super().__init__(self.sentence)


class _MessageValues(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return {"host": "the source", "who": "this worker's account", "remedy": ""}.get(key, f"its {key}")


def limit_wait(seconds: float | None) -> tuple[float | None, str]:
    """Return at most an hour, and a note for the message if `seconds` is longer."""
    if seconds is None or seconds <= HOUR:
        return seconds, ""
    requested = f"{seconds / HOUR:.1f} h" if seconds < 2 * DAY else f"{seconds / DAY:,.0f} days"
    return HOUR, f" (it asks for a wait of {requested}; no more than 1 h is waited)"


class Timeouts(Struct, frozen=True):
    # Retries in a row, without a new byte between them.
    retries: int = 5
    first_wait_seconds: float = 2.0
    # Instead of a longer wait, the job goes back to the queue.
    longest_wait_seconds: float = 120.0
    # A file is requested in chunks; `idle_seconds` limits the time without any byte.
    chunk_bytes: int = 8 << 20
    chunk_seconds: float = 120.0
    idle_seconds: float = 30.0
    connect_seconds: float = 20.0
    # An attempt may take the time that the file needs at this speed, and `slack_seconds`.
    bytes_per_second_min: int = 64 << 10
    slack_seconds: float = 900.0
    # A local file that was changed more recently may still be written.
    stable_seconds: float = 3.0
    # After this time the timestamps of a local file are final. The kernel updates those of a mapped file late.
    settled_seconds: float = 60.0
    requeue_seconds: float = 300.0


class Restart(Struct, frozen=True):
    is_last: bool = False


class RetryPolicy:
    def __init__(self, timeouts: Timeouts, deferrals: int = 0, random_source: random.Random | None = None) -> None:
        self.timeouts = timeouts
        self.deferrals = deferrals
        self._random = random_source or random.Random()
        self._retries_in_a_row = 0
        self._count_by_code: Counter[str] = Counter()

    def reset_retries_after_new_bytes(self) -> None:
        self._retries_in_a_row = 0

    def decide_after(self, error: FetchError) -> float | Restart:
        """Return the seconds to wait, or `Restart`. Raise the `HandlerError` that ends the attempt."""
        rule = error.rule
        self._count_by_code[error.code] += 1
        count_after_grace = self._count_by_code[error.code] - rule.grace
        if rule.kind == "RETRY" or count_after_grace <= 0:
            return self._seconds_to_wait(error)
        if rule.kind == "RESTART" and count_after_grace <= rule.restarts:
            return Restart(is_last=count_after_grace == rule.restarts)
        raise self._final_error(error) from error

    def _seconds_to_wait(self, error: FetchError) -> float:
        self._retries_in_a_row += 1
        wait_seconds = error.wait_seconds or 0.0
        if self._retries_in_a_row > self.timeouts.retries or wait_seconds > self.timeouts.longest_wait_seconds:
            raise self._requeue_error(error) from error
        backoff_seconds = self.timeouts.first_wait_seconds * 2.0 ** (self._retries_in_a_row - 1)
        jitter_seconds = self._random.random() * backoff_seconds / 4
        return max(backoff_seconds, wait_seconds) + jitter_seconds

    def _requeue_error(self, error: FetchError) -> HandlerError:
        after = max(error.wait_seconds or 0.0, self.timeouts.requeue_seconds)
        if error.code == "RATE_LIMITED":
            # Other jobs of the source would only add requests.
            return PauseSource(f"{error.detail}, again and again", error.remedy, after=after)
        return Retryable(f"{error.detail}, again and again", error.remedy, after=after, code=error.code)

    def _final_error(self, error: FetchError) -> HandlerError:
        rule = error.rule
        after = max(error.wait_seconds or 0.0, HOUR)
        if rule.kind == "DEFER":
            return Snooze(error.detail, error.remedy, after=min(after * 2.0**self.deferrals, max(after, DAY)))
        if rule.kind == "PAUSE":
            return PauseSource(error.detail, error.remedy, after=after)
        if rule.kind == "RESTART" and rule.then == "RETRYABLE":
            return Retryable(f"{error.detail}, again and again", error.remedy, after=after, code=error.code)
        return Permanent(error.code, error.detail, error.remedy)
