"""What a handler's author imports, and all that a handler knows of this program."""

from worker_service.clock import parse_duration
from worker_service.config_values import Kind, Setting, one_of, parse_words, whole_number
from worker_service.errors import BadInput, ConfigError
from worker_service.filenames import FILE_URL, legible, path_of, written
from worker_service.handlers.contract import (
    Choices,
    Context,
    Done,
    Family,
    File,
    Handler,
    HandlerError,
    Lacking,
    Limits,
    Message,
    Permanent,
    Rest,
    Retryable,
    SameFile,
    Snooze,
    Stopped,
)
from worker_service.handlers.registry import find
from worker_service.jobs.digest import canonical, digest
from worker_service.jobs.documents import (
    CrawlItem,
    CrawlItems,
    CrawlPage,
    DocumentFacts,
    DocumentPages,
    DocumentRequest,
    IsCurrent,
    KnownDocument,
    KnownPages,
    PageResult,
    PublishedFile,
    SameContent,
)
from worker_service.jobs.model import WATCHING, NewJob
from worker_service.jobs.names import safe_name
from worker_service.plurals import counted
from worker_service.programs import Program, Unfit, read_program

__all__ = [
    "FILE_URL",
    "WATCHING",
    "BadInput",
    "Choices",
    "ConfigError",
    "Context",
    "CrawlItem",
    "CrawlItems",
    "CrawlPage",
    "DocumentFacts",
    "DocumentPages",
    "DocumentRequest",
    "Done",
    "Family",
    "File",
    "Handler",
    "HandlerError",
    "IsCurrent",
    "Kind",
    "KnownDocument",
    "KnownPages",
    "Lacking",
    "Limits",
    "Message",
    "NewJob",
    "PageResult",
    "Permanent",
    "Program",
    "PublishedFile",
    "Rest",
    "Retryable",
    "SameContent",
    "SameFile",
    "Setting",
    "Snooze",
    "Stopped",
    "Unfit",
    "canonical",
    "counted",
    "digest",
    "find",
    "legible",
    "one_of",
    "parse_duration",
    "parse_words",
    "path_of",
    "read_program",
    "safe_name",
    "whole_number",
    "written",
]
