"""What a child's message may hold. The nursery looks before it passes anything on: a child may be broken, or worse.

What does not fit is `Garbled`. Pure but for one look at the files of an attempt that has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from worker_service.children.asking import question_from
from worker_service.children.model import Asked, Order, Publication
from worker_service.children.wire import Ask, Checkpoint, Finished, Garbled, clipped, printable
from worker_service.jobs.documents import FileAgain, PageResult

_NAME_CHARACTERS_MAX = 1000
_WORD_CHARACTERS_MAX = 200
_NUMBER_MAX = 2**53
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?")
_MD5 = re.compile(r"(?:[0-9a-f]{32})?")


def text(said: str, length: int) -> str:
    return clipped(printable(said), length)


def check_json(said: str | None) -> None:
    """It goes into a column that takes nothing else."""
    try:
        msgspec.json.decode(said if said is not None else "null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Garbled(f"a result or state that is no JSON: {error}") from error


def check_page(page: PageResult, order: Order) -> None:
    if order.document_id is None:
        raise Garbled("a page, and its job has no document")
    if not 1 <= page.number <= _NUMBER_MAX:
        raise Garbled(f"a page with the number {page.number}: they begin with 1")
    _check_words([page.digest], _WORD_CHARACTERS_MAX)
    _check_words([page.method], _WORD_CHARACTERS_MAX, is_needed=False)
    if page.layout is not None:
        check_json(page.layout)


def check_checkpoint(said: Checkpoint) -> None:
    check_json(said.state)
    if said.crawl is None:
        return
    _check_words([said.crawl.crawl, *(item.id for item in said.crawl.items)], _NAME_CHARACTERS_MAX)
    if said.crawl.state is not None:
        check_json(said.crawl.state)


def asked(said: Ask, order: Order) -> Asked:
    try:
        question_from(said.kind, said.body)
    except ValueError as error:
        raise Garbled(str(error)) from error
    return Asked(order.job_id, order.fence, said.number, said.kind, said.body)


def publications(said: Finished, staging: Path) -> tuple[list[Publication], list[FileAgain]]:
    """The files that it names, by their place and with names that people can read."""
    new = [_publication(file, staging) for file in said.files]
    again = [FileAgain(file.file_id, *_named(file)) for file in said.files_again]
    return new, again


def _publication(file: Publication, staging: Path) -> Publication:
    path = staging / file.path
    if not (path.resolve().is_relative_to(staging.resolve()) and path.is_file() and not path.is_symlink()):
        raise Garbled("a file outside its staging")
    if not _DIGEST.fullmatch(file.sha256) or not _MD5.fullmatch(file.md5):
        raise Garbled("a digest that is none")
    role, name = _named(file)
    own = str(path.relative_to(staging)).encode("utf-8", "replace").decode()
    note = text(file.note, _NAME_CHARACTERS_MAX)
    return Publication(path, role, name or text(own, _NAME_CHARACTERS_MAX), file.sha256, file.md5, note)


def _named(file: Publication | FileAgain) -> tuple[str, str]:
    _check_words([file.role], _WORD_CHARACTERS_MAX, is_needed=False)
    return file.role, text(file.name, _NAME_CHARACTERS_MAX)


def _check_words(words: Iterable[str], length: int, *, is_needed: bool = True) -> None:
    for word in words:
        if len(word) > length or (is_needed and not word) or "\0" in word:
            raise Garbled(f"a name that is none: {text(word, 40)!r}")
