"""`pagemill handlers`: list and show the installed handlers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from worker_service.base.errors import PagemillError, Refused
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, complete_job_type, verb
from worker_service.runner.messages import HandlerDeclaration, HandlerDescription
from worker_service.runner.without_daemon import describe
from worker_service.services.serialize import as_object
from worker_service.settings.config import Settings

_COLUMNS = ("TYPE", "CLASS", "MEMORY", "CPU TIME", "TIME", "NETWORK", "SANDBOX", "FROM", "STATE")
_DECLARED_FIELDS_SHOWN = ("environment", "credentials", "reads", "writes", "about", "offers")


class HandlerAbsent(PagemillError, code="handler_absent", exit_code=69): ...


def installed_handlers(settings: Settings) -> list[HandlerDescription]:
    """Import all handlers, each in a child process."""
    handlers = describe(settings.commands, settings.sandbox, settings.handlers_dir)
    return sorted(handlers, key=lambda handler: handler.facts.job_type)


def find_handler(job_type: str, handlers: Sequence[HandlerDescription]) -> HandlerDescription:
    for handler in handlers:
        if handler.facts.job_type == job_type:
            return handler
    installed_types = ", ".join(sorted(handler.facts.job_type for handler in handlers)) or "none"
    raise HandlerAbsent(f"there is no handler for {job_type!r}; those that are installed: {installed_types}")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill handlers ls
    pagemill handlers ls --json

    List the installed handlers, the limits of each, and why one cannot be used.
    """
    handlers = installed_handlers(call.settings)
    if call.print_if_json({"items": [_as_object(handler, call) for handler in handlers]}):
        return
    if handlers:
        output.show_table(_COLUMNS, [_cells_of(handler, call) for handler in handlers])
    else:
        output.note("no handler is installed; to create one: pagemill handlers new NAME")


@verb
@click.argument("job_type", metavar="TYPE", shell_complete=complete_job_type)
@click.option("--schema", is_flag=True, help="Print only the JSON Schema of the payload.")
def show(call: Invocation, job_type: str, schema: bool) -> None:
    """\b
    pagemill handlers show ocr_pages
    pagemill handlers show ocr_pages --schema > ocr_pages.schema.json

    Show everything that a handler declares, and the JSON Schema of its payload.
    """
    values = _as_object(find_handler(job_type, installed_handlers(call.settings)), call)
    if schema:
        if values["payload_schema"] is None:
            raise Refused(
                f"{job_type} has no JSON Schema: its payload has an unusual type, or the handler is set aside"
            )
        output.show_json(values["payload_schema"])
        return
    if call.print_if_json(values):
        return
    payload_schema, facts = values.pop("payload_schema"), values.pop("about", None) or {}
    output.show_values({**values, **facts})
    if payload_schema is not None:
        output.show()
        output.show_json_text(json.dumps(payload_schema, ensure_ascii=False, indent=2))


def _cells_of(handler: HandlerDescription, call: Invocation) -> Sequence[object]:
    facts, state = handler.facts, _state_of(handler)
    if handler.declared is None:
        return (facts.job_type, None, None, None, None, None, None, handler.distribution, state)
    limits = handler.declared.limits
    memory = None if limits.memory_bytes is None else f"{limits.memory_bytes >> 20:,} MiB"
    network, sandbox = "yes" if limits.network else "no", _sandbox_of(handler.declared, call)
    return (
        facts.job_type, facts.job_class, memory, _in_words(limits.cpu_seconds), _in_words(limits.wall_seconds), network,
        sandbox, handler.distribution, state,
    )  # fmt: skip


def _state_of(handler: HandlerDescription) -> str:
    reason = handler.set_aside or handler.facts.missing_text
    if not reason:
        return "ready"
    # The last line of a traceback has the reason.
    last_line = reason.strip().splitlines()[-1].strip()
    return f"set aside: {last_line}" if handler.set_aside else f"missing: {last_line}"


def _as_object(handler: HandlerDescription, call: Invocation) -> dict[str, Any]:
    facts = handler.facts
    values: dict[str, Any] = {
        "type": facts.job_type,
        "distribution": handler.distribution,
        "spec": handler.spec,
        "set_aside": handler.set_aside,
        "missing": facts.missing,
        "missing_remedy": facts.missing_remedy,
    }
    if handler.declared is not None:
        declared = as_object(handler.declared)
        values |= {"class": facts.job_class, "at_most_once": facts.at_most_once, "reuse": handler.reuse}
        values |= {"sandbox": _sandbox_of(handler.declared, call), "keeps_files": handler.declared.has_keep}
        values |= declared["limits"]
        values |= {name: declared[name] for name in _DECLARED_FIELDS_SHOWN}
    values["payload_schema"] = None if facts.payload_schema is None else json.loads(facts.payload_schema)
    return values


def _sandbox_of(declared: HandlerDeclaration, call: Invocation) -> str:
    return call.settings.sandbox if declared.sandbox == "default" else declared.sandbox


def _in_words(seconds: int | None) -> str | None:
    return None if seconds is None else output.format_length(timedelta(seconds=seconds))


handlers = VerbGroup(
    "handlers",
    "\b\npagemill handlers ls\npagemill handlers show count_words\npagemill handlers new count_words\n\n"
    "List the installed handlers, or create one.",
    ls,
    show,
    module_by_verb={"new": "new_handler"},
)
