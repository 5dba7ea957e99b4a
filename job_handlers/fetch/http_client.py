"""HTTP requests to checked addresses, within a time limit.

Each host name is looked up once, so the checked address is the one that is used. A thread enforces the time limit: a
socket's own time-out starts again with every byte.
"""

from __future__ import annotations

import email.utils
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC
from email.message import Message
from urllib.parse import urljoin, urlsplit

from job_handlers.fetch.address_policy import AddressPolicy, Endpoint, Target, parse_url
from job_handlers.fetch.error_rules import FetchError, Timeouts
from worker_service.handlers import Permanent, Stopped

REDIRECTS_MAX = 5
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_INTERIM_ANSWERS_MAX = 10
_READ_BYTES = 256 << 10
_WATCHDOG_SECONDS = 0.1
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<size>\d+|\*)")


class HttpClient:
    """Serves one thread and one attempt. Every failure is a `FetchError`, a stop of the attempt `Stopped`."""

    def __init__(
        self, name: str, timeouts: Timeouts, is_stopping: Callable[[], bool], policy: AddressPolicy | None = None
    ) -> None:
        """`name` stands for the host in messages. `policy` may be None only for hosts that no user chooses."""
        self.name = name
        self.timeouts, self._policy = timeouts, policy
        self._connections: dict[tuple[bool, str, int], _Connection] = {}
        self.watchdog = _Watchdog(is_stopping)

    def close(self) -> None:
        self.watchdog.close()
        for connection in self._connections.values():
            connection.close()

    @contextmanager
    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, *, redirects: int = 0
    ) -> Iterator[HttpAnswer]:
        """Yield the answer. The connection is kept if it is read to its end."""
        with self.within_time():
            answer, url = self._follow(method, url, headers, body, redirects)
        try:
            yield HttpAnswer(self, answer, url)
        finally:
            can_keep = not answer.will_close and (answer.isclosed() or answer.length == 0)
            answer.close()
            if not can_keep:
                # The next answer on this connection would begin with the rest of this one.
                self._disconnect(parse_url(url))

    def raise_if_stopped(self) -> None:
        if self.watchdog.is_stopped:
            raise Stopped
        if self.watchdog.is_late:
            raise FetchError("CHUNK_TOO_SLOW", host=self.name)

    @contextmanager
    def within_time(self) -> Iterator[None]:
        self.watchdog.start_clock(self.timeouts.chunk_seconds)
        try:
            yield
            self.raise_if_stopped()
        except (OSError, http.client.HTTPException) as error:
            self.raise_if_stopped()
            raise self._fetch_error(error) from error
        finally:
            self.watchdog.stop_clock()

    def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, redirects: int
    ) -> tuple[http.client.HTTPResponse, str]:
        headers = {"Accept-Encoding": "identity", "Accept": "*/*", "User-Agent": "pagemill", **headers}
        for _ in range(redirects + 1):
            target = parse_url(url)
            answer = self._send(method, target, headers, body)
            if answer.status not in _REDIRECT_STATUSES or not redirects:
                return answer, url
            url = urljoin(url, answer.headers.get("Location", ""))
            answer.close()
            self._disconnect(target)
            if urlsplit(url).scheme not in ("https", "http") or (target.is_secure and not url.startswith("https")):
                break
            if urlsplit(url).hostname != target.host:
                # Another host must not get the credential.
                headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        raise FetchError("REDIRECTS", host=self.name)

    def _send(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None
    ) -> http.client.HTTPResponse:
        key = (target.is_secure, target.host, target.port)
        is_kept = key in self._connections
        if not is_kept:
            self._connections[key] = self._connect(target)
        connection = self._connections[key]
        try:
            # Status and headers get less time than a chunk: a server may send them byte by byte.
            self.watchdog.start_clock(self.timeouts.idle_seconds)
            # A server may answer and hang up before it has read all of the body.
            with suppress(BrokenPipeError):
                connection.request(method, target.path, body, dict(headers))
            answer = connection.getresponse()
            self.watchdog.start_clock(self.timeouts.chunk_seconds)
            return answer
        except (OSError, http.client.HTTPException) as error:
            self._disconnect(target)
            if not is_kept or not isinstance(error, ConnectionError):
                raise
            self.raise_if_stopped()
            # A server may end a kept connection at any time.
            return self._send(method, target, headers, body)

    def _connect(self, target: Target) -> _Connection:
        try:
            addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise Permanent("URL_INVALID", "the URL's host is not a name") from error
        endpoints: list[Endpoint] = [(family, address) for family, _, _, _, address in addresses]
        if self._policy is not None:
            self._policy.check(target, endpoints)
        # `pop_all` at the end keeps the socket open; any error before closes it.
        with ExitStack() as unless_connected:
            connected = unless_connected.enter_context(_connect_first(endpoints, self.timeouts.connect_seconds))
            connected.settimeout(self.timeouts.idle_seconds)
            if target.is_secure:
                # The handshake comes later, so that the watchdog can end it.
                secure = ssl.create_default_context().wrap_socket(
                    connected, server_hostname=target.host, do_handshake_on_connect=False
                )
                connected = unless_connected.enter_context(secure)
            self.watchdog.watch(connected)
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            unless_connected.pop_all()
        return _Connection(target, connected)

    def _disconnect(self, target: Target) -> None:
        connection = self._connections.pop((target.is_secure, target.host, target.port), None)
        if connection is not None:
            connection.close()

    def _fetch_error(self, error: Exception) -> FetchError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return FetchError("CERTIFICATE_INVALID", host=self.name, reason=error.verify_message)
        if isinstance(error, socket.gaierror):
            return FetchError("HOST_UNKNOWN", host=self.name)
        if isinstance(error, TimeoutError):
            return FetchError("TIMED_OUT", host=self.name)
        if isinstance(error, http.client.IncompleteRead):
            return FetchError("CUT_SHORT", host=self.name)
        if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
            return FetchError("ANSWER_GARBLED", host=self.name)
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return FetchError("CONNECTION_LOST", host=self.name, reason=reason)


