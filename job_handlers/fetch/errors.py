"""What can go wrong while a file is fetched, and what follows from it: one table, and one judge who reads it.

A source raises `FetchError` with a code of `RULES`. The judge remembers what has happened in this attempt and answers
with a wait, a fresh start, or the error that ends the attempt. He reads no clock and touches no file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from job_handlers.fetch.sources.addresses import bounded
from worker_service.handlers import HandlerError, PauseSource, Permanent, Retryable, Snooze, in_a_sentence

Kind = Literal["RETRY", "DEFER", "REST", "PERMANENT", "ASK", "RESTART"]
"""RETRY: again within this attempt, keeping the bytes. DEFER: hours later, keeping them. REST: nothing of this source
for a while. PERMANENT: no attempt can succeed. ASK: only if a person says so. RESTART: throw the bytes away."""

HOUR = 3600.0
DAY = 24 * HOUR

OF_RANGES = ("RANGE_WRONG", "RANGE_IGNORED")
"""Where the last fresh start is one without ranges."""


class ErrorRule(Struct, frozen=True):
    kind: Kind
    detail: str
    remedy: str = ""
    grace: int = 0
    """So many times it is tried again before it is taken at its word."""
    restarts: int = 1
    """RESTART: so often in one attempt; after that, see `then`."""
    then: Literal["PERMANENT", "RETRYABLE"] = "PERMANENT"
    after: float = HOUR
    """DEFER, REST: for so many seconds, unless the source names a longer time."""


RULES: Mapping[str, ErrorRule] = {
    # The network, and servers that cannot now.
    "CONNECTION_LOST": ErrorRule("RETRY", "the connection to {host} was lost"),
    "HOST_UNKNOWN": ErrorRule("RETRY", "{host} cannot be looked up"),
    "TIMED_OUT": ErrorRule("RETRY", "{host} fell silent"),
    "CHUNK_TOO_SLOW": ErrorRule("RETRY", "{host} was too slow for a chunk"),
    "CUT_SHORT": ErrorRule("RETRY", "{host} ended its answer too early"),
    "ANSWER_GARBLED": ErrorRule("RETRY", "{host} answered with something that is not HTTP"),
    "SERVER_ERROR": ErrorRule("RETRY", "{host} answered {status}"),
    "RATE_LIMITED": ErrorRule("RETRY", "{host} asks for fewer requests"),
    "TOKEN_UNREACHABLE": ErrorRule("RETRY", "no token could be fetched for the credential {credential}"),
    "STILL_WRITTEN": ErrorRule("RETRY", "{what} is still being written"),
    # Hours, not seconds.
    "QUOTA_USED_UP": ErrorRule(
        "DEFER", "the download quota of the file or the account is used up", "it frees itself within a day"
    ),
    "DISK_FULL": ErrorRule("DEFER", "the disk is full", "free some space, or move the workspace"),
    # All that uses this credential or host.
    "CREDENTIAL_REFUSED": ErrorRule(
        "REST",
        "Google refuses the credential {credential} ({reason})",
        "check the key and this machine's clock; the tokens of an OAuth app in testing mode end after 7 days",
    ),
    "SCOPE_MISSING": ErrorRule("REST", "the credential {credential} lacks a scope", "give it drive.readonly"),
    "API_DISABLED": ErrorRule(
        "REST", "the Google Drive API is not enabled in the project of the credential {credential}"
    ),
    "DOMAIN_POLICY": ErrorRule("REST", "the administrator of the domain does not allow the credential {credential}"),
    "CERTIFICATE_INVALID": ErrorRule("REST", "the certificate of {host} is not valid ({reason})"),
    # What a person has to change.
    "NOT_FOUND": ErrorRule(
        "PERMANENT", "there is no such file, or {who} may not see it", "share it with {who}, then retry", grace=1
    ),
    "ACCESS_REFUSED": ErrorRule("PERMANENT", "{who} may not read the file", "share it with {who}, then retry"),
    "DOWNLOAD_FORBIDDEN": ErrorRule(
        "PERMANENT", "the owner of the file does not let viewers download it", "make {who} an editor, then retry"
    ),
    "BLOCKED": ErrorRule("PERMANENT", "{host} refuses with a page of its own instead of a reason", grace=2),
    "GONE": ErrorRule("PERMANENT", "{host} has no such file (it answered {status})", grace=1),
    "UNREADABLE": ErrorRule("PERMANENT", "{what} cannot be read: {reason}", "{remedy}"),
    "REFUSED": ErrorRule("PERMANENT", "{host} answered {status}"),
    "REQUEST_INVALID": ErrorRule("PERMANENT", "{host} did not understand the request ({reason})"),
    "REDIRECTS": ErrorRule("PERMANENT", "{host} redirects too often, or to where we may not go"),
    "NATIVE_DOCUMENT": ErrorRule(
        "PERMANENT", "it is a {mime} and has no file", "say in what to export it, such as pdf"
    ),
    "EXPORT_TOO_LARGE": ErrorRule(
        "PERMANENT", "Google exports no more than 10 MB", "save it by hand, and ingest the file"
    ),
    "IN_TRASH": ErrorRule("PERMANENT", "the file is in the trash"),
    "NO_FILE": ErrorRule("PERMANENT", "{what} is not a file"),
    "PATH_REFUSED": ErrorRule("PERMANENT", "{what} may not be read by jobs"),
    "EMPTY": ErrorRule("PERMANENT", "the file is empty"),
    "TOO_LARGE": ErrorRule("PERMANENT", "the file has {size} bytes, and no more than {most} are taken"),
    "LENGTH_UNKNOWN": ErrorRule(
        "PERMANENT", "{host} does not tell how long the file is", "give its expected_sha256, so that a cut is noticed"
    ),
    "NOT_AS_EXPECTED": ErrorRule("PERMANENT", "its {digest} is {found}, and {expected} was expected"),
    "ABUSE_NOT_ACKNOWLEDGED": ErrorRule(
        "ASK", "Google holds the file for malware or spam", "to fetch it all the same, set acknowledge_abuse"
    ),
    # Bytes that cannot be trusted.
    "CHANGED": ErrorRule("RESTART", "the file changed while it was fetched", restarts=3, then="RETRYABLE"),
    "RANGE_WRONG": ErrorRule("RESTART", "{host} answered with other bytes than those it was asked for", restarts=2),
    "RANGE_IGNORED": ErrorRule("RESTART", "{host} answered with the whole file instead of the rest of it", grace=2),
    "PAGE_INSTEAD": ErrorRule("RESTART", "{host} answered with {page} instead of the file", grace=2),
    "DIGEST_WRONG": ErrorRule("RESTART", "the {digest} of what came is {found}, and {expected} is right"),
    "SPOILT": ErrorRule(
        "RESTART", "the bytes were spoilt on their way, each time in another place", restarts=2, then="RETRYABLE"
    ),
}


class FetchError(Exception):
    """Something went wrong at a source. `after`: not again before so many seconds, as far as that is heeded."""

    def __init__(self, code: str, *, after: float | None = None, **values: object) -> None:
        self.code, self.asked = code, after
        self.after, more = bounded(after)
        self.rule, self.values = RULES[code], values
        self.detail = self.rule.detail.format_map(_Known(values)) + more
        self.remedy = self.rule.remedy.format_map(_Known(values))
        self.sentence = in_a_sentence(self.detail, self.remedy)
        super().__init__(self.sentence)


class _Known(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return {"host": "the source", "who": "this worker's account", "remedy": ""}.get(key, f"its {key}")


class Timeouts(Struct, frozen=True):
    """How long and how often. The defaults are the promise; tests scale them."""

    retries: int = 5
    """In a row, without a new byte."""
    first_wait: float = 2.0
    """Then twice as long each time: 2, 4, 8, 16, 32."""
    longest_wait: float = 120.0
    """A source that wants us to wait longer gets the job back in the queue, not a slot that sleeps."""
    chunk_bytes: int = 8 << 20
    chunk_seconds: float = 120.0
    idle_seconds: float = 30.0
    connect_seconds: float = 20.0
    floor_bytes_per_second: int = 64 << 10
    """Slower than this on the whole, and the attempt ends, keeping the bytes."""
    slack_seconds: float = 900.0
    stable_seconds: float = 3.0
    """A local file that changed more recently than this may still be written."""
    settled_seconds: float = 60.0
    """A local file that has not changed for so long is the same as long as its times are. Whoever writes into one that
    he has mapped into his memory changes its times when he begins, and not again until the kernel has brought that to
    the disk, which it does within half a minute."""
    requeue_seconds: float = 300.0


class Wait(Struct, frozen=True):
    seconds: float


class Restart(Struct, frozen=True):
    is_last: bool = False
    """The next such trouble would be the end."""


class RetryPolicy:
    """Of one attempt."""

    def __init__(self, timeouts: Timeouts, deferrals: int = 0, chance: random.Random | None = None) -> None:
        self._patience = timeouts
        self._deferrals = deferrals
        self._chance = chance or random.Random()
        self._in_a_row = 0
        self._met: Counter[str] = Counter()

    def bytes_came(self) -> None:
        """New ones, further on than ever before in this attempt."""
        self._in_a_row = 0

    def after(self, trouble: FetchError) -> Wait | Restart:
        """Raises what ends the attempt."""
        rule = trouble.rule
        self._met[trouble.code] += 1
        beyond = self._met[trouble.code] - rule.grace
        if rule.kind == "RETRY" or beyond <= 0:
            return self._wait(trouble)
        if rule.kind == "RESTART" and beyond <= rule.restarts:
            return Restart(is_last=beyond == rule.restarts)
        raise self._end(trouble) from trouble

    def _wait(self, trouble: FetchError) -> Wait:
        self._in_a_row += 1
        asked = trouble.after or 0.0
        if self._in_a_row > self._patience.retries or asked > self._patience.longest_wait:
            raise self._give_back(trouble) from trouble
        step = self._patience.first_wait * 2.0 ** (self._in_a_row - 1)
        return Wait(max(step, asked) + self._chance.random() * step / 4)

    def _give_back(self, trouble: FetchError) -> HandlerError:
        after = max(trouble.after or 0.0, self._patience.requeue_seconds)
        if trouble.code == "RATE_LIMITED":
            # More requests of other jobs would only feed it.
            return PauseSource(f"{trouble.detail}, again and again", trouble.remedy, after=after)
        return Retryable(f"{trouble.detail}, again and again", trouble.remedy, after=after, code=trouble.code)

    def _end(self, trouble: FetchError) -> HandlerError:
        rule = trouble.rule
        after = max(trouble.after or 0.0, rule.after)
        if rule.kind == "DEFER":
            return Snooze(trouble.detail, trouble.remedy, after=min(after * 2.0**self._deferrals, max(after, DAY)))
        if rule.kind == "REST":
            return PauseSource(trouble.detail, trouble.remedy, after=after)
        if rule.kind == "RESTART" and rule.then == "RETRYABLE":
            return Retryable(f"{trouble.detail}, again and again", trouble.remedy, after=after, code=trouble.code)
        return Permanent(trouble.code, trouble.detail, trouble.remedy)
