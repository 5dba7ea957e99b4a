"""The names that a module with verbs (CLI commands) imports from pagemill. Such modules use no other part of it.

A verb is a function decorated with `verb`. Its entry point is in the group `worker_service.verbs` and has the name that
users type: `crawl`, or `documents adopt` for a subcommand. Its module is imported when it is called.
"""

from worker_service.base.clock import parse_length
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.base.path_text import legible, path_of, written
from worker_service.cli import output
from worker_service.cli.batches import say_of_batch, say_what_is_replaced
from worker_service.cli.context import (
    Desk,
    Function,
    completes_directory,
    confirm,
    confirming,
    leading,
    read_stdin,
    verb,
)
from worker_service.cli.documents import choosing, show_documents
from worker_service.cli.progress import await_batches, await_reading, telling_that_jobs_go_on
from worker_service.jobs.batches import BatchAdded, InBatch
from worker_service.jobs.documents import Decision, IndexStatus
from worker_service.jobs.job import Enqueued, Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import batches, documents, enqueue, job_control, jobs
from worker_service.services.parse import read_action
from worker_service.services.wait import AwaitedDocument, wait_for_jobs

__all__ = [
    "AwaitedDocument",
    "BadInput",
    "BatchAdded",
    "Decision",
    "Desk",
    "Document",
    "DocumentSelector",
    "Enqueued",
    "Function",
    "InBatch",
    "IndexStatus",
    "Job",
    "Selector",
    "Status",
    "await_batches",
    "await_reading",
    "batches",
    "choosing",
    "completes_directory",
    "confirm",
    "confirming",
    "counted",
    "documents",
    "enqueue",
    "job_control",
    "jobs",
    "leading",
    "legible",
    "output",
    "parse_length",
    "path_of",
    "read_action",
    "read_stdin",
    "say_of_batch",
    "say_what_is_replaced",
    "show_documents",
    "telling_that_jobs_go_on",
    "verb",
    "wait_for_jobs",
    "written",
]
