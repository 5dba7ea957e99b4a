"""Turn a user's request to read documents into jobs. Does not use the database.

The services decide whether a request is accepted; this module only rejects requests without a meaning.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from job_handlers.fetch.sources import sources
from job_handlers.fetch.sources.local import revision_of
from job_handlers.file_kinds import SUFFIXES
from worker_service.base.files import sha256_of
from worker_service.handlers import DeferredAction, DocumentRequest, NewJob, OnEnd, canonical, digest
from worker_service.verbs import BadInput, Document, counted, legible, read_action, written

HIDDEN, LINKS, SPECIAL, OTHERS = "hidden", "symbolic_links", "special_files", "others"
_LEFT_OUT_NAMED_MAX = 1000

_WORDS = ("lang", "quality", "force-ocr", "hocr", "password-file", "as-usual", "then", "on-failure")
QUALITIES = ("fast", "auto", "best")
_LANGUAGE = re.compile(r"[A-Za-z]\w*(?:/\w+)?", re.ASCII)
_REMEMBERED = ("languages", "quality", "force_ocr", "hocr", "password_file")
_PASSWORD = re.compile(r"password[\w.-]*", re.ASCII)


class ReadOptions(Struct, frozen=True):
    """Reading settings as the user enters them. A setting that is not given is the document's own."""

    as_usual: bool = False
    """Forget the document's own settings."""
    languages: Sequence[str] = ()
    quality: str | None = None
    force_ocr: bool = False
    hocr: bool = False
    password: str | None = None
    then: Sequence[str] = ()
    on_failure: Sequence[str] = ()

    def asked(self) -> dict[str, object]:
        """Return the settings as in the payload of `ingest`.

        A setting that is not given is left out; null resets it to the default.
        """
        said: dict[str, object] = dict.fromkeys(_REMEMBERED) if self.as_usual else {}
        if self.languages:
            said["languages"] = [language for word in self.languages for language in _languages(word)]
        if self.quality is not None:
            said["quality"] = self.quality
        if self.force_ocr:
            said["force_ocr"] = True
        if self.hocr:
            said["hocr"] = True
        if self.password is not None:
            if not _PASSWORD.fullmatch(self.password):
                raise BadInput(
                    f"{self.password!r} is not the name of a credential that begins with password",
                    "give the service "
                    "LoadCredential=password-reports:/path/of/the/file, and say --password-file password-reports",
                )
            said["password_file"] = self.password
        return said

    def actions(self, *, standing: bool = False) -> list[DeferredAction]:
        """Return the follow-up actions. `standing` repeats them for each new generation."""
        on_end = [*((OnEnd.SUCCESS, word) for word in self.then), *((OnEnd.FAILURE, word) for word in self.on_failure)]
        return [read_action(word, when, standing=standing) for when, word in on_end]

    def after_failure(self) -> list[DeferredAction]:
        """Return the actions that also run if the attempt fails before there is a document."""
        return [one for one in self.actions() if one.on_end is OnEnd.FAILURE]

    def follows(self, *, standing: bool = False) -> dict[str, object]:
        """Return the actions as in the payload of `download`."""
        actions = [
            {
                "job_type": one.job_type,
                **({"payload": json.loads(one.payload)} if one.payload else {}),
                **({"on_end": one.on_end} if one.on_end is OnEnd.FAILURE else {}),
                **({"standing": True} if standing else {}),
            }
            for one in self.actions()
        ]
        return {"then": actions} if actions else {}


class AdoptedFile(Struct, frozen=True):
    """A file for `documents adopt`."""

    path: str
    content: str
    """SHA-256."""
    text: str | None
    """Path of the text file next to it; None if the file has not been read."""


# ── Options, from the command line, HTTP or the web page ──

Made = tuple[NewJob, Mapping[str, object], Sequence[DeferredAction]]
"""The job, the requested settings, and the follow-up actions."""


