"""What the audit tables must say if every promise was kept: the invariants over attempts and events, as sentences.

`Store.audit` runs them: for `pagemill db check`, for the chaos run and for whoever simulates. Ids of events are the
clock here, never times: they grow with each commit, while a wall clock may be stepped. Nobody's attempts overlap if
each attempt has one start and one end among the events, and the events of a job form a chain: that is how it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from worker_service.jobs.retries import REQUEUES_MAX

SENTENCES_MOST = 20
"""Of each rule. Where one broke a million times, the first twenty tell why."""

Read = Callable[[str, dict[str, object]], list[tuple[str]]]

RULES = (
    # P1, P2: from pending on, each event begins where the one before it ended; the fence grows by one at each start.
    "history_chain",
    # P4: the row says what its last event says; a completed one has its completed attempt.
    "history_rows",
    # P1, P5: one start for each attempt, and one end, to where its outcome leads.
    "history_attempts",
    # P1: no start and no end without an attempt.
    "history_strays",
    # P6: retries and requeues are counted, and capped.
    "history_caps",
    # P7: who was asked to stop still runs, or was cancelled.
    "history_cancels",
    # P8: of the jobs with one concurrency_key, one began only after the other had ended.
    "history_keys",
    # P11: no live work of an older generation that was not asked to stop; no page of a generation to come.
    "history_generations",
    # P11: a document is queued or indexing exactly while a job of its newest generation lives, or else it has failed.
    "history_documents",
    # P5: a success has the files and the completed job that made it one; each page has its result.
    "history_published",
)


def broken(read: Read) -> Iterator[str]:
    """`read` runs a named statement. A sentence for each thing that breaks a promise."""
    for rule in RULES:
        values: dict[str, object] = {"most": SENTENCES_MOST}
        if rule == "history_caps":
            values["requeues_max"] = REQUEUES_MAX
        for (sentence,) in read(rule, values):
            yield sentence
