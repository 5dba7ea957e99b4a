"""Who gives a peer its ranges: a process that reads a line of JSON for each turn, and answers it by one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

Range = tuple[str, list[int]]
"""A file, and its pages."""
Pages = list[tuple[str, str]]
"""Of each, what `reading` says."""


def serve(read_all: Callable[[list[Range]], list[Pages]]) -> None:
    # What libraries print is none of our answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(read_all(json.loads(line))), file=answers, flush=True)
