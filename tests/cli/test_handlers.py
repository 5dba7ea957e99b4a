"""`run-one` and `handlers`, with real child processes and a third-party distribution."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests import fake_distributions as installed
from tests.cli.conftest import COMMAND, ROOT, Run

Install = Callable[..., None]

COUNTER = """
from dataclasses import dataclass

from worker_service.handlers import Done, Handler, Limits, NewJob, Permanent, Retryable


@dataclass(frozen=True, slots=True)
class Payload:
    pages: int
    then: str = "done"


def run(context):
    context.log(f"for {context.account} on {context.platform}")
    context.progress(40, "page 4 of 10")
    if context.payload.then == "retry":
        raise Retryable("the server is busy", after=30)
    if context.payload.then == "never":
        raise Permanent("NO_SUCH_FILE", "it was removed")
    print("printed by the way")
    if context.payload.then == "crash":
        raise ValueError("a mistake")
    (context.staging / "out.txt").write_text("x")
    return Done({"pages": context.payload.pages}, files=["out.txt"], follow_ups=[NewJob("assemble")])


counter = Handler("count_pages", run, Payload, limits=Limits(wall_seconds=60))
lacking = Handler("needs_engine", run, Payload, missing=lambda: "the engine is not installed")
broken = Handler("", run, Payload) if BROKEN else None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution with handlers, and hides the shipped ones except `shipped`."""

    def install(
        source: str = COUNTER.replace("BROKEN", "False"), *, shipped: Iterable[str] = (), **points: str
    ) -> None:
        path = tmp_path / "site"
        points = points or {"count_pages": "acme_pages:counter", "needs_engine": "acme_pages:lacking"}
        installed.install(path, "acme-pages", points)
        installed.keep_of_the_shipped(path, *shipped)
        (path / "acme_pages.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{path}")

    return install


@pytest.fixture
def own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the settings; their programs are the only handlers."""
    monkeypatch.setenv("WORKER_CONFIG", str(tmp_path / "pagemill.toml"))
    return tmp_path / "pagemill.toml"


# ── run-one ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_run_one_logs_to_stderr_and_prints_the_result(run: Run, install: Install, tmp_path: Path) -> None:
    install()
    (tmp_path / "job.json").write_text('{"pages": 3}')

    result = run("run-one", "--type", "count_pages", "--payload", "@job.json", "--account", "u")

    assert json.loads(result.stdout) == {"pages": 3}
    # Progress may be printed between two lines of the log.
    stderr_lines = result.stderr.splitlines()
    assert stderr_lines.index("for u on local") < stderr_lines.index("printed by the way")
    assert " 40 % page 4 of 10\n" in result.stderr
    assert "follow-up job: assemble" in result.stderr


@pytest.mark.parametrize(
    ("then", "lines"),
    [
        ("retry", ["retryable (RETRYABLE), again after 30 s", "the server is busy"]),
        ("never", ["permanent (NO_SUCH_FILE)", "it was removed"]),
        (
            "crash",
            [
                "Traceback (most recent call last):",
                "retryable (HANDLER_ERROR)",
                "ValueError: a mistake (acme_pages.py:",
            ],
        ),
    ],
)
def test_a_failed_attempt_prints_the_reason(run: Run, install: Install, then: str, lines: list[str]) -> None:
    install()
    payload = json.dumps({"pages": 1, "then": then})

    result = run("run-one", "--type", "count_pages", "--payload", payload, fails=1)

    assert result.stdout == ""
    assert all(line in result.stderr for line in lines), result.stderr


@pytest.mark.parametrize("payload", ["{oops", '{"page": 1}'])
def test_a_bad_payload_ends_with_exit_code_65(run: Run, install: Install, payload: str) -> None:
    install()
    run("run-one", "--type", "count_pages", "--payload", payload, fails=65)


