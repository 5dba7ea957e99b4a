"""`pagemill crawl`, the earlier form of `pagemill add FOLDER`."""

from __future__ import annotations

import click

from job_handlers.crawl.requests import CrawlOptions, crawl_job, for_batch
from job_handlers.reading.find_files import LeftOut
from worker_service.base.path_text import legible
from worker_service.cli import output
from worker_service.cli.add import watch_folders
from worker_service.cli.context import Invocation, completes_directory, verb
from worker_service.cli.estimate import estimate_folder, show_estimate
from worker_service.cli.submit import (
    Submission,
    credential_option,
    folder_options,
    read_options,
    submission_options,
    submit,
    tag_option,
)


@verb
@click.argument("folder", shell_complete=completes_directory)
@submission_options("owner", "batch", "priority", "dry_run")
@folder_options("--name")
@credential_option
@tag_option
@read_options(CrawlOptions)
@click.option("--reconcile", is_flag=True, help="Rescan the whole folder and detect deleted files.")
@click.option("--watch", metavar="LENGTH", help="As `pagemill add --watch --every LENGTH`.")
def crawl(call: Invocation, folder: str, watch: str | None, *, submission: Submission, options: CrawlOptions) -> int:
    """\b
    pagemill add https://drive.google.com/drive/folders/1a2B3c… --owner alice
    pagemill add /srv/scans --watch

    The earlier form of `pagemill add FOLDER`, for scripts: a folder that is being crawled is not crawled twice, and the
    daemon lists directories, too. Prints the id of a job.
    """
    if watch is not None:
        return watch_folders(call, [folder], watch, submission, options)
    asked = crawl_job(folder, options, owner=submission.owner, is_dry_run=submission.dry_run)
    if submission.dry_run:
        show_estimate(call, estimate_folder(call, asked), LeftOut())
        return 0
    [enqueued], added = submit(
        call,
        [asked if submission.batch is None else for_batch(asked)],
        submission,
        name=legible(folder),
        asked={"sources": [legible(folder)], **options.reading_settings(), **options.actions_and_tags(standing=True)},
    )
    of_batch = {} if added is None else {"batch": added.batch.id}
    if not call.printed_json({"id": enqueued.job_id, "existing": enqueued.existing, **of_batch}):
        output.show(str(enqueued.job_id))
    if enqueued.existing:
        output.say(
            f"job {enqueued.job_id} already crawls this folder, with its own options; to use the ones given now: "
            f"pagemill cancel {enqueued.job_id}, then repeat this command"
        )
    return 0
