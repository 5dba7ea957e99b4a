"""Which file holds the credential that a job names, and that nobody else can read it. Reads files; knows no Google."""

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

USUAL = "drive"
APPLICATION_DEFAULT = "adc"
ADC_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
ENDPOINT = HandlersSettings.drive_endpoint
"""Any place but this machine is refused, for it would be sent our tokens."""

ENVIRONMENT = (ENDPOINT.variable, ADC_FILE, "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""What a handler that talks to Google wants to see of the service's."""

_NAME = re.compile(r"drive[\w.-]{0,100}", re.ASCII)
_USER, _GROUP_OWN, _GROUP = 0x02, 0x04, 0x08


def credential_text(name: str) -> Mapping[str, Any]:
    """The JSON of `name`, a file in $CREDENTIALS_DIRECTORY."""
    if not _NAME.fullmatch(name):
        raise Permanent("PAYLOAD_INVALID", "`credential` is adc, or the name of a credential that begins with drive")
    path = credential_file(name)
    try:
        if _is_open_to_others(path):
            raise Permanent("CREDENTIAL_EXPOSED", f"others may read the credential {name}", "chmod 600 its file")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Permanent(
            "CREDENTIAL_ABSENT",
            f"there is no credential {name}",
            f"give the service LoadCredential={name}:/path/of/the/key.json",
        ) from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # Without a cause, which would quote the file.
        raise Permanent("CREDENTIAL_INVALID", f"the credential {name} is not JSON, as Google hands it out")
    return found


def files_of(name: str) -> list[Path]:
    """What a child has to read beside the credentials: the file that application default credentials name."""
    file = os.environ.get(ADC_FILE, "")
    return [Path(file)] if name == APPLICATION_DEFAULT and file.startswith("/") else []


def endpoint() -> str:
    """Where another Drive answers; empty: Google's."""
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
    # With an access list, as systemd writes it for us, the group's bits are only its mask.
    for tag, rights, number in struct.iter_unpack("<HHI", access[4:]):
        is_another = tag in (_GROUP_OWN, _GROUP) or (tag == _USER and number not in (0, os.geteuid()))
        if is_another and rights:
            return True
    return False