@pytest.mark.parametrize(
    ("job_type", "is_broken", "sentence"),
    [
        ("count_page", False, "count_pages, needs_engine"),
        ("needs_engine", False, "the engine is not installed"),
        ("count_pages", True, "is not the name of a job type"),
    ],
    ids=["unknown type", "missing capability", "set aside"],
)
def test_a_type_that_cannot_run_here_ends_with_exit_code_69_and_the_reason(
    run: Run, install: Install, job_type: str, is_broken: bool, sentence: str
) -> None:
    install(COUNTER.replace("BROKEN", str(is_broken)))

    assert sentence in run("run-one", "--type", job_type, fails=69).stderr


def test_with_json_run_one_prints_one_object(run: Run, install: Install) -> None:
    install()

    result = run("run-one", "--json", "--type", "count_pages", "--payload", '{"pages": 3}')
    payload = '{"pages": 3, "then": "never"}'
    never = run("run-one", "--json", "--type", "count_pages", "--payload", payload, fails=1)

    answer = json.loads(result.stdout)
    assert (answer["outcome"], answer["result"], answer["follow_ups"]) == ("done", {"pages": 3}, ["assemble"])
    assert answer["memory_peak_bytes"] > 0
    assert json.loads(never.stdout)["error_code"] == "NO_SUCH_FILE"


def test_files_are_kept_only_with_directory(
    run: Run, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    words = ("run-one", "--type", "count_pages", "--payload", '{"pages": 3}')
    install()

    run(*words)
    run(*words, "--directory", "kept")

    assert [*(tmp_path / "tmp").iterdir()] == []
    assert [file.read_text() for file in (tmp_path / "kept").rglob("out.txt")] == ["x"]


def test_a_program_of_the_settings_runs_without_a_database(run: Run, own_programs: Path, no_database: Path) -> None:
    own_programs.write_text('[commands.greet]\nargv = ["/bin/echo", "hello", "{account}"]\n')

    result = run("run-one", "--type", "greet", "--account", "you")

    assert json.loads(result.stdout) == {"exit_code": 0}
    assert "hello you" in result.stderr
    assert not no_database.exists()


# ── handlers ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_handlers_are_listed_with_their_limits(run: Run, install: Install) -> None:
    install(shipped=installed.shipped())
    lines = run("handlers", "ls").stdout.splitlines()

    assert lines[0].split() == "TYPE CLASS MEMORY CPU TIME TIME NETWORK SANDBOX FROM STATE".split()
    by_type = {line.split()[0]: " ".join(line.split()) for line in lines[1:]}
    assert by_type["count_pages"] == "count_pages cpu 1,024 MiB 60 min 1 min no strict acme-pages ready"
    assert by_type["needs_engine"].endswith("missing: the engine is not installed")
    assert installed.shipped().keys() - {"command"} <= by_type.keys()


def test_a_handler_that_cannot_be_imported_is_listed_with_the_reason(run: Run, install: Install) -> None:
    install("1 / 0", count_pages="acme_pages:handler")

    listed = json.loads(run("handlers", "ls", "--json").stdout)["items"]
    [handler] = [item for item in listed if item["type"] == "count_pages"]

    assert handler["distribution"] == "acme-pages"
    assert "ZeroDivisionError" in handler["set_aside"]


def test_show_prints_the_declaration_and_schema_of_a_handler(run: Run, install: Install) -> None:
    install()

    stdout = run("handlers", "show", "count_pages").stdout
    answer = json.loads(run("handlers", "show", "count_pages", "--json").stdout)
    schema = json.loads(run("handlers", "show", "count_pages", "--schema").stdout)

    assert "spec                 acme_pages:counter\n" in stdout
    assert "wall_seconds         60\n" in stdout
    assert json.loads(stdout.split("\n\n", 1)[1]) == schema == answer["payload_schema"]
    assert schema["$defs"]["Payload"]["required"] == ["pages"]
    assert (answer["class"], answer["network"], answer["sandbox"], answer["missing"]) == ("cpu", False, "strict", None)


def add_to_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{place}")


WORDS = ("run-one", "--type", "count_words", "--payload", '{"words": ["a", "bb"]}')


def test_a_new_handler_installs_with_its_own_pyproject_and_runs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("handlers", "new", "count_words")

    directory = tmp_path / "installed"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(directory)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "."], cwd=tmp_path, check=True, timeout=120)

    assert sorted(file.name for file in directory.glob("*.py")) == ["count_words.py"]
    add_to_path(directory, monkeypatch)
    assert json.loads(run(*WORDS).stdout) == {"longest": "bb"}


