"""One file behind a URL, for `fetch`: https, redirects that are bounded and checked, resumed only by a validator.

Plain http is taken only from the networks of WORKER_DOWNLOAD_ALLOW, which may also be private ones (`addresses`).
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urljoin, urlsplit

from job_handlers import file_kinds
from job_handlers.fetch.errors import FetchError, Timeouts
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources.addresses import (
    Place,
    Target,
    allowed_networks,
    checked_places,
    connection_to,
    is_within,
    read_url,
)
from job_handlers.fetch.sources.http_bodies import Watchdog, Wire, check_range, of_status, range_total
from job_handlers.fetch.sources.https import ALLOW
from job_handlers.fetch.transfer import FileWanted
from worker_service.handlers import Permanent, Retryable

_REDIRECTS_MAX = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_SMALL_BYTES = 1 << 16
_STRONG_SECONDS = 60.0
_STAMPED_SECONDS = 2.0


class HttpsFile:
    def __init__(self, url: str, wanted: FileWanted, timeouts: Timeouts, is_stopping: Callable[[], bool]) -> None:
        self._url = url
        self._wanted = wanted
        self._patience = timeouts
        self._watchdog = Watchdog(is_stopping)
        self._at = url
        """Where the redirects led, for as long as that works."""
        self._connection: tuple[tuple[bool, str, int], http.client.HTTPConnection] | None = None
        self._validator = ""
        self._allowed = allowed_networks(ALLOW)
        self.host = read_url(url).host

    def facts(self) -> FileFacts:
        with self._answered({"Range": "bytes=0-0"}) as answer:
            headers = answer.headers
            self._check(answer)
            size = _length(headers) if answer.status == 200 else range_total(headers)
            name = _name(headers, self._url)
            mime = headers.get_content_type() if "Content-Type" in headers else ""
            if answer.status == 206:
                # One byte, and the connection is as good as new.
                answer.read1(_SMALL_BYTES)
            self._validator = _validator(headers)
            can_resume = answer.status == 206 and size is not None and bool(self._validator or self._is_known)
            if size is None and not self._is_known and headers.get("Transfer-Encoding", "").lower() != "chunked":
                raise FetchError("LENGTH_UNKNOWN", host=self.host)
            key = self._validator or f"{self._wanted.sha256}{self._wanted.md5}"
            return FileFacts(
                name, mime, size, key, can_resume=can_resume, marks={} if self._is_known else _marks(headers)
            )

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        wanted: dict[str, str] = {}
        if facts.can_resume and length is not None:
            wanted["Range"] = f"bytes={part.length}-{part.length + length - 1}"
            if self._validator:
                wanted["If-Range"] = self._validator
        with self._answered(wanted) as answer:
            self._check(answer)
            now = _validator(answer.headers)
            if now and self._validator and now != self._validator:
                raise FetchError("CHANGED")
            # What is not said again, as RFC 9110 has it of a part, says nothing.
            if any(facts.marks.get(name, told) != told for name, told in _marks(answer.headers).items()):
                raise FetchError("CHANGED")
            told = _length(answer.headers)
            if answer.status == 206:
                check_range(answer.headers, part.length, facts.size, self.host)
            elif facts.size is not None and told not in (None, facts.size):
                raise FetchError("CHANGED")
            elif part.length:
                raise FetchError("RANGE_IGNORED", host=self.host)
            most = facts.size if answer.status == 200 else length
            before = part.length
            yield from self._wire.poured(answer, part, most)
            if told is not None and part.length - before < min(told, told if most is None else most):
                # http.client says nothing of it.
                raise FetchError("CUT_SHORT", host=self.host)

    def close(self) -> None:
        self._hang_up()
        self._watchdog.close()

    @property
    def _is_known(self) -> bool:
        return bool(self._wanted.sha256 or self._wanted.md5)

    @property
    def _wire(self) -> Wire:
        return Wire(self.host, self._watchdog, self._patience)

    def _check(self, answer: http.client.HTTPResponse) -> None:
        if answer.status == 416 and range_total(answer.headers) == 0:
            raise FetchError("EMPTY")
        if answer.status not in (200, 206):
            self._at = self._url
            raise of_status(answer.status, answer.headers, self.host)
        is_page = answer.headers.get_content_type() in file_kinds.HTML.mimes and "Content-Type" in answer.headers
        if is_page and not all(file_kinds.HTML.is_named_by(urlsplit(one).path) for one in (self._url, self._at)):
            # Where a page was asked for, and not at a door that everybody is sent to.
            raise FetchError("PAGE_INSTEAD", host=self.host, page="a web page")
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise FetchError("ANSWER_GARBLED", host=self.host)

    # --- the conversation -----------------------------------------------------------------------------

    @contextmanager
    def _answered(self, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """The answer at the end of the redirects. Read to its end, the connection is kept; else it is dropped."""
        with self._wire.talking():
            answer: http.client.HTTPResponse | None = None
            is_whole = False
            try:
                answer = self._follow(headers)
                yield answer
                is_whole = not answer.will_close and (answer.isclosed() or answer.length == 0)
            finally:
                if answer is not None:
                    # Else a connection would go on waiting for the rest of nothing.
                    answer.close()
                if not is_whole:
                    self._hang_up()

    def _follow(self, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        for _ in range(_REDIRECTS_MAX + 1):
            target = read_url(self._at)
            answer = self._ask(target, headers)
            if answer.status not in _REDIRECTS:
                return answer
            to = urljoin(self._at, answer.headers.get("Location", ""))
            answer.close()
            self._hang_up()
            if urlsplit(to).scheme not in ("https", "http") or (target.is_secure and not to.startswith("https")):
                break
            self._at = to
        self._at = self._url
        raise FetchError("REDIRECTS", host=self.host)

    def _ask(self, target: Target, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        whom = (target.is_secure, target.host, target.port)
        is_old = self._connection is not None and self._connection[0] == whom
        if not is_old:
            self._hang_up()
        connection = self._connection[1] if self._connection is not None else self._connect(target)
        self._connection = (whom, connection)
        everything = {"Accept-Encoding": "identity", "Accept": "*/*", "User-Agent": "pagemill", **headers}
        try:
            # Status and headers get less time than a chunk: a server may send one byte of them after the other.
            self._watchdog.give(self._patience.idle_seconds)
            connection.request("GET", target.path, headers=everything)
            answer = connection.getresponse()
            self._watchdog.give(self._patience.chunk_seconds)
            return answer
        except (ConnectionError, http.client.RemoteDisconnected):
            self._hang_up()
            if not is_old or self._watchdog.has_stopped or self._watchdog.is_late:
                raise
            # A server may end an idle connection whenever it likes; that is no failure.
            return self._ask(target, headers)

    def _connect(self, target: Target) -> http.client.HTTPConnection:
        connection = connection_to(
            target,
            self._places(target),
            connect_seconds=self._patience.connect_seconds,
            answer_seconds=self._patience.idle_seconds,
            watched=self._watchdog.holding,
        )
        self._watchdog.hold(connection.sock)
        return connection

    def _places(self, target: Target) -> list[Place]:
        try:
            places = checked_places(target, self._allowed, ALLOW.variable)
        except Retryable as error:
            raise FetchError("HOST_UNKNOWN", host=target.host) from error
        if not target.is_secure and not all(is_within(place, self._allowed) for _, place in places):
            raise Permanent(
                "URL_INSECURE", f"http:// is taken only from networks in {ALLOW.variable}", "give the URL with https://"
            )
        return places

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


def _length(headers: Message) -> int | None:
    told = headers.get("Content-Length", "").strip()
    return int(told) if told.isascii() and told.isdigit() else None


def _validator(headers: Message) -> str:
    """What may stand in If-Range: a strong ETag, or a date that lies far enough back to be one."""
    tag = headers.get("ETag", "").strip()
    if tag.startswith('"'):
        return tag
    age = _age(headers)
    return headers.get("Last-Modified", "") if age is not None and age >= _STRONG_SECONDS and not tag else ""


def _marks(headers: Message) -> dict[str, str]:
    """A tag, weak ones too, and a date. One that is the answer's own is stamped on whatever is sent."""
    modified = headers.get("Last-Modified", "").strip()
    age = _age(headers)
    told = {
        "ETag": headers.get("ETag", "").strip(),
        "Last-Modified": "" if age is not None and age <= _STAMPED_SECONDS else modified,
    }
    return {name: value for name, value in told.items() if value}


def _age(headers: Message) -> float | None:
    """How long the file was left alone when it was sent, in seconds."""
    try:
        sent, modified = (parsedate_to_datetime(headers.get(name, "")) for name in ("Date", "Last-Modified"))
        return (sent - modified).total_seconds()
    except (TypeError, ValueError):
        return None


def _name(headers: Message, url: str) -> str:
    try:
        told = headers.get_filename() or ""
    except (LookupError, ValueError):
        told = ""
    path = urlsplit(url)
    return told or unquote(path.path.rstrip("/").rpartition("/")[2]) or path.hostname or ""