def bring(file: Path, words: Mapping[str, Sequence[str]], *, owner: str, is_forced: bool) -> Made:
    """Return the job of `ingest FILE`."""
    read = parse_read_options(words)
    return download_job(file, read, owner=owner, is_forced=is_forced), read.asked(), read.actions()


def again(document: Document, words: Mapping[str, Sequence[str]], *, has_original: bool, is_forced: bool) -> Made:
    """Return the job of `reindex DOCUMENT`."""
    read = parse_read_options(words)
    return reindex_job(document, read, has_original=has_original, is_forced=is_forced), read.asked(), read.actions()


def opens(settings: str) -> str | None:
    """Return the name of the credential that opens a document with these settings; None if it needs none."""
    try:
        name = json.loads(settings or "{}").get("password_file")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def parse_read_options(words: Mapping[str, Sequence[str]]) -> ReadOptions:
    """Build the settings from option names and values. An empty value counts as not given."""
    said = {name: [value for value in values if value] for name, values in words.items()}
    if unknown := sorted(set(said) - set(_WORDS)):
        raise BadInput(f"{unknown[0]!r} says nothing of how to read: there are {', '.join(_WORDS)}")
    quality, password = (next(iter(said.get(name, ())), None) for name in ("quality", "password-file"))
    if quality not in (None, *QUALITIES):
        raise BadInput(f"{quality!r} is no quality", "say fast, auto or best")
    return ReadOptions(
        as_usual=bool(said.get("as-usual")),
        languages=said.get("lang", ()),
        quality=quality,
        force_ocr=bool(said.get("force-ocr")),
        hocr=bool(said.get("hocr")),
        password=password,
        then=said.get("then", ()),
        on_failure=said.get("on-failure", ()),
    )


# ── Jobs ──


def download_job(file: Path, read: ReadOptions, *, owner: str, is_forced: bool, standing: bool = False) -> NewJob:
    source = written(file)
    body = {"source": source, "read": read.asked(), "force": is_forced, **read.follows(standing=standing)}
    # Equal requests for equal bytes share a key, as far as that is known without reading the file.
    revision = revision_of(file.stat())
    key = f"ingest:{digest([owner, body, revision])}"
    brings = DocumentRequest(
        source,
        "",
        settings=canonical(read.asked()),
        is_forced=is_forced,
        actions=read.actions(standing=standing),
        revision=revision,
    )
    return NewJob(
        "download",
        platform="local",
        owner=owner,
        payload=canonical(body),
        name=legible(file.name),
        source_key=source,
        unique_key=key,
        brings=brings,
        on_failure=read.after_failure(),
    )


def reindex_job(document: Document, read: ReadOptions, *, has_original: bool, is_forced: bool) -> NewJob:
    """Return a job that reads the document again with its own settings, overridden by those given now.

    If the original is missing, the job downloads it first.
    """
    asked = read.asked()
    platform, owner = document.platform, document.owner
    if has_original:
        wish = DocumentRequest(
            document.source_key,
            document.name,
            document.content,
            canonical(asked),
            is_forced=is_forced,
            actions=read.actions(),
        )
        return NewJob("ingest", platform=platform, owner=owner, document=wish)
    # Force reading: the document was adopted, or its files were lost.
    body = {"source": document.source_key, "name": document.name, "read": asked, "force": True, **read.follows()}
    rests = next((source.rests_with("") for source in sources() if platform == source.PLATFORM), "")
    return NewJob(
        "download",
        platform=platform,
        owner=owner,
        payload=canonical(body),
        source=rests,
        name=document.name,
        source_key=document.source_key,
        on_failure=read.after_failure(),
    )


def adopt_job(request: DocumentRequest, text: str, *, owner: str) -> NewJob:
    return NewJob("adopt", platform="local", owner=owner, payload=canonical({"text": text}), document=request)


# ── Files ──


