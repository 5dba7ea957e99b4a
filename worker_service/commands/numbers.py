"""`pagemill stats` and `errors`: the queue in numbers."""

from __future__ import annotations

import click

from worker_service.commands import output
from worker_service.commands.desk import Desk, verb
from worker_service.operations import overview
from worker_service.operations.objects import as_object


@verb
def stats(desk: Desk) -> None:
    """\b
    pagemill stats
    pagemill stats --json

    How many jobs there are, by type and status. HELD are pending jobs that wait for a time, a job or a key. Below them,
    pending jobs by platform, and what each owner keeps in the workspace; a file that two share counts for both, and
    once for all.
    """
    found = overview.numbers(desk.session)
    types, platforms, owners = found.types, found.pending_by_platform, found.owners
    if desk.as_json:
        output.show_json(
            {
                "items": [as_object(counts) for counts in types],
                "pending_by_platform": [as_object(one) for one in platforms],
                "by_owner": [as_object(one) for one in owners],
                "files": found.files,
                "size": found.size,
            }
        )
        return
    rows: list[tuple[object, ...]] = [
        (t.job_type, t.pending, t.held, t.running, t.completed, t.failed, t.cancelled) for t in types
    ]
    if len(rows) > 1:
        rows.append(("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))))
    output.show_table(("TYPE", "PENDING", "HELD", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"), rows)
    if platforms:
        output.show()
        output.show_table(("PLATFORM", "PENDING"), [(one.platform, one.count) for one in platforms])
    if owners:
        kept = [(one.owner, one.documents, one.pages, one.files, output.size(one.size)) for one in owners]
        if len(kept) > 1:
            read = (sum(one.documents for one in owners), sum(one.pages for one in owners))
            kept.append(("all", *read, found.files, output.size(found.size)))
        output.show()
        output.show_table(("OWNER", "DOCUMENTS", "PAGES", "FILES", "SIZE"), kept)


@verb
@click.option("--since", default="1d", metavar="TIME", help="1d (ago) unless given; or a time.")
def errors(desk: Desk, since: str) -> None:
    """\b
    pagemill errors
    pagemill errors --since 2h
    pagemill retry --error HTTP_503 --since 1d

    What failed lately: each error code, how often, and the newest job that has it.
    """
    found = overview.errors(desk.session, since=since)
    if desk.as_json:
        output.show_json({"items": [as_object(error) for error in found]})
    elif found:
        rows = [(e.code, e.job_type, e.jobs, e.newest_job_id, e.newest_name, e.newest_message) for e in found]
        output.show_table(("ERROR", "TYPE", "JOBS", "NEWEST", "NAME", "MESSAGE"), rows, whole=("ERROR",))
        output.say("to see one: pagemill show ID; to run them again: pagemill retry --error CODE")
    else:
        output.say(f"nothing failed since {since}")
