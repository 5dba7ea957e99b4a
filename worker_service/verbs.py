"""Names that a module with verbs (CLI commands) of another distribution imports from pagemill.

Its entry point, in the group `worker_service.verbs`, has the name that users type: `documents scrape`.
"""

from worker_service.base.errors import BadInput as BadInput
from worker_service.base.humanize import counted as counted
from worker_service.cli import output as output
from worker_service.cli.context import Function as Function
from worker_service.cli.context import Invocation as Invocation
from worker_service.cli.context import confirm as confirm
from worker_service.cli.context import confirmation_options as confirmation_options
from worker_service.cli.context import verb as verb
from worker_service.jobs.job import Enqueued as Enqueued
from worker_service.jobs.job import Job as Job
from worker_service.jobs.job import NewJob as NewJob
from worker_service.jobs.job import Status as Status
from worker_service.jobs.library import Document as Document
from worker_service.jobs.library import DocumentSelector as DocumentSelector
from worker_service.jobs.selector import Selector as Selector
from worker_service.services import documents as documents
from worker_service.services import enqueue as enqueue
from worker_service.services import job_control as job_control
from worker_service.services import jobs as jobs
