"""Read a .sql file into named statements.

``-- name: claim`` begins a statement, ``-- fragment: lane_gates`` a piece that statements share by writing
``{lane_gates}``: one text for what must be the same, such as the gates that `claim` obeys and `explain` prints.
"""

from __future__ import annotations

import re
from importlib.resources import files

_HEADING = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")


def load(file_name: str, **given: str) -> dict[str, str]:
    """The statements of a file beside this module; `given` are fragments that only Python can know."""
    pieces = _HEADING.split(files("worker_service.store").joinpath(file_name).read_text("utf-8"))
    fragments = dict(given)
    statements: dict[str, str] = {}
    for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        filled = _PLACE.sub(lambda place: fragments[place[1]], text.strip().removesuffix(";"))
        (fragments if kind == "fragment" else statements)[name] = filled
    return statements
