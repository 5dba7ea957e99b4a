"""`pagemill init` and `pagemill db`: the database as a whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from worker_service.base.errors import ProgramAbsent, StoreAbsent
from worker_service.base.humanize import counted
from worker_service.cli import group, output
from worker_service.cli.context import Invocation, confirm, confirming, say_that_it_waits, verb
from worker_service.services import database as operations

if TYPE_CHECKING:
    from worker_service.services.restore import RestorePlan


@verb
def init(call: Invocation) -> None:
    """\b
    pagemill init
    pagemill init --database /var/lib/pagemill/pagemill.db

    Make the database. Doing it again changes nothing.
    """
    database = call.settings.database
    is_new = operations.initialise(call.settings, on_long_wait=say_that_it_waits)
    if call.printed_json({"database": database, "created": is_new}):
        return
    output.show(f"made {database}" if is_new else f"{database} is there already, and sound")
    if is_new:
        output.say("next: pagemill ingest report.pdf, or pagemill enqueue --help")


@verb
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def migrate(call: Invocation, dry_run: bool) -> None:
    """\b
    pagemill db backup before.db && pagemill db migrate --dry-run
    pagemill db migrate

    Bring the database to this version's tables. A plain table of the original proposal is adopted with all its rows.
    """
    steps = operations.migrate(call.settings, dry_run=dry_run, on_long_wait=say_that_it_waits)
    if call.printed_json({"dry_run": dry_run, "items": steps}):
        return
    for step in steps:
        output.show(step)
    if not steps:
        output.say("the database is up to date")
    elif dry_run:
        output.say("that is what would be done; nothing was changed")


@verb
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--keep", type=click.IntRange(1), metavar="N", help="In a directory: leave so many copies, this one included."
)
def backup(call: Invocation, target: Path, keep: int | None) -> None:
    """\b
    pagemill db backup /var/backups/pagemill.db
    pagemill db backup /var/backups/pagemill/ --keep 14

    Write a sound copy of the database while others go on. A file that is there already is never overwritten; in a
    directory the copy is named by the time. `systemctl enable --now pagemill-backup.timer` makes one each night.

    Copy the workspace after it: each file that the copy names is then there.
    """
    made = operations.backup(call.settings, target, keep=keep, on_long_wait=say_that_it_waits)
    if call.printed_json({"backup": made.path, "bytes": made.size, "removed": made.removed}):
        return
    output.show(f"wrote {made.path}, {counted(made.size, 'byte')}")
    if made.removed:
        output.say(f"removed {counted(len(made.removed), 'older one')}")


@verb
@click.argument("file", type=click.Path(path_type=Path))
@confirming
def restore(call: Invocation, file: Path, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill db restore /var/backups/pagemill/pagemill-2026-11-19.db --dry-run
    pagemill db restore /var/backups/pagemill/pagemill-2026-11-19.db

    Put a backup in the place of the database, here or on another machine. The database that was there is kept beside
    it, under another name.

    The backup is checked first, and brought to this version's tables. What was running in it goes back into the queue;
    late results of before are refused. It is refused while a daemon runs, or anybody else has the database open.
    """
    from worker_service.services import restore as operations

    plan = operations.plan_restore(call.settings, file)
    if dry_run:
        if not call.printed_json({"dry_run": True, "jobs": plan.jobs, "running": plan.running, "backup": plan.backup}):
            for sentence in _sentences(plan):
                output.show(sentence)
            output.say("that is what would be done; nothing was changed")
        return 0
    confirm(f"Put {file} in the place of {plan.database}?", yes=yes, sample=_sentences(plan))
    done = operations.restore(call.settings, plan)
    if call.printed_json(done):
        return 0
    for step in done.restored.steps:
        output.show(step)
    output.show(f"{plan.database} is {file} of {output.seconds(plan.backup.newest_at)}")
    if done.restored.requeued:
        output.show(f"{output.jobs(done.restored.requeued)} that were running went back into the queue")
    if done.restored.replaced is not None:
        output.show(f"what was there before is kept at {done.restored.replaced}")
    if done.missing:
        number = len(done.missing)
        output.say(
            f"{counted(number, 'file')} that it names {'is' if number == 1 else 'are'} not in "
            f"{call.settings.workspace}, such as {done.missing[0]}: before the daemon starts, bring the copy of the "
            "workspace there"
        )
    output.say("next: pagemill doctor, then systemctl start pagemill pagemill-commands")
    return 1 if done.missing else 0


@verb
def check(call: Invocation) -> int:
    """\b
    pagemill db check
    pagemill db check --json

    Look for what is wrong with the database and its surroundings. Exit code 1 if something is.
    """
    checks = operations.check_database(call.session)
    if not call.printed_json({"items": checks}):
        output.show_table(
            ("CHECK", "IS", "DETAIL"), [(c.name, "good" if c.is_good else "wrong", c.detail) for c in checks]
        )
        for wrong in checks:
            if not wrong.is_good and wrong.fix:
                output.say(f"{wrong.name}: {wrong.fix}")
    return 0 if all(check.is_good for check in checks) else 1


@verb
def rebuild_search(call: Invocation) -> None:
    """\b
    pagemill db rebuild-search

    Build the search index again from the text of the pages, when `pagemill db check` says that it is damaged. The
    daemon goes on meanwhile; until it is done, a search finds only some of the pages.
    """
    pages = operations.rebuild_search(call.session)
    if not call.printed_json({"pages": pages}):
        output.show(f"the search index has {counted(pages, 'page')}")


@verb
@click.option("--write", is_flag=True, help="Allow changes; else the database is opened read-only.")
@click.argument("statements", metavar="[SQL]...", nargs=-1)
def shell(call: Invocation, write: bool, statements: tuple[str, ...]) -> None:
    """\b
    pagemill db shell
    pagemill db shell "SELECT * FROM v_queue"
    pagemill db shell --write "UPDATE worker_job_queue SET priority = 1 WHERE id = 42"

    Open the database with the sqlite3 program, read-only unless --write is given. It waits up to 5 seconds for others.
    """
    database = call.settings.database
    if not database.exists():
        raise StoreAbsent(f"there is no database at {database}", "run: pagemill init")
    words = ["sqlite3", *([] if write else ["-readonly"]), "-cmd", ".timeout 5000"]
    if call.as_json:
        words.append("-json")
    elif sys.stdout.isatty():
        words.append("-box")
    try:
        os.execvp(words[0], [*words, str(database), *statements])
    except FileNotFoundError as error:
        raise ProgramAbsent("the sqlite3 program is not installed", "apt install sqlite3") from error


db = group(
    "db",
    "\b\npagemill db backup /var/backups/pagemill.db\npagemill db migrate --dry-run\npagemill db check\n"
    'pagemill db shell "SELECT * FROM v_jobs LIMIT 5"\n\nMigrate, back up, check or open the database.',
    *(migrate, backup, restore, check, rebuild_search, shell),
)


def _sentences(plan: RestorePlan) -> list[str]:
    backup = plan.backup
    newest = f", the newest thing in it is of {output.seconds(backup.newest_at)}" if backup.newest_at else ""
    return [
        f"the backup is sound: {output.jobs(plan.jobs)}, {plan.running} running{newest}",
        f"it replaces {plan.database}, which is kept beside it" if plan.replaces else f"it becomes {plan.database}",
        "jobs that have ended since then run again; those that came in since then are not in it",
    ]
