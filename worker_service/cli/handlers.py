"""`pagemill handlers`: the installed handlers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta

import click

from worker_service.base.errors import Refused
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import Invocation, complete_job_type, verb
from worker_service.runner.messages import HandlerDeclaration, HandlerDescription
from worker_service.services import handlers as operations
from worker_service.services.serialize import as_object

_COLUMNS = ("TYPE", "CLASS", "MEMORY", "CPU TIME", "TIME", "NETWORK", "SANDBOX", "FROM", "STATE")


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill handlers ls
    pagemill handlers ls --json

    List the installed handlers, the limits of each, and why one cannot be used.
    """
    found = operations.installed_handlers(call.settings)
    if call.print_if_json({"items": [_object(one, call) for one in found]}):
        return
    if found:
        output.show_table(_COLUMNS, [_row(one, call) for one in found])
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
    values = _object(operations.get_handler(call.settings, job_type), call)
    if schema and values["payload_schema"] is None:
        raise Refused(f"{job_type} has no JSON Schema: its payload has an unusual type, or the handler is set aside")
    if schema or call.as_json:
        output.show_json(_as_table(values["payload_schema"]) if schema else values)
        return
    written, about = values.pop("payload_schema"), values.pop("about", None)
    output.show_values({**values, **_as_table(about)})
    if written is not None:
        output.show()
        output.show_json_text(json.dumps(written, ensure_ascii=False, indent=2))


def _row(one: HandlerDescription, call: Invocation) -> Sequence[object]:
    state = "ready"
    if reason := one.set_aside or one.facts.missing_text:
        # The last line of a traceback has the reason.
        state = f"{'set aside' if one.set_aside else 'missing'}: {reason.strip().splitlines()[-1].strip()}"
    if one.declared is None:
        return (one.facts.job_type, None, None, None, None, None, None, one.distribution, state)
    limits = one.declared.limits
    memory = None if limits.memory_bytes is None else f"{limits.memory_bytes >> 20:,} MiB"
    return (
        one.facts.job_type, one.facts.job_class, memory, _time(limits.cpu_seconds), _time(limits.wall_seconds),
        "yes" if limits.network else "no", _sandbox(one.declared, call), one.distribution, state,
    )  # fmt: skip


def _object(one: HandlerDescription, call: Invocation) -> dict[str, object]:
    facts = one.facts
    values: dict[str, object] = {
        "type": facts.job_type,
        "distribution": one.distribution,
        "spec": one.spec,
        "set_aside": one.set_aside,
        "missing": facts.missing,
        "missing_remedy": facts.missing_remedy,
    }
    if one.declared is not None:
        values |= {"class": facts.job_class, "at_most_once": facts.at_most_once, "reuse": one.reuse}
        values |= {"sandbox": _sandbox(one.declared, call), "keeps_files": one.declared.has_keep}
        declared = as_object(one.declared)
        values |= declared["limits"]
        told = ("environment", "credentials", "reads", "writes", "about", "offers")
        values |= {name: declared[name] for name in told}
    values["payload_schema"] = None if facts.payload_schema is None else json.loads(facts.payload_schema)
    return values


def _sandbox(declared: HandlerDeclaration, call: Invocation) -> str:
    return call.settings.sandbox if declared.sandbox == "default" else declared.sandbox


def _as_table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else output.length(timedelta(seconds=seconds))


handlers = VerbGroup(
    "handlers",
    "\b\npagemill handlers ls\npagemill handlers show count_words\npagemill handlers new count_words\n\n"
    "List the installed handlers, or create one.",
    ls,
    show,
    imported_later={"new": "new_handler"},
)
