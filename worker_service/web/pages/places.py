"""All modules of pages, each of which ends with its routes."""

from worker_service.web.pages import activity, documents, errors, home, jobs, workers

MODULES = (home, documents, jobs, errors, workers, activity)
