"""Names that a module with verbs (CLI commands) of another distribution imports from pagemill.

Its entry point, in the group `worker_service.verbs`, has the name that users type: `documents scrape`.
"""

from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Function, Invocation, confirm, confirmation_options, verb
from worker_service.jobs.job import Enqueued, Job, NewJob, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import documents, enqueue, job_control, jobs

__all__ = [
    "BadInput",
    "Document",
    "DocumentSelector",
    "Enqueued",
    "Function",
    "Invocation",
    "Job",
    "NewJob",
    "Selector",
    "Status",
    "confirm",
    "confirmation_options",
    "counted",
    "documents",
    "enqueue",
    "job_control",
    "jobs",
    "output",
    "verb",
]
