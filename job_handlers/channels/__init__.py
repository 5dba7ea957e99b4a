"""How people and programs are told: a handler for each way, and the job that carries one message to one address.

The entry points `worker_service.channels` name, by the scheme of an address, who makes that job.
"""

from __future__ import annotations

import os
from pathlib import Path

from worker_service.handlers import Permanent


def credential_lines(name: str) -> list[str]:
    """What a file in $CREDENTIALS_DIRECTORY says, in lines that say something."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        # Without a directory the name would be looked for among our own files.
        text = (Path(directory or os.devnull) / name).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Permanent(
            "SECRET_ABSENT", f"there is no credential {name}: give the service LoadCredential={name}:/path/of/the/file"
        ) from error
    if lines := [line.strip() for line in text.splitlines() if line.strip()]:
        return lines
    raise Permanent("SECRET_INVALID", f"the credential {name} is empty")
