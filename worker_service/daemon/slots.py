"""The room that this worker has, and what stands in it. Pure: no store, no process, no clock.

A slot is taken from the claim until the end of the attempt has been written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from worker_service.children.lines import Newest
from worker_service.children.model import Asked, Checkpointed, PagesRead
from worker_service.jobs.model import Child, Failure, Job, Lease, Report

Key = tuple[int, int]
"""Job id and fence: one attempt, for ever."""

Kept = PagesRead | Checkpointed | Asked
"""What is not thrown away, and keeps its order."""

_SEATS = 1 << 12
"""Numbers for the slots of one class."""
_LEAST_BYTES = 500


@dataclass(slots=True)
class Attempt:
    """One attempt of ours, and what is to be written about it."""

    job: Job
    job_class: str
    is_at_most_once: bool = False
    nursery_deaths: int = 0
    """How often attempts of its job have died with their nursery, this one included."""
    lease: Lease = field(init=False)
    is_lost: bool = False
    """The lease is another's, or the row has ended: nothing is written about it any more."""
    is_cancelled: bool = False
    is_hurried: bool = False
    """It is cancelled, and gets no grace."""
    stopped_at: float | None = None
    """When its child was asked to stop."""
    is_stopped_now: bool = False
    percent: float | None = None
    message: str | None = None
    lines: Newest = field(default_factory=Newest)
    child: Child | None = None
    has_news: bool = False
    refused: Failure | None = None
    unwritten: deque[Kept] = field(default_factory=deque)
    unwritten_bytes: int = 0
    """Roughly: for a bound."""
    question: Asked | None = None
    """It is among the unwritten, and a child waits for it."""
    asked_at: float = 0.0
    seat: int = 0
    """The slot that it stands in."""
    is_kept: bool = False
    """Its child may be kept. Of many such small ones each is told of once, when it has ended."""
    took_seconds: float | None = None
    """As its child says, if that is kept."""

    def __post_init__(self) -> None:
        self.lease = self.job.lease

    @property
    def key(self) -> Key:
        return self.job.id, self.job.fence

    @property
    def has_words(self) -> bool:
        return self.percent is not None or self.message is not None or bool(self.lines)

    def started(self, child: Child) -> None:
        self.child = child
        self.has_news = True

    def progressed(self, percent: float, message: str) -> None:
        self.percent = percent if self.percent is None else max(self.percent, percent)
        self.message = _storable(message) or self.message
        self.has_news = True

    def logged(self, lines: Iterable[str]) -> None:
        self.lines.add(map(_storable, lines))
        self.has_news = True

    def keep(self, said: Kept, *, now: float) -> None:
        if isinstance(said, Asked):
            self.question, self.asked_at = said, now
        elif isinstance(said, Checkpointed):
            self._overtake()
        self.unwritten.append(said)
        self.unwritten_bytes += _bytes_of(said)

    def written(self, said: Kept) -> None:
        """The first of them."""
        self.unwritten.popleft()
        self.unwritten_bytes -= _bytes_of(said)
        if said is self.question:
            self.question = None

    def forget_question(self) -> Asked | None:
        """Nobody waits for it any more; or it is answered otherwise."""
        asked, self.question = self.question, None
        if asked is not None:
            self.unwritten.remove(asked)
            self.unwritten_bytes -= _bytes_of(asked)
        return asked

    def forget_unwritten(self) -> None:
        self.unwritten.clear()
        self.unwritten_bytes, self.question = 0, None

    def forget_checkpoints(self) -> None:
        for said in [said for said in self.unwritten if isinstance(said, Checkpointed)]:
            self.unwritten.remove(said)
            self.unwritten_bytes -= _bytes_of(said)

    def _overtake(self) -> None:
        """A checkpoint that says no more than a state is overtaken by the next one."""
        for said in reversed(self.unwritten):
            if isinstance(said, Checkpointed):
                if not said.follow_ups and said.crawl is None:
                    self.unwritten.remove(said)
                    self.unwritten_bytes -= _bytes_of(said)
                return

    def refuse(self, failure: Failure) -> None:
        """Whatever it says when it ends, it fails with this."""
        self.refused = self.refused or failure

    def put_back(self, report: Report) -> None:
        """The report could not be written: it goes out with the next one."""
        self.percent = report.percent if self.percent is None else self.percent
        self.message = report.message if self.message is None else self.message
        self.lines.put_back(report.lines)
        self.child = self.child or report.child
        self.has_news = True

    def take_report(self, lines_most: int) -> Report:
        """What has come since the last report, as one; lines that are more stay for the next."""
        report = Report(self.lease, self.percent, self.message, self.lines.take(lines_most), self.child)
        self.child = None
        self.percent, self.message, self.has_news = None, None, bool(self.lines)
        return report


