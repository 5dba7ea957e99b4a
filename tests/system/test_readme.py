"""The commands, rows and settings of README and docs/, run as written beside a daemon.

Each block is run here, or listed below with what shows it elsewhere. Paths, numbers and ids are replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest

from tests.drive_server.server import serving
from tests.job_handlers.reading import documents
from tests.kit.system import DEADLINE_SECONDS
from tests.manual import MARK
from tests.store.test_migrations import ORIGINAL
from tests.system.preloaded_pagemill import typed

pymupdf: Any = partly_typed

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "/var/lib/pagemill/pagemill.db"
FOLDER_ID = "folder-of-reports"

Block = tuple[str, str, str]
"""Page, heading above, language."""

TUTORIAL = (
    "1. Read the folder",
    "2. Search",
    "4. Take results away",
    "5. Improve a bad page",
    "6. Run a program of your own",
    "7. See something fail",
)
RUN_HERE: set[Block] = {
    *re.findall(r'code_blocks\(\s*"(.+?)",\s*"(.+?)",\s*"(.+?)"\s*\)', Path(__file__).read_text("utf-8")),
    *(("docs/tutorial.md", heading, "sh") for heading in TUTORIAL),
}
SHOWN_ELSEWHERE: Mapping[Block, str] = {
    ("README.md", "Try it", "sh"): "test_demo.py; and these are the tests",
    ("README.md", "Install it as a service", "sh"): "tests/systemd/test_install.py, and tests/test_wheel.py",
    ("docs/documents.md", "List documents", "sh"): "tests/cli/test_documents.py",
    ("docs/cluster.md", "Three machines", "sh"): "tests/cluster/test_cluster.py, on one machine",
    ("docs/cluster.md", "Three machines", "toml"): "tests/cluster/test_cluster.py",
    ("docs/cluster.md", "Settings", "toml"): "tests/test_config.py",
    ("docs/cluster.md", "As a service", "ini"): "a unit of Ray, not of pagemill",
    ("docs/cluster.md", "TLS", "sh"): "Ray's own settings",
    ("docs/sqlite.md", "A damaged search index", "sh"): "tests/store/test_search_index.py",
    ("docs/api.md", "First requests", "sh"): "tests/web/api/test_openapi.py",
    ("docs/api.md", "Many jobs at once", "sh"): "tests/web/api/test_openapi.py",
    ("docs/api.md", "Batches and documents", "sh"): "tests/web/api/test_openapi.py",
    ("docs/api.md", "Events", "sh"): "tests/web/api/test_openapi.py",
    ("docs/http.md", "The web page and HTTP", "console"): "tests/web/test_serve.py",
    ("docs/http.md", "From other machines", "nginx"): "words of a proxy",
    ("docs/converters.md", "Take the place of another document converter", "toml"): "tests/web/api/test_converters.py",
    ("docs/documents.md", "Search", "sh"): "tests/store/test_library.py",
    ("docs/documents.md", "Search by meaning", "sh"): "a model to download",
    ("docs/documents.md", "Search by meaning", "toml"): "a server of your own",
    ("docs/documents.md", "Passages", "sh"): "tests/web/api/test_formats.py",
    ("docs/documents.md", "Read an encrypted PDF", "sh"): "tests/cli/test_submit.py",
    ("docs/documents.md", "Tags", "sh"): "tests/cli/test_tags.py",
    ("docs/http.md", "Sign-in by a proxy", "nginx"): "words of a proxy",
    ("docs/http.md", "Sign-in by a proxy", "toml"): "tests/web/test_trusted_proxy.py",
    ("docs/notify.md", "When what you added has been read", "sh"): "tests/services/test_notifications.py",
    ("docs/notify.md", "When what you added has been read", "toml"): "tests/services/test_notifications.py",
    ("docs/schedules.md", "Watch folders, and start jobs at fixed times", "sh"): "tests/cli/test_schedules.py",
    ("docs/documents.md", "Export tables", "sh"): "tests/cli/test_documents.py",
    ("docs/settings.md", "What the service can read", "ini"): "tests/systemd/test_documents.py",
    ("docs/settings.md", "Settings of your own handler", "toml"): "an entry point: tests/test_config.py",
    ("docs/sqlite.md", "Restore, here or on another machine", "sh"): "tests/systemd/test_install.py",
    ("docs/assistants.md", "Let an AI assistant search and read", "json"): "tests/cli/test_mcp.py",
    ("docs/google-drive.md", "Read a folder", "sh"): "the lines of README",
    ("docs/tutorial.md", "3. Look at the page", "sh"): "tests/web/test_serve.py",
    ("docs/without-systemd.md", "No systemd, just a shell", "sh"): "the lines of README",
    ("docs/without-systemd.md", "No systemd, just a shell", "crontab"): "tests/system/test_daemon.py",
    ("docs/upgrade.md", "Upgrade", "sh"): "tests/cli/test_upgrade.py",
    ("docs/upgrade.md", "By hand", "sh"): "tests/systemd/test_install.py, but for pip",
}


def blocks() -> Iterator[tuple[Block, str]]:
    for page in ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        text = (ROOT / page).read_text("utf-8").partition(MARK)[0]
        heading, language, lines = "", None, list[str]()
        for line in text.splitlines():
            if language is None and line.startswith("#"):
                heading = line.lstrip("#").strip()
            elif language is None and line.startswith("```"):
                language, lines = line.removeprefix("```"), []
            elif line == "```" and language is not None:
                yield (page, heading, language), "".join(f"{text}\n" for text in lines)
                language = None
            else:
                lines.append(line)


def code_blocks(page: str, heading: str, language: str) -> str:
    """Return all blocks of that language below that heading."""
    return "".join(text for block, text in blocks() if block == (page, heading, language))


@dataclass(frozen=True)
class Shell:
    """Runs shell commands in a directory where a daemon has read some reports."""

    directory: Path
    environment: Mapping[str, str]
    documents_output: str
    """Output of README's commands for documents."""

    def run(self, script: str, *, code: int | None = 0) -> str:
        done = subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert code is None or done.returncode == code, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def rows(self, statement: str) -> str:
        return self.run(f"sqlite3 -cmd '.timeout 5000' pagemill.db {shlex.quote(statement)}").strip()

    def cron(self, line: str) -> str:
        assert DATABASE in line
        command = line.strip().split(None, 5)[5].replace("\\%", "%")
        return self.run(command.replace(DATABASE, str(self.directory / "pagemill.db")))


