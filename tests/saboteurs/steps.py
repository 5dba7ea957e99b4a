"""A good handler that goes on where it was stopped, and one that begins again."""

from dataclasses import dataclass
from typing import Any

from worker_service.handlers import Context, Done, Handler


@dataclass(frozen=True, slots=True)
class Pages:
    pages: int


def _resume(context: Context[Pages]) -> Done:
    read: list[int] = context.state or []
    begun_with = len(read)
    for page in range(len(read), context.payload.pages):
        read = [*read, page]
        context.checkpoint(read)
    return Done({"pages": read, "begun_with": begun_with})


resumes = Handler("resumes", _resume, Pages)
several: list[Handler[Any]] = [Handler("one_of_several", _resume, Pages)]
