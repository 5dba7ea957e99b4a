"""Read the credential for Google Drive that a job names, unless other users can read it."""

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
# The format of an access list, from linux/posix_acl_xattr.h: a version, then a tag, rights and user id for each entry.
_ACL_VERSION_BYTES, _ACL_ENTRY = 4, "<HHI"
_ACL_NAMED_USER, _ACL_OWNING_GROUP, _ACL_NAMED_GROUP = 0x02, 0x04, 0x08


def read_credential(name: str) -> Mapping[str, Any]:
    if not _NAME.fullmatch(name):
        raise Permanent(
            "PAYLOAD_INVALID", "`credential` must be adc, or the name of a credential that begins with drive"
        )
    path = credential_file(name)
    try:
        if _is_open_to_others(path):
            raise Permanent("CREDENTIAL_EXPOSED", f"other users can read the credential {name}", "chmod 600 its file")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise Permanent(
            "CREDENTIAL_ABSENT",
            f"the credential {name} does not exist",
            f"give the service LoadCredential={name}:/path/of/the/key.json",
        ) from error
    except ValueError:
        content = None
    if not isinstance(content, dict):
        # Raise outside `except`: the cause would quote the file.
        raise Permanent("CREDENTIAL_INVALID", f"the credential {name} is not a JSON file from Google")
    return content


def files_to_read(name: str) -> list[Path]:
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
        access_list = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        # Without an access list, the group bits are the rights of the group.
        return True
    # With one, as systemd's LoadCredential sets it, they are only a mask: the list has the rights.
    for tag, rights, user_id in struct.iter_unpack(_ACL_ENTRY, access_list[_ACL_VERSION_BYTES:]):
        is_group = tag in (_ACL_OWNING_GROUP, _ACL_NAMED_GROUP)
        is_other_user = tag == _ACL_NAMED_USER and user_id not in (0, os.geteuid())
        if rights and (is_group or is_other_user):
            return True
    return False
