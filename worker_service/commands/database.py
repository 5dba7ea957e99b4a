"""`pagemill init` and `pagemill db`: the database as a whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from worker_service.commands import group, output
from worker_service.commands.desk import Desk, say_that_it_waits, verb
from worker_service.errors import ProgramAbsent, StoreAbsent
from worker_service.operations import database as operations
from worker_service.plurals import counted


@verb
def init(desk: Desk) -> None:
    """\b
    pagemill init
    pagemill init --database /var/lib/pagemill/pagemill.db

    Make the database. Doing it again changes nothing.
    """
    database = desk.settings.database
    is_new = operations.initialise(desk.settings, on_long_wait=say_that_it_waits)
    if desk.answered({"database": database, "created": is_new}):
        return
    output.show(f"made {database}" if is_new else f"{database} is there already, and sound")
    if is_new:
        output.say("next: pagemill ingest report.pdf, or pagemill enqueue --help")


@verb
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def migrate(desk: Desk, dry_run: bool) -> None:
    """\b
    pagemill db backup before.db && pagemill db migrate --dry-run
    pagemill db migrate

    Bring the database to this version's tables. A plain table of the original proposal is adopted with all its rows.
    """
    steps = operations.migrate(desk.settings, dry_run=dry_run, on_long_wait=say_that_it_waits)
    if desk.answered({"dry_run": dry_run, "items": steps}):
        return
    for step in steps:
        output.show(step)
    if not steps:
        output.say("the database is up to date")
    elif dry_run:
        output.say("that is what would be done; nothing was changed")


@verb
@click.argument("target", type=click.Path(path_type=Path))
def backup(desk: Desk, target: Path) -> None:
    """\b
    pagemill db backup /var/backups/pagemill.db
    pagemill db backup "pagemill-$(date +%F).db"

    Write a sound copy of the database while others go on. A file that is there already is never overwritten.
    """
    size = operations.backup(desk.settings, target, on_long_wait=say_that_it_waits)
    if not desk.answered({"backup": target, "bytes": size}):
        output.show(f"wrote {target}, {counted(size, 'byte')}")


@verb
def check(desk: Desk) -> int:
    """\b
    pagemill db check
    pagemill db check --json

    Look for what is wrong with the database and its surroundings. Exit code 1 if something is.
    """
    checks = operations.check(desk.session)
    if not desk.answered({"items": checks}):
        output.show_table(
            ("CHECK", "IS", "DETAIL"), [(c.name, "good" if c.is_good else "wrong", c.detail) for c in checks]
        )
        for wrong in checks:
            if not wrong.is_good and wrong.fix:
                output.say(f"{wrong.name}: {wrong.fix}")
    return 0 if all(check.is_good for check in checks) else 1


@verb
@click.option("--write", is_flag=True, help="Allow changes; else the database is opened read-only.")
@click.argument("statements", metavar="[SQL]...", nargs=-1)
def shell(desk: Desk, write: bool, statements: tuple[str, ...]) -> None:
    """\b
    pagemill db shell
    pagemill db shell "SELECT * FROM v_queue"
    pagemill db shell --write "UPDATE worker_job_queue SET priority = 1 WHERE id = 42"

    Open the database with the sqlite3 program, read-only unless --write is given. It waits up to 5 seconds for others.
    """
    database = desk.settings.database
    if not database.exists():
        raise StoreAbsent(f"there is no database at {database}: run: pagemill init")
    words = ["sqlite3", *([] if write else ["-readonly"]), "-cmd", ".timeout 5000"]
    if desk.as_json:
        words.append("-json")
    elif sys.stdout.isatty():
        words.append("-box")
    try:
        os.execvp(words[0], [*words, str(database), *statements])
    except FileNotFoundError as error:
        raise ProgramAbsent("the sqlite3 program is not installed: apt install sqlite3") from error


db = group(
    "db",
    "\b\npagemill db backup /var/backups/pagemill.db\npagemill db migrate --dry-run\npagemill db check\n"
    'pagemill db shell "SELECT * FROM v_jobs LIMIT 5"\n\nMigrate, back up, check or open the database.',
    *(migrate, backup, check, shell),
)
