"""The settings table [commands.X]: a program of the user's, its arguments and its permissions.

Read with the settings, so that a mistake is reported before it costs a job, and again by the handler that runs the
program. No shell is involved. In `argv` and `stdin` a placeholder stands for a value of the job:

    {payload.user}      one value; a job without it is rejected
    {payload.user?}     one or none: if it is null or absent, the argument and its group are left out
    {payload.ids*}      any number: one argument for each item of a list
    {payload.ids+}      the same, but at least one
    {payload.tags:json} as JSON; null becomes `null`, so a ? leaves out only an absent value
    {payload.word:option}   may begin with -; other values may not
    {payload}           the whole payload, as JSON

Besides the payload there are {account}, {platform}, {job_type} and {job_id}. An argument that is a list is a group:
["--limit", "{payload.limit?}"] is passed as a whole or not at all. {{word}} stands for the literal text {word}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from worker_service.base.errors import ConfigError, did_you_mean, nearest
from worker_service.settings.value_types import WHOLE_SECONDS

_OF_THE_JOB = ("account", "platform", "job_type", "job_id")
_BRACES = re.compile(r"\{\{([A-Za-z][^{}\s\"']*)\}\}|\{([A-Za-z][^{}\s\"']*)\}")
_PLACEHOLDER = re.compile(r"(\w+)((?:\.[\w-]+)*)(?::(json|option))?([?*+]?)")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIZE = re.compile(r"(\d{1,9})\s*([MGT])(i?)B")
_MEMORY_BYTES_LEAST = 16 << 20
_ABSENT = object()


class PlaceholderError(ValueError):
    """The job lacks a value that the program's arguments need, or has one that cannot be passed."""


class Placeholder(Struct, frozen=True):
    name: str
    form: str = ""
    """`json`, `option`, or empty."""
    count: str = ""
    """`?`, `*`, `+`, or empty for exactly one value."""

    def __str__(self) -> str:
        return f"{{{self.name}{self.form and f':{self.form}'}{self.count}}}"

    def values(self, job: Mapping[str, object]) -> list[str]:
        found = self._found(job)
        is_null = found is None and self.form != "json"
        if found is _ABSENT or is_null:
            if self.count in ("", "+"):
                raise PlaceholderError(f"{self.name} is {'null' if is_null else 'absent'}, and the program takes it")
            return []
        several = found if self.count in ("*", "+") and isinstance(found, list) else [found]
        if not several and self.count == "+":
            raise PlaceholderError(f"{self.name} is an empty list, and the program takes at least one")
        return [self._text(one) for one in several]

    def _found(self, job: Mapping[str, object]) -> object:
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
            what = "null" if value is None else "a list" if isinstance(value, list) else "an object"
            raise PlaceholderError(f"{self.name} is {what}, and the program takes one value there")
        # No argument can contain these.
        if "\0" in text or any("\ud800" <= one <= "\udfff" for one in text):
            raise PlaceholderError(f"{self.name} holds characters that cannot be passed to a program")
        return text


class Template(Struct, frozen=True):
    """One argument as written in the settings."""

    written: str
    parts: tuple[str | Placeholder, ...]

    def arguments(self, job: Mapping[str, object]) -> list[str]:
        """Return the argument once for each combination of its placeholders' values."""
        filled = [""]
        for part in self.parts:
            values = [part] if isinstance(part, str) else part.values(job)
            filled = [before + value for before in filled for value in values]
        return filled

    @property
    def may_be_option(self) -> bool:
        first = self.parts[0] if self.parts else ""
        return first.startswith("-") if isinstance(first, str) else first.form == "option"

    @property
    def placeholders(self) -> list[Placeholder]:
        return [part for part in self.parts if isinstance(part, Placeholder)]


