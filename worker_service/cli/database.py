"""`pagemill init` and `pagemill db`: create, migrate, back up, restore, check and open the database."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from worker_service.base.errors import BadInput, ProgramAbsent, StoreAbsent
from worker_service.base.humanize import counted
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, confirm, confirmation_options, dry_run_option, note_lock_wait, verb
from worker_service.services import database_maintenance as operations


@verb
def init(call: Invocation) -> None:
    """\b
    pagemill init
    pagemill init --database /var/lib/pagemill/pagemill.db

    Create the database. An existing database is not changed.
    """
    database = call.settings.database
    is_new = operations.initialise(call.settings, on_long_wait=note_lock_wait)
    if call.print_if_json({"database": database, "created": is_new}):
        return
    output.show(f"created {database}" if is_new else f"{database} exists already")
    if is_new:
        output.note("next: pagemill add report.pdf, and pagemill run to read it")


@verb
@dry_run_option
def migrate(call: Invocation, dry_run: bool) -> None:
    """\b
    pagemill db backup before.db && pagemill db migrate --dry-run
    pagemill db migrate

    Update the database to this version's tables. A plain worker_job_queue table is adopted with all its rows.
    """
    steps = operations.migrate(call.settings, dry_run=dry_run, on_long_wait=note_lock_wait)
    if call.print_if_json({"dry_run": dry_run, "items": steps}):
        return
    for step in steps:
        output.show(step)
    if not steps:
        output.note("the database is up to date")
    elif dry_run:
        output.note("nothing was changed (--dry-run)")


@verb
@click.argument("target", type=click.Path())
@click.option(
    "--keep", type=click.IntRange(1), metavar="N", help="In a directory: keep this many copies, and delete older ones."
)
def backup(call: Invocation, target: str, keep: int | None) -> None:
    """\b
    pagemill db backup /var/backups/pagemill.db
    pagemill db backup /var/backups/pagemill/ --keep 14

    Write a consistent copy of the database while the daemon runs. An existing file is never overwritten; in a
    directory, the copy is named by the time. For a nightly backup: systemctl enable --now pagemill-backup.timer

    Copy the workspace afterwards, so that it has every file that the copy names.
    """
    if target.endswith("/") and not Path(target).is_dir():
        raise BadInput(f"there is no directory {target}", "create it first, or leave out the slash to write a file")
    copy = operations.backup(call.settings, Path(target), keep=keep, on_long_wait=note_lock_wait)
    if call.print_if_json({"backup": copy.path, "bytes": copy.size, "removed": copy.removed}):
        return
    output.show(f"wrote {copy.path}, {counted(copy.size, 'byte')}")
    if copy.removed:
        output.note(f"deleted {counted(len(copy.removed), 'older copy', 'older copies')}")


@verb
@click.argument("file", type=click.Path(path_type=Path))
@confirmation_options
def restore(call: Invocation, file: Path, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill db restore /var/backups/pagemill/pagemill-2026-11-19.db --dry-run
    pagemill db restore /var/backups/pagemill/pagemill-2026-11-19.db

    Replace the database with a backup, on this or another machine. The old database is kept under another name.

    The backup is checked first, and updated to this version's tables. Jobs that were running in it return to the queue;
    late results of earlier attempts are refused. Stop the daemon and close all other connections first.
    """
    plan = operations.plan_restore(call.settings, file)
    if dry_run:
        answer = {"dry_run": True, "jobs": plan.jobs, "running": plan.running, "backup": plan.backup}
        if not call.print_if_json(answer):
            for sentence in _describe_plan(plan):
                output.show(sentence)
            output.note("nothing was changed (--dry-run)")
        return 0
    confirm(f"Replace {plan.database} with {file}?", yes=yes, sample=_describe_plan(plan))
    result = operations.restore(call.settings, plan)
    if call.print_if_json(result):
        return 0
    for step in result.restored.steps:
        output.show(step)
    output.show(f"restored {plan.database} from {file} of {output.whole_seconds(plan.backup.newest_at)}")
    if result.restored.requeued:
        output.show(f"{counted(result.restored.requeued, 'job')} that were running returned to the queue")
    if result.restored.replaced is not None:
        output.show(f"the old database is kept at {result.restored.replaced}")
    if result.missing:
        are_missing = "is missing or changed" if len(result.missing) == 1 else "are missing or changed"
        output.note(
            f"{counted(len(result.missing), 'file')} that it names {are_missing} in {call.settings.workspace}, such as "
            f"{result.missing[0]}: restore the copy of the workspace before you start the daemon"
        )
    output.note(f"next: pagemill doctor, then {call.settings.start_command}")
    return 1 if result.missing else 0


@verb
def check(call: Invocation) -> int:
    """\b
    pagemill db check
    pagemill db check --json

    Check the database and its environment. Exit code 1 if a check fails.
    """
    checks = operations.check_database(call.session)
    if not call.print_if_json({"items": checks}):
        rows = [(check.name, "good" if check.is_good else "wrong", check.detail) for check in checks]
        output.show_table(("CHECK", "RESULT", "DETAIL"), rows)
        for check in checks:
            if not check.is_good and check.fix:
                output.note(f"{check.name}: {check.fix}")
    return 0 if all(check.is_good for check in checks) else 1


@verb
def rebuild_search(call: Invocation) -> None:
    """\b
    pagemill db rebuild-search

    Rebuild the search index from the text of the pages, if `pagemill db check` reports that it is damaged. The daemon
    may run meanwhile; until the end, a search finds only some of the pages.
    """
    pages = operations.rebuild_search(call.session)
    call.show_result({"pages": pages}, f"the search index has {counted(pages, 'page')}")


@verb
@click.option("--write", is_flag=True, help="Allow changes. Default: read-only.")
@click.argument("statements", metavar="[SQL]...", nargs=-1)
def shell(call: Invocation, write: bool, statements: tuple[str, ...]) -> None:
    """\b
    pagemill db shell
    pagemill db shell "SELECT * FROM v_queue"
    pagemill db shell --write "UPDATE worker_job_queue SET priority = 1 WHERE id = 42"

    Open the database with the sqlite3 program, read-only by default. A statement waits up to 5 seconds for a lock.
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


db = VerbGroup(
    "db",
    "\b\npagemill db backup /var/backups/pagemill.db\npagemill db migrate --dry-run\npagemill db check\n"
    'pagemill db shell "SELECT * FROM v_jobs LIMIT 5"\n\nMigrate, back up, restore, check or open the database.',
    *(migrate, backup, restore, check, rebuild_search, shell),
)


def _describe_plan(plan: operations.RestorePlan) -> list[str]:
    newest_at = plan.backup.newest_at
    last_change = f"; last change {output.whole_seconds(newest_at)}" if newest_at else ""
    effect = f"it becomes {plan.database}"
    if plan.replaces:
        effect = f"it replaces {plan.database}, which is kept under another name"
    return [
        f"the backup is intact: {counted(plan.jobs, 'job')}, {plan.running} running{last_change}",
        effect,
        "jobs that ended after the backup run again; jobs that were added after it are lost",
    ]
