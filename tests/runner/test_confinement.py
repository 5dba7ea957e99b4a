"""What a child inherits, and what it can reach."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.conftest import MakeClient, PoolClient, threads_of
from worker_service.runner import sandbox, seccomp
from worker_service.runner.messages import How, Started

needs_landlock = pytest.mark.skipif(
    sandbox.landlock_version() == 0 and "CI" not in os.environ, reason="this kernel has no Landlock"
)

needs_filter = pytest.mark.skipif(seccomp.this_machine() is None, reason="the system calls of this machine are others")

_GETFLAGS, _GETVERSION, _FSGETXATTR = 0x80086601, 0x80087601, 0x801C581F


def level_of(client: PoolClient, job_id: int) -> str:
    return next(event.sandbox for event in client.events if isinstance(event, Started) and event.job_id == job_id)


def test_a_child_inherits_its_three_pipes_and_nothing_else(client: PoolClient) -> None:
    report = json.loads(client.run("reports_itself").result or "")

    opened = report["descriptors"]
    assert opened.pop("0") == "/dev/null"
    output = opened.pop("1")
    assert output.startswith("pipe:")
    assert opened.pop("2") == output
    assert len(opened) == len({*opened.values()}) == 3
    assert output in opened.values()
    assert all(name.startswith("pipe:") for name in opened.values())


def test_the_child_also_holds_the_workers_lock(make_client: MakeClient, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    client = make_client(lock_fd=lock)

    report = json.loads(client.run("reports_itself").result or "")

    os.close(lock)
    assert str(tmp_path / "lock") in report["descriptors"].values()


def test_the_environment_of_a_child_has_no_secrets(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    client = make_client()

    report = json.loads(client.run("reports_itself").result or "")

    environment = report["environment"]
    assert set(environment) <= {"PATH", "LANG", "LC_CTYPE", "TZ", "HOME", "PAGEMILL_ATTEMPT"}
    assert environment["PAGEMILL_ATTEMPT"] == "1-1"
    assert environment["HOME"] == report["staging"] == str(tmp_path / "staging" / "child-1" / "staging")
    assert environment["TZ"] == "Europe/Berlin"
    assert "canary" not in "".join(report["seen_from_outside"])


def test_a_variable_reaches_the_handler_that_declares_it(client: PoolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    # After the fork server has started: it has none of it.
    monkeypatch.setenv("TEST_ASKED_FOR", "value")

    assert json.loads(client.run("asks_for_a_variable").result or "") == "value"
    assert "TEST_ASKED_FOR" not in json.loads(client.run("reports_itself").result or "")["environment"]


@needs_landlock
def test_a_handler_reads_the_credentials_that_it_declares_and_no_others(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).write_text("secret")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    client = make_client()

    assert json.loads(client.run("reads_credentials").result or "") == ["allowed", "PermissionError"]
    assert "CREDENTIALS_DIRECTORY" not in json.loads(client.run("reports_itself").result or "")["environment"]


def test_a_child_has_its_own_session_and_private_directory(client: PoolClient) -> None:
    ended = client.run("reports_itself", state='{"page": 7}')
    report = json.loads(ended.result or "")

    assert report["session"]
    assert report["mode"] == "0o700"
    assert report["cwd"] == report["staging"]
    assert (report["key"], report["account"], report["state"]) == (str(ended.job_id), "user123", {"page": 7})


def test_attempts_with_the_same_key_share_a_keep_directory(client: PoolClient) -> None:
    results = [client.run("keeps", json.dumps({"path": key})).result for key in ("a", "a", "b", "../../a")]

    assert results == ['"x"', '"xx"', '"x"', '"x"']


@pytest.mark.parametrize("setting", ["strict", "off"])
def test_a_link_in_place_of_the_staging_directory_publishes_nothing(
    make_client: MakeClient, tmp_path: Path, setting: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("the daemon's")

    client = make_client(sandbox=setting)
    ended = client.run("exchanges_its_staging", json.dumps({"path": str(outside)}))

    # In a sandbox the link is refused; without one its file is not found in the directory that the fork server made.
    assert (ended.how, ended.published) == (How.RETRYABLE if setting == "strict" else How.GARBLED, [])
    assert (outside / "canary").read_text() == "the daemon's"
    assert (level_of(client, ended.job_id) == "off") is (setting == "off")


def test_a_link_in_place_of_a_keep_directory_is_not_followed(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client()
    payload = json.dumps({"path": "a"})
    client.run("keeps", payload)
    [keep] = (tmp_path / "keep").iterdir()
    keep.rename(tmp_path / "outside")
    keep.symlink_to(tmp_path / "outside")

    ended = client.run("keeps", payload)

    assert ended.how is How.RETRYABLE
    assert "NotADirectoryError" in ended.message
    assert (tmp_path / "outside" / "file.part").read_text() == "x"


def test_the_fork_server_has_one_thread(client: PoolClient) -> None:
    assert threads_of(client.pool) == 1


@needs_landlock
def test_a_strict_sandbox_confines_a_child_to_its_staging_directory(client: PoolClient, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")

    ended = client.run("looks_over_the_wall", json.dumps({"path": str(outside)}))
    report = json.loads(ended.result or "")

    allowed = {what for what, answer in report.items() if answer == "allowed"}
    expected = {"write inside", "run a program", "its own limits"}
    if seccomp.this_machine() is None:
        expected |= {"socket", "unix socket", "pair", "limits of the parent", "its own mark", "priority of the parent"}
    if sandbox.landlock_version() < 6:
        expected |= {"signal the parent"}
    assert allowed == expected
    assert level_of(client, ended.job_id) == ("landlock+seccomp" if seccomp.this_machine() else "landlock")


@needs_landlock
@needs_filter
def test_a_child_reaches_nothing_through_system_calls_that_need_no_file(client: PoolClient) -> None:
    ended = client.run("knocks_at_the_kernel", json.dumps({"path": ""}))
    assert ended.message == ""
    found, capabilities = json.loads(ended.result or "")

    allowed = {"bind itself to a core", "pipe with a name", "a thread", "a program"}
    assert {what for what, answer in found.items() if answer == "allowed"} == allowed
    assert set(found.values()) == {"allowed", "EPERM", "ENOSYS", "PermissionError"}
    # Inheritable, permitted, effective, bounding and ambient.
    assert capabilities == ["0" * 16] * 5


def _attributes_of(path: Path) -> object:
    flags: list[bytes] = []
    with path.open("rb") as file:
        for what, room in ((_GETFLAGS, 8), (_GETVERSION, 8), (_FSGETXATTR, 28)):
            with contextlib.suppress(OSError):
                flags.append(fcntl.ioctl(file, what, bytes(room)))
    status = path.stat()
    return (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        status.st_size,
        sorted(os.listxattr(path)),
        flags,
    )


@needs_landlock
@needs_filter
@pytest.mark.parametrize("setting", ["strict", "off"])
def test_a_child_cannot_change_mode_owner_time_or_attributes_of_files(
    make_client: MakeClient, tmp_path: Path, setting: str
) -> None:
    unreadable, readable = tmp_path / "pagemill.db", tmp_path / "report.pdf"
    for file in (unreadable, readable):
        file.write_text("content")
        for number in range(1, 5):
            os.setxattr(file, f"user.{number}", b"x")
    before = [_attributes_of(unreadable), _attributes_of(readable)]

    client = make_client(sandbox=setting)
    result = client.run("changes_modes", json.dumps({"path": str(unreadable)}), inputs={"original": readable}).result

    after = [_attributes_of(unreadable), _attributes_of(readable)]
    assert (after == before) is (setting == "strict")
    # Without a sandbox it does all of that: these are the calls.
    assert (result == '["600", 1]') is (setting == "strict")


@needs_landlock
def test_programs_that_copy_modes_and_times_work_in_a_sandbox(client: PoolClient, tmp_path: Path) -> None:
    original = tmp_path / "report.pdf"
    original.write_text("content")

    ended = client.run("copies", "{}", inputs={"original": original})

    assert (ended.message, ended.result) == ("", '[10, "content"]')


@needs_filter
def test_the_filter_refuses_truncation_where_landlock_does_not(tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_text("content")
    program = (
        "import os, sys\n"
        "from worker_service.runner import sandbox\n"
        "sandbox.landlock_version = lambda: 2\n"
        "sandbox._landlock = lambda rules: True\n"
        "sandbox.apply(sandbox.SandboxRules([], [], network=False), 'strict')\n"
        "for cut in (lambda: os.truncate(sys.argv[1], 0), lambda: os.open(sys.argv[1], os.O_TRUNC)):\n"
        "    try:\n"
        "        cut()\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
        "with open(sys.argv[1], 'a') as file:\n"
        "    file.write(' and more')\n"
    )

    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["refused"] * 2
    assert file.read_text() == "content and more"


@needs_landlock
def test_a_handler_that_declares_the_network_has_it(client: PoolClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = client.launch("calls_home", json.dumps({"port": server.getsockname()[1]}))
        server.settimeout(30)
        line, _ = server.accept()
        with line:
            line.sendall(b"hello")

    assert json.loads(client.wait_for_end(order).result or "") == "hello"


def test_strict_requires_every_feature_and_best_effort_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(rules: sandbox.SandboxRules) -> bool:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(sandbox, "_renounce_privileges", lambda rules: False)
    monkeypatch.setattr(sandbox, "_landlock", refused)
    monkeypatch.setattr(sandbox, "_seccomp", lambda rules: True)
    rules = sandbox.SandboxRules([], [], network=False)

    assert sandbox.apply(rules, "best-effort") == "seccomp"
    with pytest.raises(sandbox.SandboxError, match="landlock"):
        sandbox.apply(rules, "strict")


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        (["package/__init__.py", "module.py", "var/workspace/x", "pagemill.db"], {"package", "module.py"}),
        # As `pip install --user` does it: beside the prefix of the Python that runs.
        (
            ["namespace/package/__init__.py", "compiled/__init__.abi3.so", "package.libs/libopenblas.so.0"],
            {"namespace", "compiled", "package.libs"},
        ),
    ],
    ids=["checkout", "pip --user"],
)
def test_only_code_in_directories_of_the_python_path_is_readable(
    tmp_path: Path, files: list[str], shown: set[str]
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert {path.name for path in sandbox.code_paths_of([str(tmp_path)]) if path.parent == tmp_path} == shown


def test_an_unknown_sandbox_setting_is_refused(tmp_path: Path, make_client: MakeClient) -> None:
    with pytest.raises(ValueError, match="best-effort"):
        make_client(sandbox="loose")


def test_a_handler_that_starts_threads_at_import_is_imported_in_each_child(make_client: MakeClient) -> None:
    client = make_client(extra_handlers=("tests.saboteurs.threads_at_import:handler",))

    ended = client.run("threads_at_import")

    assert (ended.how, ended.result) == (How.DONE, "2")
    assert threads_of(client.pool) == 1