class HttpAnswer:
    def __init__(self, client: HttpClient, answer: http.client.HTTPResponse, url: str) -> None:
        self._client, self._answer = client, answer
        self.url = url

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Message:
        return self._answer.headers

    @property
    def length(self) -> int | None:
        value = self.headers.get("Content-Length", "").strip()
        return int(value) if value.isascii() and value.isdigit() else None

    @property
    def total_length(self) -> int | None:
        content_range = self._content_range()
        return int(content_range["size"]) if content_range and content_range["size"].isdigit() else None

    def _content_range(self) -> re.Match[str] | None:
        return _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))

    def blocks(self, bytes_max: int | None) -> Iterator[bytes]:
        client = self._client
        with client.within_time():
            left, left_in_chunk = bytes_max, client.timeouts.chunk_bytes
            while left is None or left > 0:
                block = self._answer.read1(_READ_BYTES if left is None else min(_READ_BYTES, left))
                if not block:
                    # http.client does not report a body that is cut short.
                    if self._answer.length:
                        raise FetchError("CUT_SHORT", host=client.name)
                    return
                yield block
                left = None if left is None else left - len(block)
                left_in_chunk -= len(block)
                if left_in_chunk <= 0:
                    left_in_chunk = client.timeouts.chunk_bytes
                    client.watchdog.start_clock(client.timeouts.chunk_seconds)
                elif client.watchdog.is_time_up():
                    raise FetchError("CHUNK_TOO_SLOW", host=client.name)

    def read(self, bytes_max: int) -> bytes:
        return b"".join(self.blocks(bytes_max))

    def check_range(self, offset: int, size: int | None) -> None:
        content_range = self._content_range()
        if content_range is None or int(content_range["first"]) != offset:
            raise FetchError("RANGE_WRONG", host=self._client.name)
        if size is not None and content_range["size"] not in ("*", str(size)):
            raise FetchError("RANGE_WRONG", host=self._client.name)

    def check_length_known(self) -> None:
        """Refuse an answer whose missing end would not be noticed."""
        if self.length is None and self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise FetchError("LENGTH_UNKNOWN", host=self._client.name)


def status_error(host: str, status: int, retry_after_header: str) -> FetchError:
    after = seconds_in_retry_after(retry_after_header)
    if status == 429:
        return FetchError("RATE_LIMITED", host=host, after=after)
    if status in (408, 425) or status >= 500:
        return FetchError("SERVER_ERROR", host=host, status=status, after=after)
    if status == 416:
        return FetchError("RANGE_WRONG", host=host)
    if status in (404, 410):
        return FetchError("GONE", host=host, status=status)
    return FetchError("REFUSED", host=host, status=status)


def seconds_in_retry_after(header: str) -> float | None:
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        until = email.utils.parsedate_to_datetime(text)
        # In HTTP, a date without a zone is in UTC.
        until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        return max(until.timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


class _Connection(http.client.HTTPConnection):
    """Uses a socket that is connected to a checked address, and never opens another."""

    auto_open = 0

    def __init__(self, target: Target, connected: socket.socket) -> None:
        super().__init__(target.host, target.port)
        if target.is_secure:
            self.default_port = http.client.HTTPS_PORT
        self.response_class = _Response
        self.sock = connected


class _Response(http.client.HTTPResponse):
    """Limits interim answers (100 Continue), which the library would parse for ever."""

    _interim_answers_left = _INTERIM_ANSWERS_MAX

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if status == http.client.CONTINUE:
            self._interim_answers_left -= 1
            if self._interim_answers_left < 0:
                raise http.client.HTTPException(f"more than {_INTERIM_ANSWERS_MAX} interim answers")
        return version, status, reason


class _Watchdog:
    """A thread that shuts all sockets down when the time is over, or when the attempt must stop."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._sockets: list[socket.socket] = []
        self._deadline = float("inf")
        self._lock = threading.Lock()
        self._end = threading.Event()
        self.is_late = False
        self.is_stopped = False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def watch(self, connected: socket.socket) -> None:
        with self._lock:
            # Forget those that are closed.
            self._sockets = [other for other in self._sockets if other.fileno() >= 0]
            self._sockets.append(connected)

    def start_clock(self, seconds: float) -> None:
        self.is_late = False
        self._deadline = time.monotonic() + seconds

    def stop_clock(self) -> None:
        self._deadline = float("inf")

    def is_time_up(self) -> bool:
        return time.monotonic() > self._deadline

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_WATCHDOG_SECONDS):
            if self._is_stopping():
                self.is_stopped = True
            elif self.is_time_up():
                self.is_late = True
            else:
                continue
            with self._lock:
                for connected in self._sockets:
                    # SSLSocket.shutdown would drop the TLS layer, and the other thread would read encrypted bytes.
                    with suppress(OSError):
                        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _connect_first(endpoints: Sequence[Endpoint], timeout_seconds: float) -> socket.socket:
    failure: OSError = ConnectionError("it has no address")
    for family, address in endpoints:
        try:
            with ExitStack() as unless_connected:
                connected = unless_connected.enter_context(socket.socket(family, socket.SOCK_STREAM))
                connected.settimeout(timeout_seconds)
                connected.connect(address)
                unless_connected.pop_all()
                return connected
        except OSError as error:
            failure = error
    raise failure
