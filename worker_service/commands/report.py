"""`pagemill report`: what somebody who is asked for help wants to see, in one file."""

from __future__ import annotations

from pathlib import Path

import click

from worker_service.commands import output
from worker_service.commands.desk import Desk, verb
from worker_service.operations import report as operations


@verb
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("pagemill-report.tar.gz"),
    metavar="FILE",
    help="pagemill-report.tar.gz unless given.",
)
@click.option("--with-names", is_flag=True, help="Leave the names of files and owners as they are.")
@click.option("--force", is_flag=True, help="Replace the file.")
def report(desk: Desk, target: Path, with_names: bool, force: bool) -> None:
    """\b
    pagemill report
    pagemill report -o bundle.tar.gz
    pagemill report -o bundle.tar.gz --with-names --force

    Write what somebody who helps wants to see: versions, settings, what doctor and status say, workers, counts, errors,
    the newest failed jobs and events. Prints what is in it; look into it before you pass it on.

    Payloads, results, logs, the text of documents and secrets are never in it. The names of files and owners are
    replaced, in sentences as far as they are known or look like a name.
    """
    parts = operations.report(desk.settings, lambda: desk.session, target, with_names=with_names, is_forced=force)
    if desk.as_json:
        items = [{"name": part.name, "bytes": len(part.content), "about": part.about} for part in parts]
        output.show_json({"report": str(target), "with_names": with_names, "items": items})
        return
    output.show_table(("FILE", "BYTES", "WHAT IT TELLS"), [(one.name, len(one.content), one.about) for one in parts])
    names = "with the names of files and owners" if with_names else "names of files and owners are replaced"
    output.say(f"wrote {target}; {names}")
