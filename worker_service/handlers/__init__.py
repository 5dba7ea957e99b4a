"""What a handler's author imports, and all that a handler knows of this program."""

from worker_service.clock import parse_duration
from worker_service.handlers.contract import (
    Context,
    Done,
    Family,
    Handler,
    HandlerError,
    Limits,
    Permanent,
    Retryable,
    Snooze,
    Stopped,
)
from worker_service.jobs.model import NewJob

__all__ = [
    "Context",
    "Done",
    "Family",
    "Handler",
    "HandlerError",
    "Limits",
    "NewJob",
    "Permanent",
    "Retryable",
    "Snooze",
    "Stopped",
    "parse_duration",
]
