"""Find the files below a directory that can be read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from job_handlers.file_kinds import SUFFIXES
from worker_service.base.files import sha256_of
from worker_service.handlers import BadInput, counted, display_path, path_to_text

# Reasons why a file is left out. For a file of an unknown kind, the reason is its suffix, or OTHERS without any.
HIDDEN, LINKS, SPECIAL, OTHERS = "hidden", "symbolic_links", "special_files", "others"
_LEFT_OUT_NAMED_MAX = 1000


class LeftOut:
    """Collects files that are not read: counts by reason, and the first paths."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.files: list[dict[str, str]] = []

    def add(self, path: Path, why: str) -> None:
        self.counts[why] += 1
        if len(self.files) < _LEFT_OUT_NAMED_MAX:
            self.files.append({"path": display_path(path), "why": why})

    def as_answer(self) -> dict[str, object]:
        return {"left_out": dict(self.counts), "left_out_files": self.files}


class AdoptedFile(Struct, frozen=True):
    path: str
    content: str
    text: str | None
    """Path of the text file next to it."""


def absolute(path: Path | str) -> Path:
    return Path(os.path.normpath(Path(path).absolute()))


def find_files(path: Path, left_out: LeftOut, *, entries_max: int | None = None) -> list[Path]:
    """Raise `BadInput` for a directory with more than `entries_max` entries."""
    path = absolute(path)
    if not path.is_dir():
        if not path.is_file():
            is_address = any(part in ("http:", "https:") for part in path.parts)
            raise BadInput(f"there is no file {path}", "pagemill add takes addresses, too" if is_address else "")
        return [path]
    files: list[Path] = []
    entries = 0
    # A directory that cannot be listed raises an error: its files must not be left out silently.
    for folder, subfolders, names in os.walk(path, onerror=_raise_error):
        entries += len(subfolders) + len(names)
        if entries_max is not None and entries > entries_max:
            raise BadInput(f"{path} has more than {entries_max:,} entries", "name parts of it, or crawl it")
        reasons = {name: _reason_to_leave_out(Path(folder, name)) for name in sorted([*subfolders, *names])}
        for name, reason in reasons.items():
            if reason:
                left_out.add(Path(folder, name), reason)
        # The walk goes on in the subfolders that stay in this list.
        subfolders[:] = [name for name in subfolders if not reasons[name]]
        files += (Path(folder, name) for name in names if not reasons[name])
    if not files:
        skipped = f" (skipped: {in_words(left_out.counts)})" if left_out.counts else ""
        raise BadInput(f"there is nothing to read below {path}{skipped}: {', '.join(SUFFIXES)} can be read")
    return sorted(files)


def files_to_adopt(directory: Path) -> list[AdoptedFile]:
    """Return the files below the directory with their texts: report.txt next to report.pdf is its text."""
    files = find_files(directory, LeftOut())
    # A text file may be a document itself, but not if it is another file's text.
    texts = {file.with_suffix(".txt") for file in files if file.suffix != ".txt"}
    adopted: list[AdoptedFile] = []
    for file in files:
        if file in texts:
            continue
        text_file = file.with_suffix(".txt")
        text = path_to_text(text_file) if text_file in texts and text_file.is_file() else None
        adopted.append(AdoptedFile(path_to_text(file), sha256_of(file), text))
    return adopted


def in_words(left_out: Mapping[str, int]) -> str:
    """Return a phrase such as `2 symbolic links, 1 hidden, 3 .docx`."""
    nouns = {
        LINKS: ("symbolic link", None),
        HIDDEN: ("hidden", "hidden"),
        SPECIAL: ("special file", None),
        OTHERS: ("other", "others"),
    }
    most_first = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(counted(number, *nouns.get(why, (why, why))) for why, number in most_first)


def _reason_to_leave_out(path: Path) -> str:
    """Return an empty text for files that can be read, and for directories."""
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
    return display_path(path.suffix.lower()) or OTHERS


def _raise_error(error: OSError) -> None:
    raise error
