"""Read the credential that a job names, unless other users can read it."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from job_handlers.settings import HandlersSettings, credential_file, value_of
from worker_service.handlers import Permanent

DEFAULT = "drive"
APPLICATION_DEFAULT = "adc"
ADC_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
ENDPOINT = HandlersSettings.drive_endpoint

ENVIRONMENT = (ENDPOINT.variable, ADC_FILE, "SSL_CERT_FILE")

_NAME = re.compile(r"drive[\w.-]{0,100}", re.ASCII)
_USER, _GROUP_OWN, _GROUP = 0x02, 0x04, 0x08


def credential_text(name: str) -> Mapping[str, Any]:
    if not _NAME.fullmatch(name):
        raise Permanent(
            "PAYLOAD_INVALID", "`credential` must be adc, or the name of a credential that begins with drive"
        )
    path = credential_file(name)
    try:
        if _is_open_to_others(path):
            raise Permanent("CREDENTIAL_EXPOSED", f"other users can read the credential {name}", "chmod 600 its file")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Permanent(
            "CREDENTIAL_ABSENT",
            f"the credential {name} does not exist",
            f"give the service LoadCredential={name}:/path/of/the/key.json",
        ) from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # Raise outside `except`: the cause would quote the file.
        raise Permanent("CREDENTIAL_INVALID", f"the credential {name} is not a JSON file from Google")
    return found


def files_of(name: str) -> list[Path]:
    file = os.environ.get(ADC_FILE, "")
    return [Path(file)] if name == APPLICATION_DEFAULT and file.startswith("/") else []


def endpoint() -> str:
    return value_of(ENDPOINT)


def _is_open_to_others(path: Path) -> bool:
    mode = path.stat().st_mode
    if mode & 0o007:
        return True
    if not mode & 0o070:
        return False
    try:
        access = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return True
    # If the file has an access list, as systemd's LoadCredential gives it, the group bits are only a mask.
    for tag, rights, number in struct.iter_unpack("<HHI", access[4:]):
        is_other_user = tag in (_GROUP_OWN, _GROUP) or (tag == _USER and number not in (0, os.geteuid()))
        if is_other_user and rights:
            return True
    return False
