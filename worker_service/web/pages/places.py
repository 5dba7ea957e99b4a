"""All modules of pages, each of which ends with its routes."""

from worker_service.web.pages import activity, errors, home, jobs, workers

MODULES = (home, jobs, errors, workers, activity)
