"""What a handler may ask, and what it is answered, as it is said between child and daemon.

Used by the child that asks, by the nursery that looks at every question before it passes it on, and by whoever
answers. What does not fit is a `ValueError` with a sentence. Who knows the answers is not known here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from worker_service.jobs.documents import QUESTIONS, Answer, CrawlItems, DocumentPages, KnownPages, Question

PAGES_AT_ONCE = 1000
LAYOUTS_AT_ONCE = 100
NAMES_AT_ONCE = 50_000
"""Digests of pages, ids of a crawl."""


def question_text(question: Question[Any]) -> tuple[str, str]:
    """Its kind, and the rest as JSON."""
    kind = type(question).__name__
    if QUESTIONS.get(kind, (None,))[0] is not type(question):
        raise ValueError(f"{kind} is not a question: ask one of {', '.join(QUESTIONS)}")
    _check_bounds(question)
    return kind, msgspec.json.encode(question).decode()


def question_from(kind: str, body: str) -> Question[Answer]:
    if kind not in QUESTIONS:
        raise ValueError(f"there is no question {kind[:40]!r}")
    question: Question[Answer] = _decoded(body, QUESTIONS[kind][0])
    _check_bounds(question)
    return question


def answer_from(kind: str, body: bytes | msgspec.Raw) -> Answer:
    answer: Answer = _decoded(body, QUESTIONS[kind][1])
    return answer


def answer_to_nothing(question: Question[Any]) -> Answer:
    """Where nothing is known."""
    return QUESTIONS[type(question).__name__][1]()


# Made before children are forked, which would each learn anew what the types hold.
_decoders = {kind: msgspec.json.Decoder(kind) for pair in QUESTIONS.values() for kind in pair}


def _decoded(body: str | bytes | msgspec.Raw, kind: type[Any]) -> Any:
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
    names = question.digests if isinstance(question, KnownPages) else ()
    names = question.ids if isinstance(question, CrawlItems) else names
    if len(names) > NAMES_AT_ONCE:
        raise ValueError(f"ask for at most {NAMES_AT_ONCE} at once, not {len(names)}")