def files_to_adopt(directory: Path) -> list[AdoptedFile]:
    """Return the files below a directory. If report.txt lies next to report.pdf, it is that file's text."""
    found: list[AdoptedFile] = []
    files = find_files(directory, LeftOut())
    # A text file may be a document itself, but not if it is another file's text.
    texts = {file.with_suffix(".txt") for file in files if file.suffix != ".txt"}
    for file in files:
        if file in texts:
            continue
        beside = file.with_suffix(".txt")
        found.append(
            AdoptedFile(
                written(file), sha256_of(file), written(beside) if beside in texts and beside.is_file() else None
            )
        )
    return found


class LeftOut:
    """What was left out of directories: how many by the reason, and the first thousand by name."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.files: list[dict[str, str]] = []

    def add(self, path: Path, why: str) -> None:
        self.counts[why] += 1
        if len(self.files) < _LEFT_OUT_NAMED_MAX:
            self.files.append({"path": legible(path), "why": why})

    def as_answer(self) -> dict[str, object]:
        return {"left_out": dict(self.counts), "left_out_files": self.files}


def _raise_error(error: OSError) -> None:
    raise error


def absolute(path: Path | str) -> Path:
    return Path(os.path.normpath(Path(path).absolute()))


def find_files(path: Path, left_out: LeftOut, *, most: int | None = None) -> list[Path]:
    """Return the file, or the files below a directory that can be read; add the others to `left_out`.

    `most`: refuse a directory with more entries, because other requests wait meanwhile.
    """
    path = absolute(path)
    if not path.is_dir():
        if not path.is_file():
            is_address = any(part in ("http:", "https:") for part in path.parts)
            remedy = "to fetch an address: pagemill batch add URL; a folder of Drive: pagemill crawl URL"
            raise BadInput(f"there is no file {path}", remedy if is_address else "")
        return [path]
    found: list[Path] = []
    seen = 0
    # Refuse a directory that cannot be listed: its files must not be left out silently.
    for folder, folders, names in os.walk(path, onerror=_raise_error):
        seen += len(folders) + len(names)
        if most is not None and seen > most:
            raise BadInput(f"there is too much below {path} to be looked at now", "name less of it, or crawl it")
        here = {name: _why_left_out(Path(folder, name)) for name in sorted([*folders, *names])}
        for name, why in here.items():
            if why:
                left_out.add(Path(folder, name), why)
        folders[:] = [name for name in folders if not here[name]]
        found += (Path(folder, name) for name in names if not here[name])
    if not found:
        raise BadInput(
            f"there is nothing to read below {path}{_left_out_note(left_out.counts)}: {', '.join(SUFFIXES)} can be read"
        )
    return sorted(found)


def _why_left_out(path: Path) -> str:
    if path.name.startswith("."):
        return HIDDEN
    if path.is_symlink():
        return LINKS
    if path.is_dir():
        return ""
    if not path.is_file():
        return SPECIAL
    if path.suffix.lower() in SUFFIXES:
        return ""
    return legible(path.suffix.lower()) or OTHERS


def _left_out_note(counts: Mapping[str, int]) -> str:
    words = in_words(counts)
    return f" (left out: {words})" if words else ""


def in_words(left_out: Mapping[str, int]) -> str:
    """Return a phrase such as `2 symbolic links, 1 hidden, 3 .docx`."""
    nouns = {
        LINKS: ("symbolic link", None),
        HIDDEN: ("hidden", "hidden"),
        SPECIAL: ("special file", None),
        OTHERS: ("other", "others"),
    }
    most_first = sorted(left_out.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(counted(number, *nouns.get(why, (why, why))) for why, number in most_first)


# ── Parsing ──


def _languages(word: str) -> list[str]:
    languages = re.split(r"[+,]", word)
    if not all(_LANGUAGE.fullmatch(one) for one in languages):
        raise BadInput(f"{word!r} is not a language", "write eng, or eng+deu")
    return languages
