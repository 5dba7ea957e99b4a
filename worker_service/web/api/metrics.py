"""`/metrics`, and a cache for costly values.

A value is kept for a second, or ten times as long as its computation took if that is longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from starlette.responses import Response

from worker_service.services.database import Session
from worker_service.services.metrics import MEDIA_TYPE
from worker_service.services.metrics import metrics as computed
from worker_service.web.api.endpoint import Call, Endpoint, endpoint

T = TypeVar("T")

_KEPT_SECONDS = 1.0
_RESTS = 10


class Kept(Generic[T]):
    def __init__(self, compute: Callable[[Session], T]) -> None:
        self._compute = compute
        self._lock = Lock()
        self._value: T | None = None
        self._until = 0.0

    def value(self, session: Session) -> T:
        # Requests during a computation wait for it instead of starting another.
        with self._lock:
            begun = time.monotonic()
            if self._value is None or begun >= self._until:
                self._value = self._compute(session)
                ended = time.monotonic()
                self._until = ended + max(_KEPT_SECONDS, _RESTS * (ended - begun))
            return self._value


def kept() -> Kept[str]:
    return Kept(computed)


@endpoint(
    "GET",
    "/metrics",
    "For Prometheus: computed from the database.",
    media="text/plain",
    is_of_the_moment=True,
    is_of_all=True,
)
def metrics(call: Call) -> Response:
    text: Kept[str] = call.request.app.state.metrics
    return Response(text.value(call.session), media_type=MEDIA_TYPE)


ENDPOINTS: Sequence[Endpoint] = (metrics,)
routes = [one.route for one in ENDPOINTS]
