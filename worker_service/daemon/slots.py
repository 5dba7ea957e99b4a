"""The room that this worker has, and what stands in it. Pure: no store, no process, no clock.

A slot is taken from the claim until the end of the attempt has been written.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from worker_service.children.lines import Newest
from worker_service.children.messages import Asked, Checkpointed, PagesRead
from worker_service.jobs.model import Child, Failure, Job, Lease, Report

Key = tuple[int, int]
"""Job id and fence: one attempt, for ever."""

Kept = PagesRead | Checkpointed | Asked
"""What is not thrown away, and keeps its order."""

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
    is_small: bool = False
    """One child serves several like it. Of many such each is told of once, when it has ended."""
    took_seconds: float | None = None
    """Where its child served others as well."""

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
    """As many attempts of a class run at once as it has slots. What is claimed beyond that waits for a child that
    serves several, or comes back."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self._attempts: dict[Key, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    def get(self, key: Key) -> Attempt | None:
        return self._attempts.get(key)

    def take(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt

    def give_back(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.key, None)

    def taken(self, job_class: str) -> int:
        return min(self._number(job_class), self.sizes.get(job_class, 0))

    def free(self, job_class: str) -> int:
        return self.sizes.get(job_class, 0) - self.taken(job_class)

    def beyond(self, job_class: str) -> int:
        """How many were claimed ahead of a free slot."""
        return self._number(job_class) - self.taken(job_class)

    def by_type(self, job_class: str) -> Counter[str]:
        return Counter(one.job.job_type for one in self._attempts.values() if one.job_class == job_class)

    def leases(self) -> tuple[Lease, ...]:
        """Those that are still ours, as far as we know."""
        return tuple(attempt.lease for attempt in self._attempts.values() if not attempt.is_lost)

    def _number(self, job_class: str) -> int:
        return sum(one.job_class == job_class for one in self._attempts.values())
