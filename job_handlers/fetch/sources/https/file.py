"""One file behind an https URL.

A download is resumed only if a validator or a digest proves that the file is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

from job_handlers import file_kinds
from job_handlers.fetch.address_policy import AddressPolicy, parse_url
from job_handlers.fetch.error_rules import FetchError, Timeouts
from job_handlers.fetch.http_client import REDIRECTS_MAX, HttpAnswer, HttpClient, status_error
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources import FileRequest
from job_handlers.fetch.sources.https import ALLOW

_PROBE_BYTES_MAX = 1 << 16  # Limits the answer to a request for one byte.
_STRONG_DATE_SECONDS = 60.0  # RFC 9110: a Last-Modified that is so much older than Date is a strong validator.
_STAMPED_SECONDS = 2.0  # A Last-Modified that is so close to Date is the time of the answer, not of the file.


class HttpsFile:
    """Its revision is a strong validator of RFC 9110, otherwise a weak one, which most changes of the file change."""

    def __init__(self, url: str, request: FileRequest, timeouts: Timeouts, is_stopping: Callable[[], bool]) -> None:
        self._url = url
        self._final_url = url
        self._request = request
        self._revision = ""
        self._revision_of = _strong_validator
        self._host = parse_url(url).host
        self._client = HttpClient(self._host, timeouts, is_stopping, AddressPolicy(ALLOW))

    def facts(self) -> FileFacts:
        with self._get({"Range": "bytes=0-0"}) as answer:
            headers = answer.headers
            size = answer.length if answer.status == 200 else answer.total_length
            if answer.status == 206:
                answer.read(_PROBE_BYTES_MAX)  # An answer that is read to its end keeps the connection.
            digest = self._request.sha256 or self._request.md5
            validator = _strong_validator(headers)
            if size is None and not digest:
                answer.check_length_known()
            self._revision_of = _strong_validator if validator or digest else _weak_validator
            self._revision = self._revision_of(headers)
            return FileFacts(
                _file_name(headers, self._url),
                headers.get_content_type() if "Content-Type" in headers else "",
                size,
                self._revision or digest,
                can_resume=answer.status == 206 and size is not None and bool(validator or digest),
            )

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        headers: dict[str, str] = {}
        if facts.can_resume and length is not None:
            headers["Range"] = f"bytes={part.length}-{part.length + length - 1}"
            if self._revision:
                headers["If-Range"] = self._revision
        with self._get(headers) as answer:
            revision = self._revision_of(answer.headers)
            # A partial answer need not repeat all headers (RFC 9110), so an absent validator means nothing.
            if revision and self._revision and revision != self._revision:
                raise FetchError("CHANGED")
            if answer.status == 206:
                answer.check_range(part.length, facts.size)
            elif facts.size is not None and answer.length not in (None, facts.size):
                raise FetchError("CHANGED")
            elif part.length:
                raise FetchError("RANGE_IGNORED", host=self._host)
            for block in answer.blocks(facts.size if answer.status == 200 else length):
                yield part.append(block)

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _get(self, headers: Mapping[str, str]) -> Iterator[HttpAnswer]:
        # Ask the address of the last redirect again, until an error.
        try:
            with self._client.request("GET", self._final_url, headers, redirects=REDIRECTS_MAX) as answer:
                self._check(answer)
                self._final_url = answer.url
                yield answer
        except FetchError:
            self._final_url = self._url
            raise

    def _check(self, answer: HttpAnswer) -> None:
        if answer.status == 416 and answer.total_length == 0:
            raise FetchError("EMPTY")
        if answer.status not in (200, 206):
            raise status_error(self._host, answer.status, answer.headers.get("Retry-After", ""))
        is_page = answer.headers.get_content_type() in file_kinds.HTML.mimes and "Content-Type" in answer.headers
        # A page is a sign-in page, unless both the URL and the last redirect name a web page.
        names_page = all(file_kinds.HTML.is_named_by(urlsplit(url).path) for url in (self._url, answer.url))
        if is_page and not names_page:
            raise FetchError("PAGE_INSTEAD", host=self._host, page="a web page")
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise FetchError("ANSWER_GARBLED", host=self._host)


def _strong_validator(headers: Message) -> str:
    tag = headers.get("ETag", "").strip()
    if tag.startswith('"'):
        return tag
    age = _age_seconds(headers)
    is_strong = age is not None and age >= _STRONG_DATE_SECONDS and not tag
    return headers.get("Last-Modified", "") if is_strong else ""


def _weak_validator(headers: Message) -> str:
    # A weak ETag, or a date that is not just the time of the answer.
    age = _age_seconds(headers)
    is_time_of_answer = age is not None and age <= _STAMPED_SECONDS
    return headers.get("ETag", "").strip() or ("" if is_time_of_answer else headers.get("Last-Modified", "").strip())


def _age_seconds(headers: Message) -> float | None:
    try:
        sent, modified = (parsedate_to_datetime(headers.get(name, "")) for name in ("Date", "Last-Modified"))
        return (sent - modified).total_seconds()
    except (TypeError, ValueError):
        return None


def _file_name(headers: Message, url: str) -> str:
    try:
        name = headers.get_filename() or ""
    except (LookupError, ValueError):
        name = ""
    parts = urlsplit(url)
    return name or unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.hostname or ""