class Program(Struct, frozen=True):
    """A validated table [commands.X]."""

    argv: tuple[tuple[Template, ...], ...]
    """The program and its arguments, in groups that are passed or left out as a whole."""
    stdin: Template | None = None
    """Text for standard input, one line per value of a list; None for no input."""
    timeout: int = 3600
    memory: int | None = None
    """Memory limit of each process in bytes; None for no limit."""
    files: tuple[str, ...] | None = None
    """Patterns of the files to publish from the program's directory; * also matches /. None: all but hidden files."""
    done: tuple[int, ...] = (0,)
    retry: tuple[int, ...] = ()
    """Exit codes. `retry` takes precedence over `permanent`; codes that no setting names are retried."""
    permanent: tuple[int, ...] = ()
    env: tuple[str, ...] = ()
    """Names of the service's environment variables that the program gets."""
    cwd: Path | None = None
    """None for a new, empty directory for each attempt."""
    sandbox: str = "off"
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    network: bool = False
    """Applies inside a sandbox; outside one the program always has the network."""
    job_class: str = "io"
    max_running: int | None = None
    at_most_once: bool = False

    @property
    def path(self) -> Path:
        return Path(self.argv[0][0].written)

    def schema(self) -> Mapping[str, object]:
        """Return a JSON Schema for payloads that have all required values."""
        templates = [template for group in self.argv for template in group]
        templates += [] if self.stdin is None else [self.stdin]
        schema: dict[str, Any] = {"type": "object"}
        for one in [placeholder for template in templates for placeholder in template.placeholders]:
            first, *keys = one.name.split(".")
            if first != "payload" or one.count not in ("", "+"):
                continue
            at = schema
            for key in keys:
                at["required"] = sorted({*at.get("required", ()), key})
                at = at.setdefault("properties", {}).setdefault(key, {})
            if keys and one.form != "json":
                at["not"] = {"type": "null"}
        return schema

    def arguments(self, job: Mapping[str, object]) -> list[str]:
        """Return the program's arguments for a job. Raise `PlaceholderError` if it lacks a required value.

        `job` has the keys payload, account, platform, job_type and job_id.
        """
        arguments: list[str] = []
        for group in self.argv:
            filled = [_not_options(template, template.arguments(job)) for template in group]
            if all(filled):
                arguments += [argument for several in filled for argument in several]
        return arguments

    def input(self, job: Mapping[str, object]) -> str:
        return "" if self.stdin is None else "".join(f"{line}\n" for line in self.stdin.arguments(job))


def _not_options(template: Template, arguments: list[str]) -> list[str]:
    for argument in arguments:
        if argument.startswith("-") and not template.may_be_option:
            raise PlaceholderError(
                f"{template.written} would become the option {argument[:40]!r}, which is not allowed"
            )
    return arguments


# ── Parsing the table ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_program(table: Mapping[str, object], label: str) -> Program:
    """Return the program, or raise `ConfigError`. Does not check whether the program exists."""
    for key in table:
        if key not in READERS:
            known = did_you_mean(key, READERS, f"the settings are {', '.join(READERS)}")
            raise ConfigError(f"{label}: there is no setting {key!r}: {known}")
    if "argv" not in table:
        raise ConfigError(f'{label} needs argv = ["/path/of/the/program", "…"]')
    values: dict[str, Any] = {key: READERS[key](written, f"{label}.{key}") for key, written in table.items()}
    if "class" in values:
        values["job_class"] = values.pop("class")
    program = Program(**values)
    _refuse_what_means_nothing(program, table, label)
    return program


def _refuse_what_means_nothing(program: Program, table: Mapping[str, object], label: str) -> None:
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
    twice = {*program.done} & {*program.retry, *program.permanent}
    if twice:
        raise ConfigError(f"{label}: exit code {min(twice)} is done, and retry or permanent as well", "leave one out")


def _read_argv(written: object, label: str) -> tuple[tuple[Template, ...], ...]:
    if not isinstance(written, list) or not written:
        raise ConfigError(
            f'{label} is a list such as ["/path/of/the/program", "--user", "{{account}}"], not {written!r}'
        )
    path = written[0]
    if not isinstance(path, str) or not path.startswith("/") or _BRACES.search(path):
        raise ConfigError(f"{label} begins with the program's full path, in which nothing is filled in, not {path!r}")
    return tuple(_read_group(one, label) for one in written)


def _read_group(written: object, label: str) -> tuple[Template, ...]:
    several: list[Any] = written if isinstance(written, list) else [written]
    if not several or not all(isinstance(one, str) and "\0" not in one for one in several):
        raise ConfigError(
            f"{label}: {written!r} is no argument", "write a text, or a list of texts that belong together"
        )
    return tuple(_read_template(one, label) for one in several)


def _read_template(written: str, label: str) -> Template:
    parts = tuple(part for part in _parts(written, label) if part)
    template = Template(written, parts)
    if sum(one.count in ("*", "+") for one in template.placeholders) > 1:
        raise ConfigError(f"{label}: {written!r} has two lists, and only one can be spread in an argument")
    return template


def _parts(written: str, label: str) -> Iterator[str | Placeholder]:
    end = 0
    for found in _BRACES.finditer(written):
        yield written[end : found.start()]
        yield f"{{{found[1]}}}" if found[1] else _read_placeholder(found[2], label)
        end = found.end()
    yield written[end:]


