"""All modules of pages, each of which ends with its routes."""

from worker_service.web.pages import (
    activity,
    batches,
    documents,
    errors,
    home,
    jobs,
    keywords,
    schedules,
    uploads,
    workers,
)

MODULES = (home, documents, uploads, batches, jobs, errors, workers, schedules, keywords, activity)
