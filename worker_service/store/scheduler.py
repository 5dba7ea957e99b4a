"""Fair scheduling of claims between owners, within the concurrency limits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from worker_service.store.database import Database
from worker_service.store.mending import Row

_Claim = Mapping[str, object]

_Head = tuple[int, bytes, int]
"""Priority, created_at and id of the first ready job of a lane. Text is bytes, since it may not be UTF-8."""

_LANES_KNOWN_LEAST = 4
"""Minimum number of lanes for caching. Reading fewer lanes again costs no more than reading the changed ones."""
_TOUCHED_MOST = 1000


@dataclass(slots=True)
class _Known:
    """Cache of the last walk over the lanes, all of them open, and the ids of jobs written since."""

    worker_id: object
    job_class: object
    version: int
    heads: dict[Row, _Head]
    served: dict[bytes, int]
    touched: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Rooms:
    """Number of jobs of each type and owner that may still be started."""

    by_owner: Counter[bytes]
    by_type: Counter[bytes]
    limits: dict[tuple[str, bytes], int]

    def of_type(self, job_type: bytes, most: int) -> int:
        limit = self.limits.get(("type", job_type))
        return most if limit is None else limit - self.by_type[job_type]

    def of_owner(self, owner: bytes, most: int) -> int:
        limit = self.limits.get(("owner", owner), self.limits.get(("owner", b"*")) if owner else None)
        return most if limit is None else limit - self.by_owner[owner]


class Scheduler:
    """Selects the next job from the open lanes.

    The owner with the fewest running jobs is next, then the one served longest ago (P9); then priority, age, id. No
    limit is exceeded (P8).

    A claim of one job reuses the last walk over the lanes while no other connection has committed. SQLite's update
    hook names the jobs that this connection has written to, and only their lanes are read again. The cached order may
    be outdated, so the claiming statement checks the gates of the job again.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._known: _Known | None = None

    def claim(self, values: _Claim, most: int, only: Sequence[str] | None) -> list[Row]:
        """Claim jobs within the caller's transaction, ending at the first job whose type is not in `only`."""
        types = None if only is None else {job_type.encode() for job_type in only}
        if most == 1 and (known := self._still_known(values)) is not None:
            found = self._first(known, types)
            if found is not None and (rows := self._db.write("claim_one", id=found, **values)):
                return rows
            self.forget()
        in_turn = self._in_turn(values, most, types)
        if len(in_turn) < 2:
            return [row for job_id in in_turn for row in self._db.write("claim", id=job_id, **values)]
        ids = json.dumps(in_turn)
        self._db.write("take", ids=ids, **values)
        return self._db.look("taken", ids=ids)

    def served(self, rows: Sequence[Row]) -> None:
        if self._known is not None:
            self._known.served |= dict(rows)

    def forget(self) -> None:
        if self._known is not None:
            self._known = None
            self._db.writer.set_update_hook(None)

    # ── Walk over the lanes ──

    def _in_turn(self, values: _Claim, most: int, types: set[bytes] | None) -> list[int]:
        lanes = self._db.write("lanes_of_worker", **values)
        is_open = [lane for lane in lanes if lane[-1]]
        if not is_open:
            return []
        if len(is_open) == len(lanes) >= _LANES_KNOWN_LEAST:
            known = self._know(values, lanes)
            if most == 1:
                found = self._first(known, types)
                return [] if found is None else [found]
        if most > 1:
            [(class_room,)] = self._db.write("class_room", **values)
            most = min(most, class_room)
        if len(is_open) > 1:
            return self._merged(is_open, self._rooms(), most, types)
        [(_, _, job_id, _, job_type, owner, *_)] = is_open
        if types is not None and job_type not in types:
            return []
        if most > 1:
            rooms = self._rooms()
            most = min(most, rooms.of_type(job_type, most), rooms.of_owner(owner, most))
        return [job_id, *map(itemgetter(2), self._behind(job_id, most - 1))]

    def _merged(self, lanes: Sequence[Row], rooms: _Rooms, most: int, types: set[bytes] | None) -> list[int]:
        # One heap per owner with the next job of each of its lanes, and one heap of the owners.
        heads: dict[bytes, list[tuple[Row, bytes, list[Row], int]]] = defaultdict(list)
        served: dict[bytes, int] = {}
        for *head, key, job_type, owner, _, owner_served, _ in lanes:
            heads[owner].append(((*head, key), job_type, [], 1))
            served[owner] = owner_served
        for own in heads.values():
            heapify(own)
        turns = [(rooms.by_owner[owner], served[owner], own[0][0][:3], owner) for owner, own in heads.items()]
        heapify(turns)
        taken: list[int] = []
        keys: set[object] = set()
        while turns and len(taken) < most:
            running, _, _, owner = turns[0]
            own = heads[owner]
            (_, _, job_id, key), job_type, ready, asked = own[0]
            is_free = rooms.of_type(job_type, 1) > 0
            if is_free and (key is None or key not in keys):
                if types is not None and job_type not in types:
                    break
                taken.append(job_id)
                keys.add(key)
                running += 1
                rooms.by_owner[owner] += 1
                rooms.by_type[job_type] += 1
            if is_free and not ready and asked:
                # Double the number of rows read at each visit of a lane, so that few are read without being claimed.
                ready = self._behind(job_id, asked)[::-1]
                asked = 2 * asked if len(ready) == asked else 0
            if is_free and ready:
                heapreplace(own, (ready.pop(), job_type, ready, asked))
            else:
                heappop(own)
            if own and rooms.of_owner(owner, 1) > 0:
                heapreplace(turns, (running, served[owner], own[0][0][:3], owner))
            else:
                heappop(turns)
        return taken

    def _behind(self, job_id: int, most: int) -> list[Row]:
        """Return the ready jobs that follow this one in its lane."""
        return self._db.write("behind", job_id=job_id, most=most) if most > 0 else []

    def _rooms(self) -> _Rooms:
        by_owner, by_type = Counter[bytes](), Counter[bytes]()
        for owner, job_type, count in self._db.write("running_by_lane"):
            by_owner[owner] += count
            by_type[job_type] += count
        return _Rooms(by_owner, by_type, {(kind, name): most for kind, name, most in self._db.write("lane_limits")})

    # ── Cached lanes ──

    def _know(self, values: _Claim, lanes: Sequence[Row]) -> _Known:
        heads = {lane[4:7]: lane[:3] for lane in lanes}
        served = {owner: number for *_, owner, _, number, _ in lanes}
        self._known = _Known(values["worker_id"], values["job_class"], self._version(), heads, served)
        self._db.writer.set_update_hook(self._touch)
        return self._known

    def _touch(self, kind: int, database: str, table: str, row_id: int) -> None:
        if table == "worker_job_queue" and self._known is not None:
            self._known.touched.add(row_id)

    def _version(self) -> int:
        [(version,)] = self._db.writer.execute("PRAGMA data_version").fetchall()
        return int(str(version))

    def _still_known(self, values: _Claim) -> _Known | None:
        known = self._known
        if known is None or self._db.is_mending:
            return None
        is_same = known.worker_id == values["worker_id"] and known.job_class == values["job_class"]
        if not is_same or known.version != self._version() or len(known.touched) > _TOUCHED_MOST:
            self.forget()
            return None
        if known.touched and not self._look_again(known, values):
            self.forget()
            return None
        return known

    def _look_again(self, known: _Known, values: _Claim) -> bool:
        """Read the lanes of the jobs that were written to. Return False if one of these jobs no longer exists."""
        touched, known.touched = known.touched, set()
        rows = self._db.write("lanes_of_jobs", ids=json.dumps(list(touched)), **values)
        for *head, job_type, owner, source, served, is_mine in rows:
            touched.discard(head.pop())
            if not is_mine:
                continue
            if head[2] is None:
                known.heads.pop((job_type, owner, source), None)
            else:
                known.heads[job_type, owner, source] = (head[0], head[1], head[2])
                known.served[owner] = served
        return not touched

    def _first(self, known: _Known, types: set[bytes] | None) -> int | None:
        rooms = self._rooms()
        running, served, limits = rooms.by_owner, known.served, rooms.limits
        first = min(
            (
                (running[owner], served[owner], head, job_type)
                for (job_type, owner, _), head in known.heads.items()
                if not limits or (rooms.of_type(job_type, 1) > 0 and rooms.of_owner(owner, 1) > 0)
            ),
            default=None,
        )
        if first is None or (types is not None and first[3] not in types):
            return None
        return first[2][2]