def _bytes_of(said: Kept) -> int:
    if isinstance(said, PagesRead):
        return sum(_LEAST_BYTES + len(page.text or "") + len(page.layout or "") for page in said.pages)
    if isinstance(said, Asked):
        return _LEAST_BYTES + len(said.body)
    items = 0 if said.crawl is None else len(said.crawl.items)
    payloads = sum(len(job.payload or "") for job in said.follow_ups)
    return _LEAST_BYTES * (1 + items + len(said.follow_ups)) + len(said.state) + payloads


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Slots:
    """An attempt takes a slot. Where children are kept, others of its type may stand behind it and take none."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self._attempts: dict[Key, Attempt] = {}
        self._seats: dict[int, dict[Key, Attempt]] = {}
        self._last_type: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    def get(self, key: Key) -> Attempt | None:
        return self._attempts.get(key)

    def take(self, attempt: Attempt, seat: int | None = None) -> None:
        attempt.seat = self._free_seat(attempt) if seat is None else seat
        self._attempts[attempt.key] = attempt
        self._seats.setdefault(attempt.seat, {})[attempt.key] = attempt
        self._last_type[attempt.seat] = attempt.job.job_type

    def give_back(self, attempt: Attempt) -> None:
        if self._attempts.pop(attempt.key, None) is not None:
            several = self._seats[attempt.seat]
            del several[attempt.key]
            if not several:
                del self._seats[attempt.seat]

    def taken(self, job_class: str) -> int:
        return len(self._taken(job_class))

    def free(self, job_class: str) -> int:
        return max(0, self.sizes.get(job_class, 0) - self.taken(job_class))

    def behind(self, job_class: str) -> int:
        """How many stand behind others."""
        return sum(len(several) - 1 for several in self._taken(job_class).values())

    def seats_of_one_type(self, job_class: str) -> dict[int, tuple[str, int]]:
        """Those in which all are of one type, with it and their number."""
        found = {}
        for seat, several in self._taken(job_class).items():
            types = {attempt.job.job_type for attempt in several.values()}
            if len(types) == 1:
                found[seat] = types.pop(), len(several)
        return found

    def leases(self) -> tuple[Lease, ...]:
        """Those that are still ours, as far as we know."""
        return tuple(attempt.lease for attempt in self._attempts.values() if not attempt.is_lost)

    def _taken(self, job_class: str) -> dict[int, dict[Key, Attempt]]:
        first = self._first(job_class)
        return {seat: several for seat, several in self._seats.items() if first <= seat < first + _SEATS}

    def _free_seat(self, attempt: Attempt) -> int:
        """The one that had its type last, for a child of it may be there still."""
        first = self._first(attempt.job_class)
        size = self.sizes.get(attempt.job_class, 0)
        free = [seat for seat in range(first, first + size) if seat not in self._seats]
        same = [seat for seat in free if self._last_type.get(seat) == attempt.job.job_type]
        return next(iter(same or free), first + size + len(self._seats))

    def _first(self, job_class: str) -> int:
        return list(self.sizes).index(job_class) * _SEATS if job_class in self.sizes else 0
