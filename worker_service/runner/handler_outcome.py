"""Turn what a handler returns or raises into the end of its attempt."""

from __future__ import annotations

import contextlib
import json
import re
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from worker_service.base.files import sync_path
from worker_service.base.sanitize import clip, strip_surrogates
from worker_service.handlers.contract import (
    Done,
    File,
    Handler,
    PauseSource,
    Permanent,
    Retryable,
    SameFile,
    Snooze,
    Stopped,
)
from worker_service.jobs.documents import RepublishedFile
from worker_service.runner import sandbox
from worker_service.runner.context import ChildContext
from worker_service.runner.messages import MESSAGE_CHARACTERS_MAX, Ended, How, Order, Publication
from worker_service.runner.protocol import FRAME_BYTES_MAX, encode_frame

_DIGEST = re.compile(r"[0-9a-f]*")
_OWN_DIRECTORY = Path(__file__).parent


def call_handler(handler: Handler[Any], order: Order, context: ChildContext) -> Ended:
    done = handler.run(context)
    if done is None:
        done = Done()
    if not isinstance(done, Done):
        raise TypeError(f"{handler.job_type} returned {type(done).__name__}: a handler returns Done or None")
    ended = _done_outcome(order, done, context.staging)
    # Encode only results that may be large.
    if (ended.result or ended.follow_ups or ended.published) and len(encode_frame(ended)) > FRAME_BYTES_MAX:
        raise Permanent("RESULT_TOO_LARGE", f"the result takes more than {FRAME_BYTES_MAX} bytes", "write a file")
    return ended


def outcome_of(order: Order, attempt: Callable[[], Ended]) -> Ended:
    def ended(how: How, code: str, message: object, remedy: object = "", after: float | None = None) -> Ended:
        detail, remedy_text = (strip_surrogates(clip(str(one), MESSAGE_CHARACTERS_MAX)) for one in (message, remedy))
        return Ended(*order.key, how, code=code, message=detail, remedy=remedy_text, after_seconds=after)

    try:
        return attempt()
    except Permanent as error:
        return ended(How.PERMANENT, *error.problem)
    except Retryable as error:
        return ended(How.RETRYABLE, *error.problem, error.after)
    except Snooze as error:
        return ended(How.SNOOZED, *error.problem, _delay_of(error))
    except PauseSource as error:
        return msgspec.structs.replace(
            ended(How.SNOOZED, *error.problem, max(float(error.after), 0.0)), pauses_source=True
        )
    except sandbox.SandboxError as error:
        return ended(How.RETRYABLE, "SANDBOX_UNAVAILABLE", error)
    except MemoryError:
        return ended(How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows")
    except Stopped:
        # The fork server ignores this outcome if it sent the signal itself.
        return ended(How.RETRYABLE, "INTERRUPTED", "somebody else sent it SIGTERM")
    except BaseException as error:  # any exception of a handler is an outcome, sys.exit() included
        return ended(How.RETRYABLE, "HANDLER_ERROR", _describe_bug(error))


def _describe_bug(error: BaseException) -> str:
    steps = error.__traceback__
    while steps is not None and Path(steps.tb_frame.f_code.co_filename).parent == _OWN_DIRECTORY:
        steps = steps.tb_next
    with contextlib.suppress(Exception):  # the handler may have broken stderr
        traceback.print_exception(type(error), error, steps)
    first, newline, more = _describe_exception(error).partition("\n")
    return f"{first}{_location(steps)}{newline}{more}".strip()


def _describe_exception(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # its __str__ may raise anything
        message = ""
    return f"{name}: {message}" if message else name


def _location(steps: TracebackType | None) -> str:
    frames = traceback.extract_tb(steps)
    if not frames:
        return ""
    home = Path(frames[0].filename).parent
    *_, inner = [encode_frame for encode_frame in frames if Path(encode_frame.filename).parent.is_relative_to(home)]
    return f" ({Path(inner.filename).name}:{inner.lineno} in {inner.name})"


def is_clean(ended: Ended) -> bool:
    is_chosen = ended.how in (How.DONE, How.PERMANENT, How.RETRYABLE, How.SNOOZED)
    return is_chosen and ended.code not in ("HANDLER_ERROR", "SANDBOX_UNAVAILABLE", "INTERRUPTED")


def _done_outcome(order: Order, done: Done, staging: Path) -> Ended:
    files: list[Publication] = []
    files_again: list[RepublishedFile] = []
    for one in done.files:
        if isinstance(one, SameFile):
            files_again.append(RepublishedFile(one.file_id, one.role, strip_surrogates(one.name)))
        else:
            files.append(_publication(one if isinstance(one, File) else File(one), staging))
    for directory in {staging / file.path.parent for file in files}:
        sync_path(directory)
    result = None if done.result is None else json.dumps(done.result, ensure_ascii=False, allow_nan=False)
    return Ended(
        *order.key,
        How.DONE,
        result=result,
        follow_ups=list(done.follow_ups),
        published=files,
        published_again=files_again,
        document=done.document,
        publishes=done.publishes,
    )


def _publication(file: File, staging: Path) -> Publication:
    path = staging / file.path
    if not path.resolve().is_relative_to(staging.resolve()) or path.is_symlink() or not path.is_file():
        raise ValueError(f"{file.path} is not a file in the staging directory: only such files can be published")
    for digest, length in ((file.sha256, 64), (file.md5, 32)):
        if digest and (len(digest) != length or not _DIGEST.fullmatch(digest)):
            raise ValueError(f"{file.path}: {digest[:80]!r} is no digest: give {length} hexadecimal digits, small ones")
    sync_path(path)
    # Relative, because the fork server moves the directory.
    path = path.resolve().relative_to(staging.resolve())
    return Publication(path, file.role, strip_surrogates(file.name), file.sha256, file.md5, strip_surrogates(file.note))


def _delay_of(snooze: Snooze) -> float:
    if snooze.until is None:
        return max(float(snooze.after or 0.0), 0.0)
    return max((snooze.until - datetime.now(UTC)).total_seconds(), 0.0)
