from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from worker_service.jobs.tokens import NewToken, Token, TokenKind
from worker_service.store.database import StorePart
from worker_service.store.job_control import add_action_item, begin_action


class Tokens(StorePart):
    def make(self, new: NewToken) -> int | None:
        """Return None if the name is taken."""
        with self._db.transaction():
            token_id = self._insert(new, None)
            if token_id is not None:
                title = _title_of(new.kind, new.name, new.scopes, new.owner)
                self._record_action("make_token", new.made_by, {token_id: title})
            return token_id

    def begin_session(self, token_id: int, new: NewToken) -> int | None:
        """Return None if the token or link was removed, used or has expired."""
        with self._db.transaction():
            if not self._db.write("use_token", id=token_id, now=self._db.now()):
                return None
            return self._insert(new, token_id)

    def find(self, token_id: int) -> tuple[Token, str] | None:
        """Return the token, even if expired, and the digest of its secret."""
        for *row, digest in self._db.read("find_token", id=token_id):
            return _token_from(row), digest
        return None

    def list(self) -> Sequence[Token]:
        return [_token_from(row) for row in self._db.read("tokens")]

    def remove(self, ids: Sequence[int], *, actor: str | None) -> int:
        with self._db.transaction():
            removed = self._db.write("remove_tokens", ids=json.dumps([*ids]))
            # Sessions of these tokens were removed too, and are not listed.
            titles = {token_id: _title_of(*columns) for token_id, *columns in removed if token_id in ids}
            if titles and actor is not None:
                self._record_action("remove_token", actor, titles)
        return len(titles)

    def note_use(self, used: Mapping[int, str]) -> None:
        with self._db.transaction():
            self._db.write_each("note_use_of_token", [{"id": token_id, "at": at} for token_id, at in used.items()])

    def forget_ended(self) -> int:
        """Delete expired links and sessions. Return their number."""
        with self._db.transaction():
            return len(self._db.write("forget_ended_tokens", now=self._db.now()))

    def _insert(self, new: NewToken, parent_id: int | None) -> int | None:
        for (token_id,) in self._db.write("make_token", **asdict(new), now=self._db.now(), token_id=parent_id):
            return int(token_id)
        return None

    def _record_action(self, verb: str, actor: str, titles: Mapping[int, str]) -> None:
        action_id = begin_action(self._db, verb, actor)
        for token_id, title in titles.items():
            add_action_item(self._db, action_id, token_id, title)


def _title_of(kind: str, name: str, scopes: str, owner: str | None) -> str:
    return f"{kind} {name} ({scopes}{f', only of {owner}' if owner else ''})"


def _token_from(row: Sequence[Any]) -> Token:
    token_id, kind, *rest = row
    return Token(token_id, TokenKind(kind), *rest)
