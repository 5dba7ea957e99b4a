"""The store and the daemon with one guard taken away each, and who notices: what random engines of the tests are worth.

A mutant is pieces of the source and what stands there instead. Each piece has to stand in one place exactly, in
whatever file that is: a mutant whose guard has gone says so, instead of testing nothing.

`found_by` is measured: the simulation finds what it is named for in each run of the tests; for the others

    python -m tests.simulation.mutants --only "pages without,BEGIN" contract=tests/store races=tests/store/test_races.py

plants one after another in a copy of the checkout and runs there what is named. A machine of random moves beside a
model in memory, and a daemon ended between any two statements, found none that these do not, and are gone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from tests.simulation.store_pool import StorePool
from worker_service.store.statements import sqlite_statements

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    promise: str
    found_by: str
    edits: tuple[tuple[str, str], ...]

    def texts(self) -> dict[Path, str]:
        """Return the changed files."""
        changed: dict[Path, str] = {}
        for old, new in self.edits:
            places = [path for path, text in sources().items() if old in text]
            one_place = len(places) == 1 and sources()[places[0]].count(old) == 1
            assert one_place, f"{self.name}: {old!r} stands not once but in {places}: take away what is there now"
            changed[places[0]] = changed.get(places[0], sources()[places[0]]).replace(old, new)
        return changed

    @contextmanager
    def stores(self) -> Iterator[StorePool]:
        """Return stores with the mutant at work."""
        # `initialise` keeps the statements that it reads first in a process: let it read the real ones, or later tests
        # of this process would run with the mutant's.
        with StorePool():
            pass
        with ExitStack() as stack:
            changed = self.texts()
            stack.enter_context(_read_instead(changed))
            for path, text in changed.items():
                if path.suffix == ".py":
                    _swap_functions(path, text, stack)
            yield stack.enter_context(StorePool(sqlite_statements()))


@cache
def sources() -> dict[Path, str]:
    package = CHECKOUT / "worker_service"
    paths = [CHECKOUT / "schema.sql", *sorted(package.rglob("*.py")), *sorted(package.rglob("*.sql"))]
    return {path: path.read_text() for path in paths if "migrations" not in path.parts}


@contextmanager
def _read_instead(texts: dict[Path, str]) -> Iterator[None]:
    real = Path.read_text

    def read(path: Path, *arguments: str | None) -> str:
        return texts[path] if path in texts else real(path, *arguments)

    setattr(Path, "read_text", read)  # noqa: B010  typed otherwise
    try:
        yield
    finally:
        setattr(Path, "read_text", real)  # noqa: B010


def _swap_functions(path: Path, text: str, stack: ExitStack) -> None:
    """Give each function of the module the code of this text, also where it is referred to already."""
    module = next(one for one in list(sys.modules.values()) if getattr(one, "__file__", None) == str(path))
    codes = {code.co_qualname: code for code in _codes(compile(text, str(path), "exec"))}
    owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
    for function in (one for owner in owners for one in list(vars(owner).values())):
        # What a decorator has made, or a dataclass, is not its text's own.
        if isinstance(function, FunctionType) and function.__code__.co_filename == str(path):
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = codes[function.__qualname__]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


# fmt: off
_CLOSE = "WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL AND {holds_lease}\n"
_CLOSE_ANY = "WHERE job_id = :job_id AND ended_at IS NULL\n"
_RELEASE = "SET {pending_again}, run_at = NULL, held = (concurrency_key IS NOT NULL) * 8\n WHERE id = :job_id AND "
_FAIL = "error_message = :error_message,\n       error_remedy = :error_remedy\n WHERE id = :job_id AND "

MUTANTS = (
    Mutant("complete without a fence", "P2", "simulation", (
        (" AND q.fence = d.fence AND q.worker_id = d.worker_id", ""),
        (" AND worker_job_queue.fence = d.fence AND worker_job_queue.worker_id = d.worker_id", ""))),
    Mutant("release without a fence", "P2", "simulation", (
        (_CLOSE, _CLOSE_ANY), (_RELEASE + "fence = :fence AND ", _RELEASE))),
    Mutant("fail without a fence", "P2", "simulation", (
        ("max_retries FROM worker_job_queue\n WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id AND",
         "max_retries FROM worker_job_queue\n WHERE id = :job_id AND"), (_CLOSE, _CLOSE_ANY),
        (_FAIL + "fence = :fence AND status = 'running';\n\n-- fragment: pending_again",
         _FAIL + "status = 'running';\n\n-- fragment: pending_again"))),
    Mutant("report without a fence", "P2", "simulation", (
        (":now, progress_at)\n WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id",
         ":now, progress_at)\n WHERE id = :job_id"),)),
    Mutant("beat without a fence", "P2", "simulation", (
        (" AND fence = l.value ->> 1 AND worker_id = :worker_id AND", " AND"),)),
    Mutant("pages without a lease", "P2", "contract", (
        ("q.generation\n WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id"
         " AND q.status = 'running'", "q.generation\n WHERE q.id = :job_id"),)),
    Mutant("claim that selects, then updates", "P1", "simulation", (
        ("-- name: worker_is_known",
         "-- name: take\nUPDATE worker_job_queue SET {as_running} WHERE id = :job_id RETURNING {job_columns};\n\n"
         "-- name: worker_is_known"),
        ("        try:\n            with self._db.transaction():\n                values = claim_values(",
         "        values = claim_values(self._db, worker_id, job_class)\n"
         "        with self._db.transaction():\n"
         "            make_ready(self._db, values['now'])\n"
         "        chosen = self._db.read('next_turn', **values)\n"
         "        with self._db.transaction():\n"
         "            return [Job.from_row(r) for j, in chosen for r in self._db.write('take', job_id=j, **values)]\n"
         "        try:\n            with self._db.transaction():\n                values = claim_values("))),
    Mutant("BEGIN that locks nothing", "P1", "races", (
        ('self._connection.execute("BEGIN IMMEDIATE")', 'self._connection.execute("BEGIN")'),)),
    Mutant("no cap of requeues", "P6", "simulation", (
        ("WHEN q.requeue_count >= :requeues_max THEN 'too often'", ""),)),
    Mutant("no cap of retries", "P6", "contract", (
        ("if retry_at is not None and has_retry_left:", "if retry_at is not None:"),)),
    Mutant("release that costs a requeue", "P6", "simulation", (
        ("SET {pending_again}, run_at = NULL, held =",
         "SET {pending_again}, requeue_count = requeue_count + 1, run_at = NULL, held ="),)),
    Mutant("at most once, again", "P6", "simulation", (
        ("AND h.at_most_once) THEN 'at most once'", "AND h.at_most_once) THEN 'pending'"),)),
    Mutant("complete that overtakes a cancel", "P7", "simulation", (
        ("\n   AND q.cancel_requested_at IS NULL\n WHERE worker_job_attempt", "\n WHERE worker_job_attempt"),)),
    Mutant("requeue that forgets a cancel", "P7", "simulation", (
        ("CASE WHEN q.cancel_requested_at IS NOT NULL THEN 'cancelled'\n            WHEN EXISTS",
         "CASE WHEN EXISTS"),)),
    Mutant("type limit not counted", "P8", "simulation", (
        ("has_capacity = capacity.left_for_type(head.job_type, 1) > 0", "has_capacity = True"),
        ("min(most, capacity.left_for_type(lane.job_type, most), capacity", "min(most, capacity"))),
    Mutant("owner limit not counted", "P8", "simulation", (
        ("if owner_heads and capacity.left_for_owner(owner, 1) > 0:", "if owner_heads:"),
        ("capacity.left_for_type(lane.job_type, most), capacity.left_for_owner(lane.owner, most))",
         "capacity.left_for_type(lane.job_type, most))"))),
    Mutant("slots not counted", "P8", "contract", (
        ("most = min(most, class_capacity)", "most = max(most, 0)"),)),
    Mutant("two of one concurrency key", "P8", "simulation", (
        ("if has_capacity and (key is None or key not in keys):", "if has_capacity:"),
        ("CREATE UNIQUE INDEX job_key_running ON", "CREATE INDEX job_key_running ON"))),
    Mutant("turns of owners forgotten", "P9", "contract", (
        ("(capacity.by_owner[owner], owner_turns[owner], owner_heads", "(0, 0, owner_heads"),
        ("heapreplace(owners, (running, owner_turns[owner], owner_heads", "heapreplace(owners, (0, 0, owner_heads"))),
    Mutant("unique key ignored", "P3", "contract", (
        ('CREATE UNIQUE INDEX "a live job already', 'CREATE INDEX "a live job already'),)),
    Mutant("due jobs never freed", "P3", "simulation", (
        ("SET held = held & ~3\n WHERE id IN (SELECT q.id\n", "SET held = held\n WHERE id IN (SELECT q.id\n"),)),
    Mutant("waiting jobs never freed", "P3", "contract", (
        ("SET held = held & ~4\n WHERE id IN (SELECT q.id FROM worker_job_dependency",
         "SET held = held\n WHERE id IN (SELECT q.id FROM worker_job_dependency"),)),
    Mutant("progress may fall", "P10", "simulation", (
        ("progress_percent = max(progress_percent, :percent)", "progress_percent = :percent"),)),
    Mutant("completion in two transactions", "P5", "simulation", (
        ("            has_no_effects = not with_effects",
         "        with self._db.transaction():\n            has_no_effects = not with_effects"),)),
    Mutant("follow-ups of a refused completion", "P2", "simulation", (
        ("            has_no_effects = not with_effects",
         "            for lost in (d for d in completions if d.lease not in has_document_by_lease):\n"
         "                from worker_service.store.completions import ParentJob\n"
         "                parent = ParentJob(1, None, None, '', '', None, None, 5)\n"
         "                self._store.completions.insert_follow_ups(parent, lost.follow_ups)\n"
         "            has_no_effects = not with_effects"),)),
    Mutant("files of a refused completion kept", "P5", "contract", (
        ("                # Retract last: if the write above fails, the outcome is retried and needs the files.\n"
         "                self.publisher.retract(ended)\n", ""),)),
    Mutant("completed before its files are moved", "P5", "simulation", (
        ("for attempt, ended in ready if self._try_publish(attempt, ended)]", "for attempt, ended in ready]"),
        ("path, size = str(target.relative_to(self.workspace)), target.stat().st_size",
         "path, size = str(target.relative_to(self.workspace)), 1"))),
    Mutant("older generation left at work", "P11", "contract", (
        ("WHERE document_id = :document_id AND generation < :generation AND status = 'pending'", "WHERE 0"),
        ("WHERE document_id = :document_id AND generation < :generation AND status = 'running'", "WHERE 0"))),
    Mutant("a claim that gates do not bind", "P12", "simulation", (
        ("w.id = :worker_id AND NOT EXISTS ({worker_gates})\n", "w.id = :worker_id\n"),)),
    Mutant("requeue of a worker that lives", "P1", "simulation", (
        ("    if seen.is_lock_free or seen.is_rebooted:\n        return Fate.GONE", "    return Fate.GONE"),)),
    Mutant("orphans never taken back", "P3", "simulation", (
        ("        if fate is Fate.GONE:\n            # A grandchild",
         "        if fate is None:\n            # A grandchild"),
        ("        elif fate is Fate.SILENT:\n", "        elif fate is None:\n"))),
    Mutant("silent workers believed", "P3", "contract", (
        ("return Fate.SILENT if silent_seconds >= orphan_after_seconds else Fate.ALIVE", "return Fate.ALIVE"),)),
    Mutant("row of a dead worker kept", "P1", "simulation", (
        ('            self._db.write("forget_worker", worker_id=worker_id)\n', ""),)),
    Mutant("claim that nobody heard of kept", "P13", "simulation", (
        ("        for row in row_by_key.values():\n", "        for row in ():\n"),)),
    Mutant("worker that never fences itself", "P1", "simulation", (
        ("was_fenced, self.is_fenced = self.is_fenced, self.is_silent", "was_fenced = self.is_fenced"),)),
    Mutant("children of a fenced worker left at work", "P1", "simulation", (
        ("attempt.without_grace or self.ownership.is_fenced or", "attempt.without_grace or"),)),
    Mutant("lost children left at work", "P13", "simulation", (
        ("by_force = attempt.is_lost or attempt.without_grace", "by_force = attempt.without_grace"),)),
    Mutant("job that comes back to a stopped batch ready", "P12", "simulation", (
        ("WHERE id = NEW.id AND NEW.batch_id IS NOT NULL AND NEW.status = 'pending'\n", "WHERE 0\n"),)),
    Mutant("job that comes in ready to a stopped batch", "P12", "simulation", (
        ("(SELECT 1 FROM batch b WHERE b.id = NEW.batch_id AND b.state IN ('stopped', 'waiting')) * 16",
         "(SELECT 1) * 0"),
    )),
    Mutant("batch that nobody sees ending", "P3", "simulation", (
        ("SELECT NEW.batch_id\n     WHERE NEW.batch_id IS NOT NULL AND NEW.status NOT",
         "SELECT 1\n     WHERE 0 AND NEW.status NOT"),
    )),
    Mutant("batch that ends before its jobs", "P3", "simulation", (
        ("q.batch_id = batch.id AND q.status IN ('pending', 'running'))", "0)"),
        ("batch_id = OLD.id AND status IN ('pending', 'running'))\n            THEN", "0)\n            THEN"),
    )),
)
# fmt: on


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name has one of these words, between commas")
    parser.add_argument("engines", nargs="+", metavar="NAME=ARGUMENTS", help="what pytest is to be given")
    given = parser.parse_args(words)
    place = Path(tempfile.mkdtemp())
    names = subprocess.check_output(["git", "ls-files"], cwd=CHECKOUT, text=True).splitlines()
    for name in (one for one in names if (CHECKOUT / one).is_file()):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / name, place / name)
    for mutant in MUTANTS:
        if not any(word in mutant.name for word in given.only.split(",")):
            continue
        changed = {place / path.relative_to(CHECKOUT): text for path, text in mutant.texts().items()}
        kept = {path: path.read_text() for path in changed}
        for path, text in changed.items():
            path.write_text(text)
        found = [name for name, _, what in (one.partition("=") for one in given.engines) if _fails(place, what)]
        print(f"{mutant.promise} {mutant.name}: {', '.join(found) or 'nobody'}", flush=True)
        for path, text in kept.items():
            path.write_text(text)
    shutil.rmtree(place)
    return 0


def _fails(place: Path, what: str) -> bool:
    run = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *what.split()]
    return (
        subprocess.run(run, cwd=place, env=os.environ | {"PYTHONPATH": str(place)}, capture_output=True).returncode != 0
    )


if __name__ == "__main__":
    sys.exit(main())
