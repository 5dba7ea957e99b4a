"""Downloads beside their limit: one socket, `recv_into`, MD5 and a write, in the same run against the same server.

The server is the tests' own Drive, in a process of its own. Each client is a fresh process with a child's imports, so
that its CPU time and memory can be measured. Pagemill does more than the limit: it asks for a token, asks for metadata
twice, fetches in chunks, checks the SHA-256 of what it has read back, and syncs. The fixed cost is shown apart from the
cost per byte, and a second limit computes SHA-256.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from benchmarks.table import Row, at_least, at_most, below

_SPAWN = multiprocessing.get_context("spawn")
_MB = 1_000_000
_DEADLINE_SECONDS = 2.0
_SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Sizes:
    megabytes: int = 200
    repeats: int = 7
    at_once: int = 4


QUICK = Sizes(megabytes=10, repeats=1, at_once=2)


@dataclass(frozen=True, slots=True)
class Spent:
    seconds: float
    cpu_seconds: float
    memory_mib: float
    """Memory beyond what the process used before the first byte."""


def measure(is_quick: bool) -> Iterator[Row]:
    sizes = QUICK if is_quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir=_memory_disk()) as directory:
        place = Path(directory)
        plain, secure = _Server(place / "plain", sizes), _Server(place / "tls", sizes, is_secure=True)
        try:
            yield from _rows(plain, secure, sizes, place)
        finally:
            plain.close()
            secure.close()


def _rows(plain: _Server, secure: _Server, sizes: Sizes, place: Path) -> Iterator[Row]:
    limit, by_sha256, ours, limit_small, small = _turns(
        sizes,
        lambda: plain.spent(_raw, place),
        lambda: plain.spent(_raw_sha256, place),
        lambda: plain.spent(_drive, place),
        lambda: plain.spent(_raw, place, is_small=True),
        lambda: plain.spent(_drive, place, is_small=True),
    )
    whole = f"one file of {sizes.megabytes} MB from Drive"
    speed = [[sizes.megabytes / one.seconds for one in side] for side in (ours, limit, by_sha256)]
    yield Row("plain", whole, "the limit", "MB/s", speed[0], speed[1], at_least(0.85))
    flowing = [_flowing(sizes, ours, small), _flowing(sizes, limit, limit_small)]
    yield Row(
        "flowing",
        "its bytes alone, without the fixed cost",
        "the limit",
        "MB/s",
        flowing[0],
        flowing[1],
        at_least(0.85),
    )
    cost = [[one.cpu_seconds / sizes.megabytes * 1000 for one in side] for side in (ours, limit, by_sha256)]
    yield Row("cpu", "CPU time for it", "the limit", "s/GB", cost[0], cost[1], below(1.2))
    yield Row("cpu_sha256", "the same", "the limit by SHA-256", "s/GB", cost[0], cost[2])
    once = [[one.seconds * 1000 for one in side] for side in (small, limit_small)]
    yield Row("once", f"a file of {_SMALL_BYTES >> 10} KiB from Drive", "the limit", "ms", once[0], once[1])
    once = [[one.cpu_seconds * 1000 for one in side] for side in (small, limit_small)]
    yield Row("once_cpu", "CPU time for it", "the limit", "ms", once[0], once[1])
    memory = [one.memory_mib for one in ours]
    yield Row("memory", "memory over the import floor", "–", "MiB", memory, [], at_most(16, "MiB"))

    limit, ours = _turns(sizes, lambda: secure.spent(_raw, place), lambda: secure.spent(_url, place))
    speed = [[sizes.megabytes / one.seconds for one in side] for side in (ours, limit)]
    yield Row(
        "tls",
        f"{sizes.megabytes} MB from an https URL",
        "the limit with TLS",
        "MB/s",
        speed[0],
        speed[1],
        at_least(0.85),
    )

    limit, by_sha256, ours = _turns(
        sizes,
        lambda: plain.spent(_raw, place, sizes.at_once),
        lambda: plain.spent(_raw_sha256, place, sizes.at_once),
        lambda: plain.spent(_drive, place, sizes.at_once),
    )
    speed = [[sizes.at_once * sizes.megabytes / one.seconds for one in side] for side in (ours, limit, by_sha256)]
    yield Row(
        "four", "four files from Drive at once", "four limits at once", "MB/s", speed[0], speed[1], at_least(0.85)
    )
    yield Row("four_sha256", "the same", "four limits by SHA-256", "MB/s", speed[0], speed[2])

    for kind in ("drip", "stall", "header drip"):
        late = [plain.late(kind, place) for _ in range(sizes.repeats if sizes.repeats < 3 else 3)]
        yield Row(
            f"late_{kind.replace(' ', '_')}",
            f"how late a chunk's deadline acts, with {kind}",
            "–",
            "s",
            late,
            [],
            at_most(1, "s"),
        )


def _turns(sizes: Sizes, *clients: Callable[[], Spent]) -> list[list[Spent]]:
    """Measure the peer and pagemill in turns, so that a disturbance affects both."""
    turns = [[client() for client in clients] for _ in range(sizes.repeats)]
    return [list(side) for side in zip(*turns, strict=True)]


def _flowing(sizes: Sizes, large: Sequence[Spent], small: Sequence[Spent]) -> list[float]:
    megabytes = sizes.megabytes - _SMALL_BYTES / _MB
    return [megabytes / max(one.seconds - other.seconds, 0.001) for one, other in zip(large, small, strict=True)]


# --- the server, in a process of its own --------------------------------------------------------------


class _Server:
    def __init__(self, place: Path, sizes: Sizes, *, is_secure: bool = False) -> None:
        place.mkdir()
        self._place = place
        self._ours, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, place, sizes.megabytes * _MB, is_secure))
        self._process.start()
        self._found: dict[str, str] = self._ours.recv()

    def spent(
        self, client: Callable[[dict[str, str], Path], None], place: Path, count: int = 1, *, is_small: bool = False
    ) -> Spent:
        """Run `count` clients, each in a process, which start together."""
        found = self._found | ({name: self._found[f"small {name}"] for name in ("url", "item")} if is_small else {})
        gate = _SPAWN.Barrier(count + 1)
        told = _SPAWN.SimpleQueue()
        clients = [
            _SPAWN.Process(target=_client, args=(client, found, place / f"to-{number}", gate, told))
            for number in range(count)
        ]
        for one in clients:
            one.start()
        gate.wait()
        begun = time.perf_counter()
        spent = [told.get() for _ in clients]
        seconds = time.perf_counter() - begun
        for one in clients:
            one.join()
        return Spent(seconds, sum(one[0] for one in spent), max(one[1] for one in spent))

    def late(self, kind: str, place: Path) -> float:
        self._ours.send(kind)
        self._ours.recv()
        return self.spent(_deadline, place).seconds - _DEADLINE_SECONDS

    def close(self) -> None:
        self._ours.send(None)
        self._process.join()


def _serve(pipe: Any, place: Path, size: int, is_secure: bool) -> None:
    from tests.drive_server import Fault, serving
    from tests.drive_server.answers import PlainFile
    from tests.job_handlers.certificates import certificate_in

    authority, context = certificate_in(place) if is_secure else ("", None)
    with serving(context) as server:
        content = b"%PDF-1.7\n" + random.Random(0).randbytes(1 << 20) * (size // (1 << 20) + 1)
        named: dict[str, str] = {}
        for prefix, name, length in (("", "report.pdf", size), ("small ", "small.pdf", _SMALL_BYTES)):
            item = server.store.add(name, content[:length])
            server.plain[name] = PlainFile(item.content)
            # Once, before anybody measures.
            item.as_json(server.store)
            host = "https://localhost" if is_secure else "http://127.0.0.1"
            named |= {f"{prefix}url": f"{host}:{server.port}/plain/{name}", f"{prefix}item": item.id}
        key = place / "drive"
        key.write_text(server.tokens.service_account())
        key.chmod(0o600)
        pipe.send(
            {
                **named,
                "endpoint": server.url,
                "credentials": str(place),
                "authority": str(authority),
            }
        )
        while (kind := pipe.recv()) is not None:
            server.arm(Fault(kind, at=1000, gap=0.01))
            pipe.send(None)


# --- the clients --------------------------------------------------------------------------------------


def _client(
    client: Callable[[dict[str, str], Path], None], found: dict[str, str], place: Path, gate: Any, told: Any
) -> None:
    os.environ |= {
        "CREDENTIALS_DIRECTORY": found["credentials"],
        "WORKER_DRIVE_ENDPOINT": found["endpoint"],
        "WORKER_DOWNLOAD_ALLOW": "127.0.0.0/8,::1",
        "SSL_CERT_FILE": found["authority"] or "/etc/ssl/certs/ca-certificates.crt",
    }
    # The import floor.
    from job_handlers.fetch import download  # noqa: F401

    place.mkdir(exist_ok=True)
    floor, begun = _memory_mib("VmRSS"), time.process_time()
    gate.wait()
    client(found, place)
    told.put((time.process_time() - begun, _memory_mib("VmHWM") - floor))


def _raw(found: dict[str, str], place: Path) -> None:
    """The limit: no client can do it with less."""
    _received(found, place, hashlib.md5())


def _raw_sha256(found: dict[str, str], place: Path) -> None:
    """The limit with SHA-256, which pagemill checks if Drive names it."""
    _received(found, place, hashlib.sha256())


def _received(found: dict[str, str], place: Path, digest: Any) -> None:
    url = urlsplit(found["url"])
    sock: socket.socket = socket.create_connection((url.hostname, url.port))
    if url.scheme == "https":
        sock = ssl.create_default_context().wrap_socket(sock, server_hostname=url.hostname)
    with sock, (place / "raw.pdf").open("wb", buffering=0) as file:
        sock.sendall(f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode())
        buffer = bytearray(512 << 10)
        view = memoryview(buffer)
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(1)
        left = int(head.lower().partition(b"content-length:")[2].split()[0])
        while left:
            count = sock.recv_into(view, min(left, len(buffer)))
            if not count:
                raise ConnectionError("the server hung up")
            digest.update(view[:count])
            file.write(view[:count])
            left -= count


def _drive(found: dict[str, str], place: Path) -> None:
    from job_handlers.fetch.error_rules import Timeouts
    from job_handlers.fetch.sources.drive.client import Drive
    from job_handlers.fetch.sources.drive.file import DriveFile

    _fetch(DriveFile(Drive(timeouts=Timeouts()), found["item"]), place)


def _url(found: dict[str, str], place: Path) -> None:
    from job_handlers.fetch.error_rules import Timeouts
    from job_handlers.fetch.sources import FileRequest
    from job_handlers.fetch.sources.https.file import HttpsFile

    _fetch(HttpsFile(found["url"], FileRequest(), Timeouts(), lambda: False), place)


def _fetch(source: Any, place: Path) -> None:
    from job_handlers.fetch.error_rules import RetryPolicy, Timeouts
    from job_handlers.fetch.sources import FileRequest
    from job_handlers.fetch.transfer import fetch
    from worker_service.base.files import sync_path

    try:
        target = place / "report.pdf"
        fetch(source, place, FileRequest(), cast("Any", _Quiet()), RetryPolicy(Timeouts())).move_to(target)
        sync_path(target)
    finally:
        source.close()


def _deadline(found: dict[str, str], place: Path) -> None:
    """Measure the time until control returns from one chunk."""
    from job_handlers.fetch.error_rules import FetchError, Timeouts
    from job_handlers.fetch.partial_file import PartialFile
    from job_handlers.fetch.sources.drive.client import Drive
    from job_handlers.fetch.sources.drive.file import DriveFile

    timeouts = replace(Timeouts(), chunk_seconds=_DEADLINE_SECONDS)
    drive = Drive(timeouts=timeouts)
    try:
        source = DriveFile(drive, found["item"])
        facts = source.facts()
        with PartialFile(place) as part:
            part.clear()
            for _ in source.download_into(part, facts, timeouts.chunk_bytes):
                pass
    except FetchError:
        pass
    finally:
        drive.close()


class _Quiet:
    def progress(self, percent: float | None = None, message: str = "", **count: Any) -> None:
        pass

    def log(self, line: str) -> None:
        pass

    def cancelled(self) -> bool:
        return False


def _memory_mib(line: str) -> float:
    """Return VmRSS (now) or VmHWM (the peak)."""
    found = Path("/proc/self/status").read_text().partition(f"{line}:")[2]
    return int(found.split()[0]) / 1024


def _memory_disk() -> str | None:
    """Return a directory in memory, so that no disk is measured."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