def _read_placeholder(written: str, label: str) -> Placeholder:
    found = _PLACEHOLDER.fullmatch(written)
    if found is None:
        raise ConfigError(
            f"{label}: {{{written}}} is no placeholder",
            "write {payload.KEY}, and behind it ? (one or none), * (any "
            "number) or + (at least one), or before these :json or :option",
        )
    first, keys, form, count = found[1], found[2], found[3] or "", found[4]
    if first != "payload" and (first not in _OF_THE_JOB or keys):
        near = nearest(first, ("payload", *_OF_THE_JOB))
        known = f"did you mean {{{near}{keys if near == 'payload' else ''}}}?" if near else _known()
        raise ConfigError(f"{label}: {{{written}}} is not known: {known} To pass it as it is: {{{{{written}}}}}")
    if first == "payload" and not keys and (form or count):
        raise ConfigError(f"{label}: {{{written}}}: the whole payload is always there, and always JSON: {{payload}}")
    return Placeholder(first + keys, form, count)


def _known() -> str:
    return f"there are {{payload}}, {{payload.KEY}}, {{{'}, {'.join(_OF_THE_JOB)}}}."


def _read_stdin(written: object, label: str) -> Template:
    if not isinstance(written, str) or not written:
        raise ConfigError(f'{label} is what the program reads, such as "{{payload}}", not {written!r}')
    return _read_template(written, label)


def _read_files(written: object, label: str) -> tuple[str, ...]:
    patterns = _texts(written, label, 'patterns such as ["*.json", "media/*"]')
    for pattern in patterns:
        if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            raise ConfigError(f"{label}: {pattern!r} leads out of the directory of the job")
    return patterns


def _read_codes(written: object, label: str) -> tuple[int, ...]:
    codes = written if isinstance(written, list) else [None]
    if not all(isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= 255 for code in codes):
        raise ConfigError(f"{label} is a list of exit codes from 0 to 255, not {written!r}")
    return tuple(codes)


def _read_env(written: object, label: str) -> tuple[str, ...]:
    names = _texts(written, label, 'names of variables, such as ["HTTPS_PROXY"]')
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(
                f"{label}: {name!r} is no name of a variable: it names those of the service, which has their values"
            )
    return names


def _read_paths(written: object, label: str) -> tuple[Path, ...]:
    paths = _texts(written, label, 'full paths, such as ["/srv/media"]')
    return tuple(_read_path(path, label) for path in paths)


def _read_path(written: object, label: str) -> Path:
    if not isinstance(written, str) or not written.startswith("/") or "\0" in written:
        raise ConfigError(f"{label}: {written!r} is not a full path")
    return Path(written)


def _texts(written: object, label: str, what: str) -> tuple[str, ...]:
    if not isinstance(written, list) or not all(isinstance(one, str) and "\0" not in one for one in written):
        raise ConfigError(f"{label} is a list of {what}, not {written!r}")
    return tuple(written)


def _read_number(written: object, label: str) -> int:
    if isinstance(written, bool) or not isinstance(written, int) or written < 0:
        raise ConfigError(f"{label} is a number of jobs, not {written!r}")
    return written


def _one_of(*words: str) -> Callable[[object, str], str]:
    def read(written: object, label: str) -> str:
        if not isinstance(written, str) or written not in words:
            raise ConfigError(f"{label} is {' or '.join(words)}, not {written!r}")
        return written

    return read


def _read_yes_or_no(written: object, label: str) -> bool:
    if not isinstance(written, bool):
        raise ConfigError(f"{label} is true or false, not {written!r}")
    return written


def _read_memory(written: object, label: str) -> int:
    found = _SIZE.fullmatch(written) if isinstance(written, str) else None
    size = int(found[1]) * (1024 if found[3] else 1000) ** ("MGT".index(found[2]) + 2) if found else 0
    if size < _MEMORY_BYTES_LEAST:
        raise ConfigError(f"{label} is a size such as 512 MiB or 2 GiB, at least 16 MiB, not {written!r}")
    return size


READERS: dict[str, Callable[[object, str], object]] = {
    "argv": _read_argv,
    "stdin": _read_stdin,
    "timeout": WHOLE_SECONDS.read,
    "memory": _read_memory,
    "files": _read_files,
    "done": _read_codes,
    "retry": _read_codes,
    "permanent": _read_codes,
    "env": _read_env,
    "cwd": _read_path,
    "sandbox": _one_of("off", "strict"),
    "read": _read_paths,
    "write": _read_paths,
    "network": _read_yes_or_no,
    "class": _one_of("io", "cpu"),
    "max_running": _read_number,
    "at_most_once": _read_yes_or_no,
}
