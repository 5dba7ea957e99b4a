"""Who asks, and what they may: nobody gets further than this without a name.

A visitor is told once for each request, before any page or endpoint runs. To look needs the scope `read`, everything
else `operate`; what needs `admin` says so itself (`must`). A visitor of one owner sees that owner's things and nothing
else: whatever lists asks `only`, whatever shows one thing asks `may_see`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar, cast

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from worker_service.config import Settings
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.web.problems import NotAllowed

S = TypeVar("S", Selector, DocumentSelector)

OPEN = ("/healthz", "/readyz", "/static/")
"""What anybody may ask for."""


class Power(StrEnum):
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str
    """The actor of every action."""
    powers: frozenset[Power]
    owner: str | None = None
    """Whose things are seen; None: everybody's."""
    csrf: str = ""
    """What a form of theirs has to carry; empty: no browser stands between us."""

    def has_made(self, csrf: str) -> bool:
        return hmac.compare_digest(csrf.encode(), self.csrf.encode())

    def may(self, power: Power) -> bool:
        return power in self.powers

    def must(self, power: Power) -> None:
        if power not in self.powers:
            raise NotAllowed(f"this needs the scope {power}, which {self.name} has not")

    def must_be_of_all(self) -> None:
        """For what is of no owner, or of all: workers, settings, pauses."""
        if self.owner is not None:
            raise NotAllowed(f"{self.name} is for the things of {self.owner} only")

    def may_see(self, owner: str | None) -> bool:
        """False: answer as if it were not there."""
        return self.owner is None or owner == self.owner

    def only(self, selector: S) -> S:
        """What it selects of what this visitor may see."""
        if self.owner is None:
            return selector
        mine = replace(selector, owners=(self.owner,))
        if not selector.owners or self.owner in selector.owners:
            return mine
        # Of both at once there is nothing.
        nothing: dict[str, Any] = {name: () for name in ("batch_ids", "document_ids") if hasattr(mine, name)}
        return replace(mine, **nothing | {"ids": (0,)})


def settings_of(request: HTTPConnection) -> Settings:
    return cast(Settings, request.app.state.settings)


def visitor_of(request: HTTPConnection) -> Visitor:
    return cast(Visitor, request.state.visitor)


class Access:
    """Lets nobody pass who is nobody."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            scope.setdefault("state", {})["visitor"] = Visitor("local", frozenset(Power))
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    return any(path == one or (one.endswith("/") and path.startswith(one)) for one in OPEN)
