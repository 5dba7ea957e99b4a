"""A nursery of one's own, for one attempt or only to ask it: no daemon, no database.

For `pagemill run-one`, `handlers`, `doctor` and for `worker_service.testing`. The nursery, the child, its limits and
its sandbox are the real ones; what follows from the end of the attempt is left to whoever asked for it.
"""

from __future__ import annotations

import select
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from worker_service.children import asking
from worker_service.children.model import Asked, Described, Ended, Happening
from worker_service.children.nursery import Nursery
from worker_service.jobs.documents import Answer, Question

_GRACE_SECONDS = 1.0


@contextmanager
def nursery_in(
    directory: Path,
    *,
    commands: Mapping[str, Mapping[str, object]],
    sandbox: str,
    extra_path: Sequence[Path] = (),
    extra_handlers: Sequence[str] = (),
    is_without_installed: bool = False,
) -> Iterator[tuple[Nursery, Sequence[Described]]]:
    """A started nursery and what it found. When the block ends, so does everything that it started."""
    nursery = Nursery(
        staging_root=directory / "staging",
        keep_root=directory / "keep",
        lock_fd=None,
        commands=commands,
        sandbox=sandbox,
        grace_seconds=_GRACE_SECONDS,
        extra_path=extra_path,
        extra_handlers=extra_handlers,
        is_without_installed=is_without_installed,
    )
    try:
        yield nursery, nursery.start()
    finally:
        nursery.close()


def describe(commands: Mapping[str, Mapping[str, object]], sandbox: str) -> Sequence[Described]:
    """What the handlers that are installed say of themselves, here and now."""
    with (
        tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory,
        nursery_in(Path(directory), commands=commands, sandbox=sandbox) as (_, described),
    ):
        return described


def heard(
    nursery: Nursery,
    *,
    seconds: float | None = None,
    answer: Callable[[Question[Answer]], Answer] = asking.answer_to_nothing,
) -> Iterator[Happening]:
    """What the one attempt that was launched says, as it says it; its `Ended` is the last. `seconds` bounds the wait;
    None trusts the attempt's own limit. Where nobody knows better, what it asks is answered as in an empty database."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"the handler was still running after {seconds:g} s: pass timeout_seconds")
        select.select([nursery], [], [], left)
        for one in nursery.happened():
            yield one
            if isinstance(one, Asked):
                nursery.answer(one, answer(asking.question_from(one.kind, one.body)))
            if isinstance(one, Ended):
                return
