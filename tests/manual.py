"""The generated pages of docs/: `./run docs` writes them, and tests/test_docs.py compares.

Each begins with hand-written text, up to the mark.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import msgspec
from click.testing import CliRunner

from worker_service.cli import pagemill
from worker_service.cli.help import SIMILAR_COMMANDS
from worker_service.handlers import Handler
from worker_service.web.api import openapi
from worker_service.web.api.endpoint import Endpoint
from worker_service.web.api.openapi import ENDPOINTS

DOCS = Path(__file__).resolve().parent.parent / "docs"
OPENAPI = DOCS.parent / "worker_service/web/api/openapi.json"
MARK = "<!-- from here on: ./run docs -->\n"
_FOR_DEVELOPERS = "Elsewhere: "
_COMMON_OPTIONS = ("--json", "--database", "--help")
_SELECTORS = {
    "Takes ids, or [selectors](#selectors).": {
        *"--status --type --platform --account --owner --batch --error --since --older-than --match --name".split()
    },
    "Takes documents, or [selectors of documents](#selectors-of-documents).": {
        *"--status --owner --name --batch --tag --kind --since --until".split()
    },
}


def pages() -> Mapping[str, Callable[[], str]]:
    return {
        "api.md": api_page,
        "commands.md": commands_page,
        "job-types.md": job_types_page,
        "settings.md": settings_page,
    }


def generated_page(name: str) -> str:
    introduction = (DOCS / name).read_text("utf-8").partition(MARK)[0]
    return f"{introduction}{MARK}\n{pages()[name]().strip()}\n"


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command as it is typed, and each group."""
    yield from _below(pagemill, "pagemill", click.Context(pagemill))


def _below(group: click.Group, line: str, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{line} {name}", command
        if isinstance(command, click.Group):
            yield from _below(command, f"{line} {name}", context)


def commands_page() -> str:
    # `pagemill documents` and `pagemill documents ls` are told of once.
    by_help: dict[str | None, tuple[str, click.Command]] = {}
    for line, command in commands():
        by_help.setdefault(command.help, (line, command))
    sections = [_describe_command(line, command) for line, command in by_help.values()]
    return "\n\n".join([_similar_commands(), *sections])


def _similar_commands() -> str:
    rows = [
        f"| {question if at == 0 else ''} | `{command}` | {what} |"
        for question, lines in SIMILAR_COMMANDS.items()
        for at, (command, what) in enumerate(lines)
    ]
    return "\n".join(["## Similar commands", "", "| | command | |", "|---|---|---|", *rows])


def _describe_command(line: str, command: click.Command) -> str:
    examples, *paragraphs = inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n")
    parts = [f"{'#' * len(line.split())} {line}", f"```sh\n{examples}\n```"]
    parts += [" ".join(paragraph.split()) for paragraph in paragraphs]
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and option.opts[-1] not in _COMMON_OPTIONS
    ]
    for sentence, selectors in _SELECTORS.items():
        if {option.opts[0] for option in options} >= selectors:
            parts.append(sentence)
            options = [option for option in options if option.opts[0] not in selectors]
    rows = [_describe_option(option) for option in options]
    if rows:
        parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _describe_option(option: click.Option) -> str:
    metavar = "" if option.is_flag else f" {_metavar(option)}"
    names = ", ".join(sorted(option.opts, key=len, reverse=True))
    return f"| `{names}{metavar}`".replace("|", "\\|").replace("\\|", "|", 1) + f" | {_sentence(option.help or '')} |"


def _metavar(option: click.Option) -> str:
    if option.metavar is not None:
        return option.metavar
    choices = getattr(option.type, "choices", None)
    return "|".join(choices) if choices else str(option.type.name).upper()


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ── Job types ───────────────────────────────────────────────────────────────────────────────────────────────────


def job_types_page() -> str:
    by_function: dict[Any, list[Handler[Any]]] = {}
    for handler in _shipped():
        by_function.setdefault(handler.run, []).append(handler)
    return "\n\n".join(_describe_handler(*several) for several in by_function.values())