def with_a_table(made: Path, path: Path) -> None:
    with pymupdf.open(made) as document:
        page = document[0]
        for row, cells in enumerate(
            (("Emissions", "2024", "2025"), ("Scope 1", "310", "287"), ("Scope 2", "94", "88"))
        ):
            for column, cell in enumerate(cells):
                page.draw_rect(pymupdf.Rect(60, 600, 180, 620) + (120 * column, 20 * row) * 2)
                page.insert_text((66 + 120 * column, 614 + 20 * row), cell, fontsize=10)
        document.save(path)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    here = tmp_path_factory.mktemp("shell")
    (here / "reports").mkdir()
    text = f"Each climate risk was reviewed.\n\n{documents.prose(1, 60)}"
    with_a_table(documents.digital(here / "made.pdf", [text]), here / "reports" / "annual.pdf")
    documents.scan(here / "reports" / "scanned.pdf", [documents.picture(text, dpi=150)], dpi=150)
    (here / "terms.txt").write_text("climate risk\n")
    program = here / "instagram"
    program.write_text('#!/bin/sh\necho "scraping $2"\n')
    program.chmod(0o755)
    table = code_blocks("README.md", "Jobs of your own", "toml")
    assert "/opt/scrapers/instagram" in table
    count_words = code_blocks("docs/tutorial.md", "6. Run a program of your own", "toml")
    (here / "pagemill.toml").write_text(f"{table.replace('/opt/scrapers/instagram', str(program))}\n{count_words}")
    (here / "credentials").mkdir(mode=0o700)
    with serving() as drive, typed(here / "bin"):
        folder = drive.store.folder("Reports", id=FOLDER_ID)
        drive.store.add("water.pdf", documents.digital(here / "made.pdf", [text]).read_bytes(), parents=[folder.id])
        key = here / "credentials" / "drive"
        key.touch(mode=0o600)
        key.write_text(drive.tokens.service_account())
        programs = Path(sys.executable).parent
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(here / "bin"), str(programs), os.environ["PATH"]]),
            # One after the other: document 1 is the report with the table.
            "WORKER_IO_CONCURRENCY": "1",
            "WORKER_DATABASE": str(here / "pagemill.db"),
            "WORKER_CONFIG": str(here / "pagemill.toml"),
            "WORKER_DRIVE_ENDPOINT": drive.url,
            "CREDENTIALS_DIRECTORY": str(here / "credentials"),
        }
        first_shell = Shell(here, environment, "")
        first_shell.run("pagemill init")
        daemon = subprocess.Popen(
            [programs / "pagemill", "run"],
            cwd=here,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # Whichever file was fetched first is document 1.
            annual = """$(sqlite3 pagemill.db "SELECT id FROM document WHERE name = 'annual.pdf'")"""
            script = code_blocks("README.md", "Documents", "sh").replace(
                "pagemill tables 1 ", f"pagemill tables {annual} "
            )
            yield Shell(here, environment, first_shell.run(script))
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(DEADLINE_SECONDS)


def test_every_code_block_is_run_here_or_tested_elsewhere() -> None:
    assert {block for block, _ in blocks()} == RUN_HERE | SHOWN_ELSEWHERE.keys()


# ── README ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_readmes_commands_for_documents_work(shell: Shell) -> None:
    assert "done · 2 files · 2 pages" in shell.documents_output
    assert shell.documents_output.count("[climate] [risk]") >= 2
    counted = re.findall(r"^\d,(annual|scanned)\.pdf,[1-9]\d*$", shell.documents_output, re.MULTILINE)
    assert sorted(counted) == ["annual", "scanned"]
    assert list((shell.directory / "out").glob("*.pdf"))


def test_a_broken_file_is_reported_as_the_readme_shows(shell: Shell) -> None:
    shown = code_blocks("README.md", "pagemill", "console")
    (shell.directory / "broken").mkdir()
    (shell.directory / "broken" / "broken.pdf").write_text("<!DOCTYPE html><html>404</html>")

    output = shell.run("pagemill add broken/ --owner alice --wait", code=1)

    [promised] = re.findall(r"^/srv/reports/broken\.pdf: (.*)$", shown, re.MULTILINE)
    assert f"broken.pdf: {promised}" in output
    assert re.search(r"^batch \d+ \(broken\): finished, 1 failed · 1 file · 0 pages$", output, re.MULTILINE)


def test_a_folder_of_drive_is_counted_read_and_watched(shell: Shell) -> None:
    list_line, read_line, watch_line = (
        code_blocks("README.md", "Google Drive", "sh").replace("FOLDER_ID", FOLDER_ID).splitlines()
    )

    assert "1" in shell.run(list_line)
    shell.run(f"pagemill wait $({read_line.partition('#')[0]})")
    assert "water.pdf" in shell.run("pagemill documents --owner alice")
    shell.run(watch_line.partition("#")[0])
    shell.run("pagemill wait --type crawl; pagemill undo --yes")


def start_batch(shell: Shell, line: str) -> str:
    [number] = re.findall(r"^batch:(\d+)$", shell.run(line), re.MULTILINE)
    return str(number)


def for_batch(number: str, script: str) -> str:
    """Replace the number of the first batch."""
    return re.sub(r"\b(batch[: ](?:[a-z]+ )?)1\b", rf"\g<1>{number}", script)


def test_a_row_from_cron_runs_a_program(shell: Shell) -> None:
    insert, _ = code_blocks("README.md", "Jobs of your own", "crontab").splitlines()
    shell.cron(insert)

    job = shell.rows("SELECT max(id) FROM worker_job_queue WHERE job_type = 'scrape_account'")
    shell.run(f"pagemill wait {job} --timeout 20s")
    assert "scraping user123" in shell.run(f"pagemill logs {job}")


def test_cron_mails_failed_jobs_only(shell: Shell) -> None:
    _, mail = code_blocks("README.md", "Jobs of your own", "crontab").splitlines()
    command = mail.split(None, 5)[5].replace("/usr/local/bin/", "")
    shell.run("pagemill delete --status failed --yes")
    assert shell.run(command) == ""

    job = shell.run("pagemill enqueue download --set source=/nowhere/b.pdf --max-retries 0").strip()
    shell.run(f"pagemill wait {job}", code=1)

    assert shell.run(command).splitlines()[1].split()[0] == job


def test_the_commands_for_stuck_jobs_print_something(shell: Shell) -> None:
    job = shell.run("pagemill enqueue download --set source=/nowhere/a.pdf --max-retries 0").strip()
    shell.run(f"pagemill wait {job}", code=1)

    output_by_line = {line: shell.run(line.replace("42", job), code=None) for line in
            code_blocks("README.md", "When something is stuck", "sh").splitlines()}  # fmt: skip

    assert len(output_by_line) == 6
    assert all(output_by_line.values())
    for output in output_by_line.values():
        assert not any(text in output for text in ("a bug in pagemill", "Usage:", "help:")), output


# ── docs/ ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tutorial_works(shell: Shell) -> None:
    annual = shell.rows("SELECT id FROM document WHERE name = 'annual.pdf'")

    printed = {
        heading: shell.run(code_blocks("docs/tutorial.md", heading, "sh").replace("tables 1 ", f"tables {annual} "))
        for heading in TUTORIAL
    }

    assert "[climate] [risk]" in printed["2. Search"]
    assert "climate risk" in printed["4. Take results away"]
    assert re.search(r"\d+ /etc/passwd", printed["6. Run a program of your own"])
    assert "NOT_WHAT_IT_SAYS" in printed["7. See something fail"]


def test_the_commands_to_add_to_batches_work(shell: Shell) -> None:
    script = code_blocks("docs/batches.md", "Several people: owners and batches", "sh")
    dry, add, listed, more, *show_lines = script.splitlines()
    documents.digital(shell.directory / "more.pdf", ["More of it."])
    shell.run("pagemill pause --all")

    assert "2 read already and unchanged" in shell.run(dry)
    # A batch in which nothing is left to do is over at once.
    shell.run("touch reports/*")
    number = start_batch(shell, add)
    theirs = start_batch(shell, listed)
    shell.run(for_batch(number, more))
    shell.run("pagemill unpause --all")
    output = [shell.run(for_batch(number, line)) for line in show_lines]

    assert f"batch {number} (reports): done · 3 files" in output[0]
    listed_title = f"batch {theirs} (annual.pdf and 1 more)"
    assert shell.run(f"pagemill wait batch:{theirs}").startswith(f"{listed_title}: done · 2 files")


def test_the_commands_to_stop_and_resume_a_batch_work(shell: Shell) -> None:
    stop, resume, retry, cancel, remove = code_blocks("docs/batches.md", "Stop and resume", "sh").splitlines()
    shell.run("pagemill pause --all")
    number = start_batch(shell, "pagemill add reports/ --owner alice")

    for line in (stop, resume, retry, f"{cancel.partition('#')[0]} --yes", resume):
        shell.run(for_batch(number, line))
    shell.run("pagemill unpause --all")
    shell.run(f"pagemill wait batch:{number}")
    shell.run(for_batch(number, remove))

    assert "there is no batch" in shell.run(f"pagemill batch show {number}", code=66)


def test_the_commands_for_priorities_and_actions_work(shell: Shell) -> None:
    shell.run("pagemill pause --all")
    number = start_batch(shell, code_blocks("docs/batches.md", "When a batch has ended", "sh"))
    ahead, document = code_blocks("docs/batches.md", "Which job is first", "sh").splitlines()

    assert "reprioritised 2 jobs" in shell.run(for_batch(number, ahead))
    shell.run(document)
    assert '"type": "batch.{state}"' in shell.run(f"pagemill batch show {number} --json")
    shell.run(f"pagemill batch cancel {number} --yes; pagemill unpause --all")


def test_the_commands_to_read_again_work(shell: Shell) -> None:
    shell.run(code_blocks("docs/documents.md", "Read documents again", "sh"))
    shell.run("pagemill wait document:1")


def test_the_notification_rules_are_valid(shell: Shell) -> None:
    (shell.directory / "notify.toml").write_text(code_blocks("docs/notify.md", "Rules", "toml"))

    output = shell.run("export WORKER_CONFIG=notify.toml\npagemill notify ls")

    assert re.search(r"^ops +mailto:ops@example.com +0 +job.failed", output, re.MULTILINE)
    assert re.search(r"^owners +owner +0 +batch.done", output, re.MULTILINE)


def test_the_documented_statements_work(shell: Shell) -> None:
    job = shell.run("pagemill enqueue nightly --run-at +1h").splitlines()[0]

    for statement in re.findall(
        r"(\S.*?;).*?$", code_blocks("docs/by-hand.md", "What works", "sql"), re.MULTILINE | re.DOTALL
    ):
        # There may be a seventh batch, which has ended.
        shell.rows(statement.replace("id = 42", f"id = {job}").replace("id = 7;", "id = 0;"))

    assert shell.rows(f"SELECT count(*) FROM worker_job_queue WHERE id = {job}") == "0"
    assert shell.rows("SELECT count(*) FROM worker_job_queue WHERE unique_key = 'nightly'") == "1"


def test_the_crontab_line_puts_the_day_into_the_payload(shell: Shell) -> None:
    shell.cron(code_blocks("docs/by-hand.md", "From cron", "crontab"))

    payload = shell.rows("SELECT payload FROM worker_job_queue ORDER BY id DESC LIMIT 1")
    assert re.fullmatch(r'\{"day":"\d{4}-\d\d-\d\d"\}', payload)


def test_refused_statements_show_the_documented_messages(shell: Shell) -> None:
    job = shell.run("pagemill enqueue nightly --run-at +1h").splitlines()[0]
    shown = re.findall(r"^> (.*)\n(.*)$", code_blocks("docs/by-hand.md", "What is refused", "console"), re.MULTILINE)

    assert len(shown) == 4
    for statement, sentence in shown:
        typed = shlex.quote(re.sub(r"id = \d+", f"id = {job}", statement))
        output = shell.run(f"sqlite3 -cmd '.timeout 5000' pagemill.db {typed} && exit 9 || true")
        assert sentence in output


def test_the_commands_for_tokens_and_links_work(shell: Shell) -> None:
    output = shell.run(code_blocks("docs/http.md", "Who gets in", "sh"))

    assert len(re.findall(r"^pm_\d+_\S+$", output, re.MULTILINE)) == 2
    assert len(re.findall(r"^http://127.0.0.1:8470/session\?link=pm_\d+_\S+$", output, re.MULTILINE)) == 2
    assert re.search(r"^ *\d+ +link +bob +read operate +bob ", output, re.MULTILINE)
    assert "scanner" in shell.run("pagemill token ls")
    assert "grafana" not in shell.run("pagemill token ls")


def test_the_settings_for_other_machines_are_valid(shell: Shell) -> None:
    wanted = (
        code_blocks("docs/http.md", "From other machines", "toml"),
        code_blocks("docs/http.md", "Pages of your own", "toml"),
    )
    (shell.directory / "web.toml").write_text("".join(wanted))

    shown = shell.run("WORKER_CONFIG=web.toml pagemill config show")

    assert re.search(r"^web_urls +https://docs.example.org ", shown, re.MULTILINE)
    assert re.search(r"^web_origins +https://dashboard.example.org ", shown, re.MULTILINE)
    assert re.search(r"^web_listen +/run/pagemill-web/web.sock ", shown, re.MULTILINE)


def test_the_documented_schedules_start(shell: Shell) -> None:
    (shell.directory / "scheduled.toml").write_text(
        code_blocks("docs/schedules.md", "Schedules in the settings file", "toml")
    )
    (line,) = code_blocks("docs/schedules.md", "Once a day, for cron lines of your own", "crontab").splitlines()

    script = code_blocks("docs/schedules.md", "What starts schedules of the settings file", "sh")
    output = shell.run(f"export WORKER_CONFIG=scheduled.toml\n{script}")
    added = [shell.run(line.split(None, 5)[5].replace("/usr/local/bin/", "")) for _ in range(2)]

    assert "nightly" in output
    assert added[0].splitlines()[0] == added[1].splitlines()[0]


def test_a_backup_is_made_beside_a_daemon(shell: Shell) -> None:
    lines = code_blocks("docs/sqlite.md", "Backup", "sh").splitlines()
    # The timer's unit is started in tests/systemd/test_install.py.
    script = "\n".join(line for line in lines if not line.startswith("sudo systemctl"))
    backups = shell.directory / "backups"
    backups.mkdir()
    shell.run(script.replace("/var/backups/pagemill", str(backups)))

    assert shell.run("pagemill documents --database backup.db").count("success") >= 2


def test_the_plain_table_is_migrated(shell: Shell) -> None:
    row = "INSERT INTO worker_job_queue (job_type, platform) VALUES ('scrape_account', 'instagram')"
    shell.run(f"sqlite3 plain.db {shlex.quote(ORIGINAL + row)}")

    script = code_blocks("docs/from-the-plain-table.md", "Move over from the original plain table", "sh")
    shell.run(f"export WORKER_DATABASE=plain.db\n{script}pagemill ls | grep scrape_account")


def test_the_settings_of_a_program_are_valid(shell: Shell) -> None:
    (shell.directory / "own.toml").write_text(code_blocks("docs/programs.md", "Run your own programs as jobs", "toml"))

    assert "download_media" in shell.run("WORKER_CONFIG=own.toml pagemill config show")


def test_a_new_handler_passes_its_test(shell: Shell) -> None:
    new, check = code_blocks("docs/handlers.md", "A handler in Python", "sh").splitlines()

    shell.run(new)
    assert "2 passed" in shell.run(f"python -m {check.partition('#')[0]} -p no:cacheprovider -p no:schemathesis")


def test_the_python_example_of_the_store_prints_its_output(shell: Shell) -> None:
    (shell.directory / "store.py").write_text(code_blocks("docs/handlers.md", "The store, from Python", "python"))

    assert shell.run("python store.py") == code_blocks("docs/handlers.md", "The store, from Python", "console")


def test_the_example_of_an_own_setting_works(shell: Shell) -> None:
    (shell.directory / "own.py").write_text(code_blocks("docs/settings.md", "Settings of your own handler", "python"))

    output = shell.run("python -c 'from own import ScrapeSettings as S; print(S.scrape_pages_max.variable)'")
    assert output.strip() == "WORKER_SCRAPE_PAGES_MAX"
