"""Write the Markdown of files with a peer, and the CPU seconds that each took. Runs in the peers' own environment.

.venv-markdown/bin/python benchmarks/markdown_peers.py pymupdf4llm RESULT.json FILE...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(tool: str, result: str, *files: str) -> None:
    convert = _converter(tool)
    found: dict[str, Any] = {}
    for file in files:
        begin = time.process_time()
        try:
            text = convert(file)
        except Exception as error:
            # A file that a peer cannot read has no Markdown, which is its result.
            print(f"{tool}: {file}: {error}", file=sys.stderr)
            text = ""
        found[file] = (text, time.process_time() - begin)
    Path(result).write_text(json.dumps({"version": version(tool), "files": found}))


def _converter(tool: str) -> Callable[[str], str]:
    module: Any = import_module(tool)
    if tool == "pymupdf4llm":
        return lambda file: str(module.to_markdown(file))
    converter = module.MarkItDown()
    return lambda file: str(converter.convert(file).text_content)


if __name__ == "__main__":
    main(*sys.argv[1:])