def test_a_new_handler_leaves_a_pyproject_alone_and_prints_its_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("mine")

    result = run("handlers", "new", "count_words")

    assert (tmp_path / "pyproject.toml").read_text() == "mine"
    lines = tomllib.loads(result.stdout)
    assert lines == {"project": {"entry-points": {"worker_service.handlers": {"count_words": "count_words:handler"}}}}


def test_a_handler_runs_from_a_file_in_the_handlers_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("handlers", "new", "count_words")
    dropped = tmp_path / "dropped"
    dropped.mkdir()
    for name in ("count_words.py", "test_count_words.py"):
        (tmp_path / name).rename(dropped / name)
    (dropped / "broken.py").write_text("1 / 0")
    (dropped / "exposed.py").write_text("handlers = []")
    (dropped / "exposed.py").chmod(0o666)
    add_to_path(tmp_path, monkeypatch)
    monkeypatch.setenv("WORKER_HANDLERS_DIR", str(dropped))

    assert json.loads(run(*WORDS).stdout) == {"longest": "bb"}
    listed = json.loads(run("handlers", "ls", "--json").stdout)["items"]
    handler_by_type = {
        item["type"]: str(item) for item in listed if item["type"] in ("broken", "count_words", "exposed")
    }
    assert "test_count_words" not in str(listed)
    assert sorted(handler_by_type) == ["broken", "count_words", "exposed"]
    assert "ZeroDivisionError" in handler_by_type["broken"]
    assert "chmod go-w" in handler_by_type["exposed"]


@pytest.mark.parametrize("existing", ["count_words.py", "test_count_words.py"])
def test_a_new_handler_overwrites_nothing(run: Run, tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("mine")

    result = run("handlers", "new", "count_words", fails=1)

    assert existing in result.stderr
    assert [(file.name, file.read_text()) for file in tmp_path.glob("*.py")] == [(existing, "mine")]


@pytest.mark.parametrize("name", ["../evil", "Big", "class", "json", "worker_service", "a-b", ""])
def test_a_handler_name_that_cannot_be_a_module_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    run("handlers", "new", name, fails=2)

    assert [*tmp_path.glob("*.py")] == []


def test_a_program_of_the_settings_is_shown_with_its_limits(run: Run, own_programs: Path) -> None:

    argv = '["/bin/echo", "--key=secret", ["--user", "{account?}"], "{payload.ids*}"]'
    more = 'memory = "2 GiB"\nsandbox = "strict"\nwrite = ["/srv/out"]\npermanent = [2, 64]\nstdin = "{payload}"\n'
    own_programs.write_text(f"[commands.greet]\nargv = {argv}\n{more}")

    stdout = run("handlers", "show", "greet").stdout

    values = dict(line.split(None, 1) for line in stdout.split("\n\n")[0].splitlines())
    assert (values["program"], values["takes"], values["stdin"]) == (
        "/bin/echo",
        "{account?} {payload.ids*}",
        "{payload}",
    )
    assert (values["cwd"], values["files"]) == ("an empty directory for each attempt", "all but hidden ones")
    assert (values["wall_seconds"], values["memory"]) == ("3600", "2,048 MiB for each process")
    assert (values["exit_codes_done"], values["exit_codes_permanent"]) == ("0", "2, 64")
    assert (values["writes"], values["sandbox"]) == ("/srv/out", "strict")
    assert "secret" not in stdout


def test_ctrl_c_ends_an_attempt_and_its_processes(own_programs: Path) -> None:
    own_programs.write_text('[commands.wait]\nargv = ["/bin/sh", "-c", "echo $$; exec sleep 600"]\n')
    words = [*COMMAND, "run-one", "--type", "wait"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        program = int(child.stderr.readline())

        child.send_signal(signal.SIGINT)

        assert child.wait(timeout=60) == 130
    assert not Path(f"/proc/{program}").exists()
