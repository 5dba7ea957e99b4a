"""Encode, decode and bound the questions of handlers to the daemon (`context.ask`), and the answers."""

from __future__ import annotations

from typing import Any

import msgspec

from worker_service.jobs.documents import QUESTIONS, CrawlItems, DocumentPages, KnownPages, Question, QuestionAnswer

# Most pages, pages with their layout, and digests or ids, in one question: larger answers do not fit in a message.
PAGES_AT_ONCE = 1000
LAYOUTS_AT_ONCE = 100
NAMES_AT_ONCE = 50_000


def encode_question(question: Question[Any]) -> tuple[str, str]:
    kind = type(question).__name__
    if QUESTIONS.get(kind, (None,))[0] is not type(question):
        raise ValueError(f"{kind} is not a question: ask one of {', '.join(QUESTIONS)}")
    _check_bounds(question)
    return kind, msgspec.json.encode(question).decode()


def decode_question(kind: str, body: str) -> Question[QuestionAnswer]:
    if kind not in QUESTIONS:
        raise ValueError(f"there is no question {kind[:40]!r}")
    question: Question[QuestionAnswer] = _decode(body, QUESTIONS[kind][0])
    _check_bounds(question)
    return question


def decode_answer(kind: str, body: bytes | msgspec.Raw) -> QuestionAnswer:
    answer: QuestionAnswer = _decode(body, QUESTIONS[kind][1])
    return answer


def empty_answer(question: Question[Any]) -> QuestionAnswer:
    return QUESTIONS[type(question).__name__][1]()


# Created before children are forked, so that no child has to analyse the types again.
_decoders = {kind: msgspec.json.Decoder(kind) for pair in QUESTIONS.values() for kind in pair}


def _decode(body: str | bytes | msgspec.Raw, kind: type[Any]) -> Any:
    try:
        return _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from error


def _check_bounds(question: Question[Any]) -> None:
    if isinstance(question, DocumentPages):
        most = LAYOUTS_AT_ONCE if question.with_layout else PAGES_AT_ONCE
        if question.last - question.first >= most:
            layout = " with their layout" if question.with_layout else ""
            raise ValueError(f"ask for at most {most} pages{layout} at once, not {question.first} to {question.last}")
    elif isinstance(question, KnownPages | CrawlItems):
        names = question.digests if isinstance(question, KnownPages) else question.ids
        if len(names) > NAMES_AT_ONCE:
            raise ValueError(f"ask for at most {NAMES_AT_ONCE} at once, not {len(names)}")
