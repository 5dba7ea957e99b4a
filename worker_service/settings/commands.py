"""The settings table [commands.X]: a program of the user's, its arguments and its permissions. No shell is involved.

An argument is a template: a text with placeholders, which are replaced by values of the job.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from worker_service.base.errors import ConfigError
from worker_service.base.suggestions import nearest
from worker_service.settings.value_types import WHOLE_SECONDS, Jobs, ValueType, YesNo, read_struct, read_table

_JOB_FIELDS = ("account", "platform", "job_type", "job_id")
# In `argv` and `stdin`, a placeholder stands for a value of the job:
#     {payload.user}        one value; a job without it is rejected
#     {payload.user?}       one or none: if it is null or absent, the argument and its group are left out
#     {payload.ids*}        any number: one argument for each item of a list
#     {payload.ids+}        the same, but at least one
#     {payload.tags:json}   as JSON; null becomes `null`, so a ? leaves out only an absent value
#     {payload.word:option} may begin with -; other values may not
#     {payload}             the whole payload, as JSON
#     {{word}}              the literal text {word}
# An argument that is a list is a group: ["--limit", "{payload.limit?}"] is passed as a whole or not at all.
_BRACES = re.compile(r"\{\{([A-Za-z][^{}\s\"']*)\}\}|\{([A-Za-z][^{}\s\"']*)\}")
_PLACEHOLDER = re.compile(r"(\w+)((?:\.[\w-]+)*)(?::(json|option))?([?*+]?)")
_SIZE = re.compile(r"(\d{1,9})\s*([MGT])(i?)B")
_EXPONENT_BY_PREFIX = {"M": 2, "G": 3, "T": 4}
_MEMORY_BYTES_LEAST = 16 << 20
_ABSENT = object()  # unlike None, which is null in JSON


class PlaceholderError(ValueError): ...


class Placeholder(Struct, frozen=True):
    name: str
    form: str = ""  # json, option or none
    count: str = ""  # ?, *, + or none

    @property
    def is_required(self) -> bool:
        return self.count in ("", "+")

    def __str__(self) -> str:
        return f"{{{self.name}{self.form and f':{self.form}'}{self.count}}}"

    def values(self, job: Mapping[str, object]) -> list[str]:
        value = self._find_value(job)
        is_null = value is None and self.form != "json"
        if value is _ABSENT or is_null:
            if self.is_required:
                raise PlaceholderError(f"{self.name} is {'null' if is_null else 'absent'}, and the program takes it")
            return []
        values = value if self.count in ("*", "+") and isinstance(value, list) else [value]
        if not values and self.count == "+":
            raise PlaceholderError(f"{self.name} is an empty list, and the program takes at least one")
        return [self._text(value) for value in values]

    def _find_value(self, job: Mapping[str, object]) -> object:
        value: object = job
        for key in self.name.split("."):
            value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
        return value

    def _text(self, value: object) -> str:
        if isinstance(value, str) and self.form != "json":
            text = value
        elif self.form == "json" or self.name == "payload" or isinstance(value, bool | int | float):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            kind = "null" if value is None else "a list" if isinstance(value, list) else "an object"
            raise PlaceholderError(f"{self.name} is {kind}, and the program takes one value there")
        # No argument can contain NUL or surrogates.
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise PlaceholderError(f"{self.name} holds characters that cannot be passed to a program")
        return text


class Template(Struct, frozen=True):
    text: str
    parts: tuple[str | Placeholder, ...]

    def arguments(self, job: Mapping[str, object]) -> list[str]:
        # One for each item if a value is a list; none if an optional value is missing.
        arguments = [""]
        for part in self.parts:
            values = [part] if isinstance(part, str) else part.values(job)
            arguments = [argument + value for argument in arguments for value in values]
        return arguments

    @property
    def may_be_option(self) -> bool:
        first = self.parts[0] if self.parts else ""
        return first.startswith("-") if isinstance(first, str) else first.form == "option"

    @property
    def placeholders(self) -> list[Placeholder]:
        return [part for part in self.parts if isinstance(part, Placeholder)]


# ── Types of the values ──────────────────────────────────────────────────────────────────────────────────────────────


def _parse_argv(raw: object, label: str, _: Path) -> tuple[tuple[Template, ...], ...]:
    if not isinstance(raw, list) or not raw:
        raise ValueError
    path = raw[0]
    if not isinstance(path, str) or not path.startswith("/") or _BRACES.search(path):
        raise ConfigError(f"{label} begins with the program's full path, without placeholders, not {path!r}")
    return tuple(_parse_group(group, label) for group in raw)


def _parse_group(raw: object, label: str) -> tuple[Template, ...]:
    texts: list[Any] = raw if isinstance(raw, list) else [raw]
    if not texts or not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ConfigError(f"{label}: {raw!r} is no argument", "write a text, or a list of texts that belong together")
    return tuple(_parse_template(text, label) for text in texts)


def _parse_stdin(raw: object, label: str, _: Path) -> Template:
    if not isinstance(raw, str) or not raw:
        raise ValueError
    return _parse_template(raw, label)


def _parse_template(text: str, label: str) -> Template:
    template = Template(text, tuple(part for part in _parse_parts(text, label) if part))
    if sum(placeholder.count in ("*", "+") for placeholder in template.placeholders) > 1:
        raise ConfigError(f"{label}: {text!r} has two lists, and only one can be spread in an argument")
    return template


def _parse_parts(text: str, label: str) -> Iterator[str | Placeholder]:
    end = 0
    for match in _BRACES.finditer(text):
        literal, placeholder = match.groups()
        yield text[end : match.start()]
        yield f"{{{literal}}}" if literal else _parse_placeholder(placeholder, label)
        end = match.end()
    yield text[end:]


def _parse_placeholder(text: str, label: str) -> Placeholder:
    match = _PLACEHOLDER.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{label}: {{{text}}} is no placeholder",
            "write {payload.KEY}, and behind it ? (one or none), * (any "
            "number) or + (at least one), or before these :json or :option",
        )
    first, keys, form, count = match[1], match[2], match[3] or "", match[4]
    if first != "payload" and (first not in _JOB_FIELDS or keys):
        near = nearest(first, ("payload", *_JOB_FIELDS))
        if near:
            hint = f"did you mean {{{near}{keys if near == 'payload' else ''}}}?"
        else:
            hint = f"there are {{payload}}, {{payload.KEY}}, {{{'}, {'.join(_JOB_FIELDS)}}}."
        raise ConfigError(f"{label}: {{{text}}} is not known: {hint} To pass it as it is: {{{{{text}}}}}")
    if first == "payload" and not keys and (form or count):
        raise ConfigError(f"{label}: {{{text}}}: the whole payload is always there, and always JSON: {{payload}}")
    return Placeholder(first + keys, form, count)


def _parse_memory(raw: object, _: str, __: Path) -> int:
    match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise ValueError
    number, prefix, is_binary = match.groups()
    size: int = int(number) * (1024 if is_binary else 1000) ** _EXPONENT_BY_PREFIX[prefix]
    if size < _MEMORY_BYTES_LEAST:
        raise ValueError
    return size


def _parse_full_path(raw: object, _: str = "", __: Path = Path()) -> Path:
    if not isinstance(raw, str) or not raw.startswith("/") or "\0" in raw:
        raise ValueError
    return Path(raw)


def _parse_full_paths(raw: object, _: str, __: Path) -> tuple[Path, ...]:
    if not isinstance(raw, list):
        raise ValueError
    return tuple(map(_parse_full_path, raw))


_ARGV = ValueType('a list such as ["/path/of/the/program", "--user", "{account}"]', _parse_argv)
_STDIN = ValueType('what the program reads, such as "{payload}"', _parse_stdin)
_MEMORY = ValueType("a size such as 512 MiB or 2 GiB, at least 16 MiB", _parse_memory)
_FULL_PATH = ValueType("a full path such as /srv/media", _parse_full_path)
_FullPaths = Annotated[tuple[Path, ...], ValueType('a list of full paths such as ["/srv/media"]', _parse_full_paths)]
_ExitCodes = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=255)], ...], Meta(description="a list of exit codes from 0 to 255")
]
_Pattern = Annotated[str, Meta(pattern=r"\A(?!/)(?!(.*/)?\.\.(/|\Z))[^\0]+\Z")]
_Variable = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]


class Program(Struct, frozen=True):
    argv: Annotated[tuple[tuple[Template, ...], ...], _ARGV]
    """Groups of arguments. A group is passed as a whole or not at all."""
    stdin: Annotated[Template | None, _STDIN] = None
    """If a value is a list, the program gets a line for each item."""
    timeout: Annotated[int, WHOLE_SECONDS] = 3600
    memory: Annotated[int | None, _MEMORY] = None
    files: Annotated[
        tuple[_Pattern, ...] | None,
        Meta(description='a list of patterns of files in the job\'s directory, such as ["*.json", "media/*"]'),
    ] = None
    """Files to publish; * also matches /. None stands for all but hidden files."""
    done: _ExitCodes = (0,)
    retry: _ExitCodes = ()
    """These take precedence over `permanent`. Codes that are not listed anywhere are retried."""
    permanent: _ExitCodes = ()
    env: Annotated[
        tuple[_Variable, ...],
        Meta(description='a list of names of the service\'s variables, such as ["HTTPS_PROXY"]'),
    ] = ()
    cwd: Annotated[Path | None, _FULL_PATH] = None
    sandbox: Annotated[Literal["off", "strict"], Meta(description="off or strict")] = "off"
    read: _FullPaths = ()
    write: _FullPaths = ()
    network: YesNo = False
    """Applies to programs in a sandbox; others always have network access."""
    job_class: Annotated[Literal["io", "cpu"], Meta(description="io or cpu")] = field(default="io", name="class")
    max_running: Jobs | None = None
    at_most_once: YesNo = False

    @property
    def path(self) -> Path:
        return Path(self.argv[0][0].text)

    def schema(self) -> Mapping[str, object]:
        templates = [*itertools.chain.from_iterable(self.argv), *([] if self.stdin is None else [self.stdin])]
        schema: dict[str, Any] = {"type": "object"}
        for template in templates:
            for placeholder in template.placeholders:
                first, *keys = placeholder.name.split(".")
                if first == "payload" and placeholder.is_required:
                    _require(keys, schema, may_be_null=placeholder.form == "json")
        return schema

    def arguments(self, job: Mapping[str, object]) -> list[str]:
        """`job` has the keys payload and `_JOB_FIELDS`."""
        arguments: list[str] = []
        for group in self.argv:
            filled = [_refuse_options(template, template.arguments(job)) for template in group]
            if all(filled):
                arguments += itertools.chain.from_iterable(filled)
        return arguments

    def input(self, job: Mapping[str, object]) -> str:
        return "" if self.stdin is None else "".join(f"{line}\n" for line in self.stdin.arguments(job))


def _require(keys: Sequence[str], schema: dict[str, Any], *, may_be_null: bool) -> None:
    for key in keys:
        schema["required"] = sorted({*schema.get("required", ()), key})
        schema = schema.setdefault("properties", {}).setdefault(key, {})
    if keys and not may_be_null:
        schema["not"] = {"type": "null"}


def _refuse_options(template: Template, arguments: list[str]) -> list[str]:
    for argument in arguments:
        if argument.startswith("-") and not template.may_be_option:
            raise PlaceholderError(f"{template.text} would become the option {argument[:40]!r}, which is not allowed")
    return arguments


def read_program(table: Mapping[str, object], label: str) -> Program:
    program = read_struct(Program, table, label)
    if program.sandbox == "off":
        for key in ("read", "write", "network"):
            if key in table:
                raise ConfigError(
                    f'{label}.{key} is for a program in a sandbox: add sandbox = "strict", or leave it out'
                )
    if program.files and program.cwd is not None:
        raise ConfigError(
            f"{label}: files are published from a directory of the job's own, and cwd is another",
            "leave one of them out",
        )
    ambiguous = {*program.done} & {*program.retry, *program.permanent}
    if ambiguous:
        code = min(ambiguous)
        raise ConfigError(f"{label}: exit code {code} is done, and retry or permanent as well", "leave one out")
    return program


def _parse_commands(raw: object, label: str, _: Path) -> dict[str, Any]:
    tables = read_table(raw, f"{label}: commands")
    for name, table in tables.items():
        if not name.isprintable() or not 0 < len(name) <= 100:
            raise ConfigError(f"{label}: {name!r} is not the name of a job type")
        read_program(read_table(table, f"{label}: commands.{name}"), f"{label}: commands.{name}")
    return tables


def _format_commands(commands: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    # Only the program, because an argument may be a secret.
    argv_by_name = {name: table.get("argv") for name, table in commands.items()}
    return {name: str(argv[0]) if isinstance(argv, list) and argv else "" for name, argv in argv_by_name.items()}


COMMANDS = ValueType("a table", _parse_commands, _format_commands)
