"""Sessions of `requests` whose connections a watchdog can shut, and which never try again by themselves."""

from __future__ import annotations

from typing import Any

import urllib3
from requests.adapters import HTTPAdapter

from job_handlers.sources.http_bodies import Watchdog

_REDIRECTS_MAX = 5


def watched(session: Any, watchdog: Watchdog) -> Any:
    session.max_redirects = _REDIRECTS_MAX
    session.mount("https://", _Adapter(watchdog))
    session.mount("http://", _Adapter(watchdog))
    return session


class _Adapter(HTTPAdapter):
    """Its connections can be shut by the watchdog, and it never tries again by itself."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._pools = {
            "http": _watched(urllib3.HTTPConnectionPool, watchdog),
            "https": _watched(urllib3.HTTPSConnectionPool, watchdog),
        }
        super().__init__(max_retries=0)

    def init_poolmanager(self, *values: Any, **named: Any) -> None:
        super().init_poolmanager(*values, **named)
        self.poolmanager.pool_classes_by_scheme = self._pools


def _watched(pool: Any, watchdog: Watchdog) -> Any:
    base: Any = pool.ConnectionCls

    class Watched(base):  # type: ignore[misc]
        def _new_conn(self) -> Any:
            raw = super()._new_conn()
            # TLS is yet to begin, and wraps the socket in another one.
            self._copy = raw.dup()
            watchdog.hold(self._copy)
            return raw

        def connect(self) -> None:
            self._copy = None
            try:
                super().connect()
                watchdog.hold(self.sock)
            finally:
                if self._copy is not None:
                    self._copy.close()

    return type("WatchedPool", (pool,), {"ConnectionCls": Watched})
