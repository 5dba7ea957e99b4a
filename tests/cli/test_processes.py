"""The command as a process: exit codes, pipes, terminals, full disks, concurrent runs, imports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, ROOT, Process, Run, run_on_terminal
from tests.cli.stored_documents import Shelf
from tests.store.test_migrations import ORIGINAL

pytestmark = pytest.mark.filterwarnings("error")


def test_a_password_is_asked_for_and_not_shown(run: Run, shelf: Shelf) -> None:
    document_id = shelf.read("locked.pdf", "words", roles=("original",))
    workspace = shelf.workspace

    code, screen = run_on_terminal("reindex", str(document_id), "--password", prompt=b"Password: ", typed="sesame\n")
    refused = run("reindex", str(document_id), "--password", fails=2)

    assert (code, "Password:" in screen, "sesame" in screen) == (0, True, False)
    [stored] = (workspace / "passwords").iterdir()
    assert b'"password":"sesame","is_kept":false' in stored.read_bytes()
    assert "use --password-file FILE" in refused.stderr


# ── Words that are not understood ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["enqeue"], "enqueue"),
        (["canel"], "cancel"),
        (["ls", "--ownr", "a"], "--owner"),
        (["db", "migrat"], "migrate"),
        (["documents", "addopt", "."], "adopt"),
    ],
)
def test_a_misspelt_command_or_option_is_answered_with_the_right_one(run: Run, words: list[str], right: str) -> None:
    result = run(*words, fails=2)

    assert f"did you mean {right}" in result.stderr
    assert result.stdout == ""


def test_with_json_an_error_is_one_object_on_stderr(run: Run) -> None:
    result = run("ls", "--json", "--nonsense", fails=2)

    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["exit_code"]) == ("usage", 2)
    assert result.stdout == ""


def test_the_program_is_always_named_pagemill(process: Process) -> None:
    assert process("--help").stdout.startswith("Usage: pagemill ")
    checkout = subprocess.run(
        [COMMAND[0], str(ROOT / "cli.py"), "--version"], capture_output=True, text=True, check=True
    )
    assert checkout.stdout.startswith("pagemill ")


# ── The database and its surroundings ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [["ls"], ["enqueue", "a"], [], ["cancel", "1"], ["db", "check"], ["db", "shell"]])
def test_without_a_database_every_verb_says_init(run: Run, words: list[str], no_database: Path) -> None:
    result = run(*words, fails=69)

    assert "pagemill init" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not no_database.exists()


def test_init_twice_changes_nothing(run: Run, no_database: Path) -> None:
    assert run("init").stdout == f"created {no_database}\n"
    run("enqueue", "a")

    assert "exists already" in run("init").stdout

    assert len(json.loads(run("ls", "--json").stdout)["items"]) == 1


@pytest.mark.parametrize(
    ("folder", "umask", "file"),
    [(0o2770, 0o022, 0o664), (0o2770, 0o077, 0o660), (0o755, 0o022, 0o644), (0o1777, 0o022, 0o644)],
    ids=lambda mode: f"{mode:04o}",
)
def test_init_lets_the_group_write_if_it_owns_the_directory(
    run: Run, tmp_path: Path, folder: int, umask: int, file: int
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(folder)
    database = tmp_path / "shared/pagemill.db"

    before = os.umask(umask)
    try:
        run("init", "--database", database)
    finally:
        os.umask(before)

    assert database.stat().st_mode & 0o777 == file


def test_of_two_inits_at_once_one_creates_the_database(no_database: Path, run: Run) -> None:
    both = [
        subprocess.Popen([*COMMAND, "init", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [child.communicate(timeout=60) for child in both]

    assert [child.returncode for child in both] == [0, 0], ends
    assert sorted(json.loads(out)["created"] for out, _ in ends) == [False, True]
    assert run("enqueue", "a").stdout == "1\n"


@pytest.mark.parametrize("words", [["ls"], ["init"], ["enqueue", "a"], ["db", "migrate"]])
def test_a_text_file_is_refused_as_a_database(run: Run, no_database: Path, words: list[str]) -> None:
    no_database.write_text("a letter to grandmother\n" * 100)

    result = run(*words, fails=78)

    assert str(no_database) in result.stderr
    assert result.stderr.count("\n") == 1
    assert no_database.read_text().startswith("a letter to grandmother")


def test_output_to_a_full_disk_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*COMMAND, "config", "show"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert result.returncode == 74
    assert "no space left" in result.stderr


def test_a_postgresql_address_is_refused(run: Run) -> None:
    assert "SQLite only" in run("--database", "postgresql://host/db", "ls", fails=78).stderr


def test_the_option_database_chooses_the_database(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "new" / "folder" / "other.db"

    run("--database", other, "init")
    run("enqueue", "a", "--database", other)

    assert len(json.loads(run("ls", "--database", other, "--json").stdout)["items"]) == 1
    run("ls", fails=69)


def test_a_write_to_a_full_disk_fails_and_keeps_the_database_intact(run: Run, database: Path) -> None:
    run("enqueue", "a")
    # The kernel refuses to let a file of the child grow beyond this size, as on a full disk.
    largest = f"ulimit -f {database.stat().st_size // 512 + 64}; trap '' XFSZ;"
    line = f"{largest} exec {' '.join(COMMAND)} enqueue b --payload -"
    payload = json.dumps("x" * 900_000)

    result = subprocess.run(["sh", "-c", line], input=payload, capture_output=True, text=True, check=False)

    assert result.returncode == 74, result.stderr
    assert result.stderr.count("\n") == 1
    assert len(json.loads(run("ls", "--json").stdout)["items"]) == 1


# ── Pipes and terminals ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("database")
def test_a_closed_pipe_is_no_error(run: Run) -> None:
    for _ in range(3):
        run("enqueue", "a")

    result = subprocess.run(
        ["sh", "-c", f"{' '.join(COMMAND)} ls | head -1"], capture_output=True, text=True, check=True
    )

    assert result.stdout.startswith("ID")
    assert result.stderr == ""


@pytest.mark.usefixtures("database")
def test_tables_fit_a_terminal_and_are_whole_in_a_pipe(process: Process, run: Run) -> None:
    run("enqueue", "a" * 200)

    _, screen = run_on_terminal("ls", columns=80)

    assert all(len(line) <= 80 for line in screen.splitlines())
    assert "…" in screen
    assert "a" * 200 in process("ls").stdout


@pytest.mark.usefixtures("database")
def test_only_terminals_without_no_color_get_colours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("enqueue", "a")
    run("cancel", 1)

    assert "\x1b[" in run_on_terminal("ls", columns=200)[1]
    assert "\x1b[" not in run("ls").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run_on_terminal("ls", columns=200)[1]


@pytest.mark.usefixtures("database")
def test_on_a_terminal_a_change_is_confirmed_and_a_final_one_by_its_number(run: Run) -> None:
    for _ in range(3):
        run("enqueue", "a")

    for words, typed, code, shown in (
        ("cancel --status pending", "n", 1, "nothing was done"),
        ("delete 3", "y", 0, "Delete 1 job? This cannot be undone."),
        ("cancel --status pending", "y", 0, "cancelled 2 jobs"),
        ("prune --older-than 2199-01-01", "y", 1, "nothing was done"),
        ("prune --older-than 2199-01-01", "2", 0, "pruned 2 jobs"),
    ):
        ended, screen = run_on_terminal(*words.split(), typed=f"{typed}\n", columns=120)
        assert (ended, shown in screen) == (code, True), screen


@pytest.mark.usefixtures("database")
def test_arguments_that_are_not_utf8_are_refused(run: Run) -> None:
    assert "not UTF-8" in run("enqueue", "a", "--owner", "\udcff", fails=2).stderr


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_stream_is_no_error(closed: str) -> None:
    command = " ".join(COMMAND)

    for words in ("ls", "enqueue a"):
        result = subprocess.run(
            ["sh", "-c", f"{command} {words} {closed}"], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, (words, result.stderr)


@pytest.mark.parametrize(
    ("words", "modules_max"),
    [(["ls"], 29), (["ls", "--json"], 30), (["documents"], 31), (["documents", "--json"], 32)],
)
def test_a_listing_imports_nothing_that_it_does_not_need(database: Path, words: list[str], modules_max: int) -> None:
    listing = "import sys; from worker_service.cli import pagemill\n"
    listing += f"try: pagemill.main({words})\nfinally: print(*sys.modules, file=sys.stderr)"

    result = subprocess.run([COMMAND[0], "-c", listing], capture_output=True, text=True, check=True)

    loaded = set(result.stderr.split())
    assert "apsw" in loaded
    heavy = {"structlog", "xxhash", "pymupdf", "googleapiclient", "pytesseract", "tomllib", "difflib", "asyncio"}
    assert loaded & heavy == set()
    ours = {name for name in loaded if name.partition(".")[0] in ("worker_service", "job_handlers")}
    assert len(ours) <= modules_max, sorted(ours)


# ── Programs around it ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="needs the sqlite3 program")
def test_the_shell_is_read_only_unless_write_is_given(process: Process, run: Run, database: Path) -> None:
    run("enqueue", "a")

    assert process("db", "shell", "SELECT job_type FROM worker_job_queue").stdout == "a\n"
    change = "UPDATE worker_job_queue SET priority = 1 WHERE id = 1"
    refused = subprocess.run([*COMMAND, "db", "shell", change], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "readonly" in refused.stderr
    process("db", "shell", "--write", change)

    assert json.loads(run("show", 1, "--json").stdout)["priority"] == 1


@pytest.mark.usefixtures("database")
def test_the_shell_without_the_sqlite3_program_says_how_to_install_it(process: Process, tmp_path: Path) -> None:
    result = process("db", "shell", fails=69, env={**os.environ, "PATH": str(tmp_path)})

    assert "sqlite3 program is not installed" in result.stderr


@pytest.mark.usefixtures("database")
def test_a_backup_is_a_database_and_never_overwrites(run: Run, tmp_path: Path) -> None:
    run("enqueue", "a")
    target = tmp_path / "copy.db"

    run("db", "backup", target)
    assert len(json.loads(run("ls", "--database", target, "--json").stdout)["items"]) == 1

    before = target.read_bytes()
    result = run("db", "backup", target, fails=1)
    assert str(target) in result.stderr
    assert target.read_bytes() == before


@pytest.mark.usefixtures("database")
def test_in_a_directory_a_backup_is_named_by_the_time_and_the_newest_are_kept(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    names = [f"pagemill-2026-11-{day:02}T020000Z.db" for day in (1, 2, 3)]
    for name in [*names, "pagemill-before.db"]:
        (directory / name).write_bytes(b"")

    answer = json.loads(run("db", "backup", directory, "--keep", "2", "--json").stdout)

    assert [Path(item).name for item in answer["removed"]] == names[:2]
    assert {file.name for file in directory.iterdir()} == {names[2], "pagemill-before.db", Path(answer["backup"]).name}
    assert "is not a directory" in run("db", "backup", directory / "x.db", "--keep", "2", fails=2).stderr


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="needs the sqlite3 program")
def test_a_database_of_the_original_proposal_is_adopted_by_migrate(run: Run, no_database: Path) -> None:
    row = "INSERT INTO worker_job_queue (job_type, platform, account) VALUES ('scrape_account', 'instagram', 'user123')"
    subprocess.run(["sqlite3", no_database, ORIGINAL + row], check=True)

    assert "pagemill db migrate" in run("ls", fails=78).stderr
    assert json.loads(run("db", "migrate", "--dry-run", "--json").stdout)["items"] != []
    run("ls", fails=78)
    run("db", "migrate")

    assert [job["account"] for job in json.loads(run("ls", "--json").stdout)["items"]] == ["user123"]
    assert "up to date" in run("db", "migrate").stderr


@pytest.mark.usefixtures("database")
def test_check_lists_what_it_checked(run: Run) -> None:
    # The results depend on the machine.
    result = subprocess.run([*COMMAND, "db", "check", "--json"], capture_output=True, text=True, check=False)

    checks = json.loads(result.stdout)["items"]
    assert result.returncode == (0 if all(check["is_good"] for check in checks) else 1)
    assert "integrity" in [check["name"] for check in checks if check["is_good"]]