def _shipped() -> list[Handler[Any]]:
    points = entry_points(group="worker_service.handlers")
    loaded = [point.load() for point in points if point.value.startswith("job_handlers.")]
    several = [provided if isinstance(provided, tuple) else (provided,) for provided in loaded]
    ours = [handler for handlers in several for handler in handlers if isinstance(handler, Handler)]
    return sorted(ours, key=lambda one: one.job_type)


def _describe_handler(handler: Handler[Any], *aliases: Handler[Any]) -> str:
    module = inspect.getmodule(handler.run)
    assert module is not None
    assert module.__doc__ is not None
    sections = textwrap.dedent(module.__doc__).strip().split("\n\n")
    about = "\n\n".join(part for part in sections if not part.startswith(_FOR_DEVELOPERS))
    limits = handler.limits
    uses = [
        f"takes a slot of class `{handler.job_class}`",
        f"{limits.wall_seconds / 60:g} minutes at most"
        if limits.wall_seconds < 10_000
        else f"{limits.wall_seconds / 3600:g} hours at most",
        "with a network" if limits.network else "without a network",
    ]
    if aliases:
        about += f"\n\nJobs of the earlier name {', '.join(f'`{alias.job_type}`' for alias in aliases)} run as well."
    if handler.credentials:
        uses.append(f"credentials {', '.join(f'`{name}`' for name in handler.credentials)}")
    rows = ["| key | | default | |", "|---|---|---|---|", *_describe_keys(handler.payload)]
    return "\n\n".join([f"## {handler.job_type}", about, f"It {', '.join(uses)}.", "\n".join(rows)])


def _describe_keys(payload: type[Any], prefix: str = "") -> Iterator[str]:
    hints, notes = typing.get_type_hints(payload), _notes(payload)
    for field in msgspec.structs.fields(payload):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _describe_keys(typing.cast("type[Any]", hint), f"{prefix}{field.name}.")
            continue
        needed = field.required
        default = field.default if field.default is not msgspec.NODEFAULT else None
        shown_default = "needed" if needed else "" if default in (None, "", (), {}) else f"`{str(default).lower()}`"
        yield f"| `{prefix}{field.name}` | {_kind(hint)} | {shown_default} | {_sentence(notes.get(field.name, ''))} |"


def _kind(hint: Any) -> str:
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] if _is_union(hint) else [hint]
    if typing.get_origin(kinds[0]) is typing.Literal:
        return " or ".join(f"`{word}`" for word in typing.get_args(kinds[0]))
    plain = {str: "text", int: "number", float: "number", bool: "true or false"}
    if kinds[0] in plain:
        return plain[kinds[0]]
    origin = typing.get_origin(kinds[0])
    return "object" if isinstance(origin, type) and issubclass(origin, Mapping) else "list"


def _is_union(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _notes(payload: type[Any]) -> dict[str, str]:
    """Return the attribute docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for ancestor in reversed(payload.__mro__[: payload.__mro__.index(msgspec.Struct)]):
        [body] = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        assert isinstance(body, ast.ClassDef)
        for attribute, note in zip(body.body, body.body[1:], strict=False):
            if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
                text = note.value.value if isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant) else ""
                found[attribute.target.id] = str(text)
    return found


# ── Settings ────────────────────────────────────────────────────────────────────────────────────────────────────


def settings_page() -> str:
    return CliRunner().invoke(pagemill, ["config", "docs"]).stdout


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def api_page() -> str:
    rows = [
        f"| `{endpoint.method} {endpoint.path}` | {endpoint.required_scope} | "
        f"{_sentence(endpoint.summary)}{_query_and_body(endpoint)} |"
        for endpoint in ENDPOINTS
    ]
    return "\n".join(["## Every endpoint", "", "| | scope | |", "|---|---|---|", *rows])


def _query_and_body(one: Endpoint) -> str:
    words = [f"`{name}`" for name in one.query.__struct_fields__]
    fields = [f"`{field.encode_name}`" for field in msgspec.structs.fields(one.body)] if one.body else []
    query = f" Query: {', '.join(words)}." if words else ""
    return query + (f" Body: {', '.join(fields)}." if fields else "")


def openapi_file() -> str:
    return json.dumps(openapi.openapi_document(), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    OPENAPI.write_text(openapi_file(), "utf-8")
    for page in pages():
        (DOCS / page).write_text(generated_page(page), "utf-8")
