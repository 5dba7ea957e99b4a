"""A handler that cannot be imported is set aside with its reason, and no other handler suffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fake_distributions import install
from tests.runner.conftest import SABOTEURS, MakeClient, PoolClient, threads_of
from worker_service.runner.messages import Begin, HandlerDescription, How
from worker_service.runner.pool import ChildError, LocalPool

BROKEN = {
    "tests.saboteurs.hangs_at_import:handler": "still being imported after 1.5 s",
    "tests.saboteurs.crashes_at_import:handler": "SIGSEGV",
    "tests.saboteurs.raises_at_import:handler": "libghost.so.9 is not there",
    "tests.saboteurs.nowhere:handler": "ModuleNotFoundError",
    "tests.saboteurs.handlers:SABOTAGE": "AttributeError",
    "tests.saboteurs.handlers:MIB": "an entry point names a Handler",
}


@contextmanager
def started_pool(pool: LocalPool) -> Iterator[dict[str, HandlerDescription]]:
    try:
        yield {handler.facts.job_type: handler for handler in pool.start()}
    finally:
        pool.close()


def test_entry_points_that_cannot_be_imported_are_set_aside_with_the_reason(tmp_path: Path) -> None:
    begin = Begin(
        tmp_path / "s", tmp_path / "k", extra_handlers=(*BROKEN, *SABOTEURS), is_without_installed=True,
        import_seconds=1.5,
    )  # fmt: skip
    pool = LocalPool(begin)

    with started_pool(pool) as described:
        client = PoolClient(pool)
        for name, reason in BROKEN.items():
            assert reason in (described[name].set_aside or "")
        assert client.run("silent").how is How.DONE
        refused = client.run("tests.saboteurs.crashes_at_import:handler")
        assert (refused.how, refused.code) == (How.RETRYABLE, "HANDLER_SET_ASIDE")
        assert "SIGSEGV" in refused.message
        assert '"port"' in (described["clean"].facts.payload_schema or "")
        assert (described["clean"].facts.job_class, described["loops"].facts.timeout_seconds) == ("cpu", 1)


def test_a_job_type_that_two_entry_points_provide_runs_neither(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=(*SABOTEURS, "tests.saboteurs.two_claims:handler"))

    ended = client.run("silent")

    assert ended.code == "HANDLER_SET_ASIDE"
    assert "tests.saboteurs.handlers:handlers" in ended.message
    assert "tests.saboteurs.two_claims:handler" in ended.message
    assert client.run("clean").how is How.DONE


def test_a_fork_server_that_cannot_start_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    pool = LocalPool(Begin(tmp_path / "s", tmp_path / "k"))

    with pytest.raises(ChildError, match="exit code 1"):
        pool.start()

    assert not pool.is_alive
    pool.close()


def install_two(place: Path, distribution: str, last_line: str = "") -> tuple[Path, Path]:
    """Install handlers `first` and `silent`; return the path, and the file to which their imports write their pid."""
    path, pids = place / "path", place / "pids"
    install(path, distribution, {"first": "first_of_two:handler", "second": "second_of_two:handler"})
    source = (
        f"import os\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\nfrom tests.saboteurs.two_claims import "
    )
    (path / "first_of_two.py").write_text(f"{source}first as handler\n")
    (path / "second_of_two.py").write_text(f"{source}handler\n{last_line}\n")
    return path, pids


@pytest.mark.parametrize(("last_line", "imports", "processes"), [("", 2, 1), ("os.abort()", 3, 2)])
def test_handlers_share_a_probe_and_only_those_without_a_result_are_probed_again(
    tmp_path: Path, last_line: str, imports: int, processes: int
) -> None:
    path, pids = install_two(tmp_path, "two-handlers", last_line)

    with started_pool(LocalPool(Begin(tmp_path / "s", tmp_path / "k", types=[""]), extra_path=[path])) as described:
        assert described["first"].set_aside is None

    assert len(pids.read_text().split()) == imports
    assert len(set(pids.read_text().split())) == processes


def test_the_fork_server_imports_the_shipped_handlers_once(tmp_path: Path) -> None:
    path, pids = install_two(tmp_path, "pagemill")
    pool = LocalPool(Begin(tmp_path / "s", tmp_path / "k"), extra_path=[path])

    with started_pool(pool) as described:
        assert pids.read_text().split() == [str(pool.pid)] * 2
        assert {name: handler.set_aside for name, handler in described.items()} == {"first": None, "silent": None}


@pytest.mark.parametrize(
    ("last_line", "reason"),
    [
        ("raise RuntimeError('the library is too old')", "the library is too old"),
        ("os.abort()", "SIGABRT"),
        ("import time; time.sleep(600)", "still being imported after 1 s"),
    ],
)
def test_a_shipped_handler_that_stops_the_fork_server_is_probed_and_set_aside(
    tmp_path: Path, last_line: str, reason: str
) -> None:
    path, _ = install_two(tmp_path, "pagemill", last_line)
    pool = LocalPool(Begin(tmp_path / "s", tmp_path / "k", import_seconds=1.0), extra_path=[path])

    with started_pool(pool) as described:
        assert described["first"].set_aside is None
        assert reason in (described["second"].set_aside or "")
        assert PoolClient(pool).run("first").how is How.DONE


def test_processes_and_threads_that_an_import_starts_are_not_left_in_the_fork_server(tmp_path: Path) -> None:
    started = tmp_path / "started"
    last_line = (
        "import subprocess, threading, time\n"
        f"open({str(started)!r}, 'a').write(f\"{{subprocess.Popen(['sleep', '600']).pid}}\\n\")\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    path, _ = install_two(tmp_path, "pagemill", last_line)
    pool = LocalPool(Begin(tmp_path / "s", tmp_path / "k", import_seconds=2.0), extra_path=[path])

    with started_pool(pool):
        assert threads_of(pool) == 1

    assert len(started.read_text().split()) == 3
    assert not [pid for pid in started.read_text().split() if Path("/proc", pid).exists()]
