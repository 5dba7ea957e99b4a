"""`/metrics`: computed once for all who ask within a second, or within as long as ten such computations would take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock

from starlette.responses import Response

from worker_service.operations.metrics import MEDIA_TYPE
from worker_service.operations.metrics import metrics as computed
from worker_service.web.api.endpoint import Call, Endpoint, endpoint

_KEPT_SECONDS = 1.0
_RESTS = 10


class Kept:
    def __init__(self) -> None:
        self._lock = Lock()
        self._text = ""
        self._until = 0.0

    def text(self, call: Call) -> str:
        # Whoever comes while it is computed waits for that, and begins no other.
        with self._lock:
            begun = time.monotonic()
            if begun >= self._until:
                self._text = computed(call.session)
                ended = time.monotonic()
                self._until = ended + max(_KEPT_SECONDS, _RESTS * (ended - begun))
            return self._text


@endpoint(
    "GET",
    "/metrics",
    "For Prometheus: computed from the database.",
    media="text/plain",
    is_of_the_moment=True,
    is_of_all=True,
)
def metrics(call: Call) -> Response:
    kept: Kept = call.request.app.state.metrics
    return Response(kept.text(call), media_type=MEDIA_TYPE)


ENDPOINTS: Sequence[Endpoint] = (metrics,)
routes = [one.route for one in ENDPOINTS]
