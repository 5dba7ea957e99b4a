"""The settings and credentials of the shipped handlers. Imported wherever settings are read, so it imports little."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from worker_service.handlers import ConfigError, Permanent, Setting, ValueType, one_of, parse_words, whole_number

T = TypeVar("T")

_SERVER = re.compile(r"[A-Za-z0-9.-]+(?::\d{1,5})?", re.ASCII)
_LOOPBACK = re.compile(r"http://(?:127\.0\.0\.1|\[::1\]):\d{1,5}/?")


def _parse_networks(raw: object, _: str, __: Path) -> tuple[str, ...]:
    from ipaddress import ip_network  # only if there are networks

    networks = [network for item in parse_words(raw) for network in item.split()]
    return tuple(str(ip_network(network, strict=False)) for network in networks)


def _parse_roots(raw: object, _: str, base: Path) -> tuple[str, ...]:
    return tuple(str(base / Path(root).expanduser()) for root in parse_words(raw, ":"))


def _parse_endpoint(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or (raw and not _LOOPBACK.fullmatch(raw)):
        raise ValueError
    return raw.rstrip("/")


def _parse_server(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or (raw and not _SERVER.fullmatch(raw)):
        raise ValueError
    return raw


def _parse_name(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or not raw.isprintable():
        raise ValueError
    return raw


_NAME = ValueType("a name", _parse_name)
_NETWORKS = ValueType("a list of networks such as 10.0.0.0/8", _parse_networks, ",".join)


class HandlersSettings:
    download_allow = Setting(_NETWORKS, [], "private networks that a `download` may reach, also by plain http")
    download_roots = Setting(
        ValueType("a list of directories", _parse_roots, ":".join),
        [],
        "the directories that jobs may read local files from; in the variable, separate them by colons",
        otherwise="all",
    )
    download_bytes_max = Setting(
        whole_number("a number of bytes", 0, 1 << 62), 4 << 30, "the largest file that a `download` accepts"
    )
    drive_endpoint = Setting(
        ValueType("a server on this machine: http://127.0.0.1:PORT", _parse_endpoint),
        "",
        "for tests: a server on this machine instead of Google Drive",
    )
    ocr_quality = Setting(
        one_of("auto", "fast", "best"),
        "auto",
        "default OCR quality. `fast`: one engine; `auto`: a second engine rereads uncertain lines, if the extra "
        "`neural` is installed; `best`: it rereads every line, with the best trained data that is installed",
    )
    webhook_allow = Setting(_NETWORKS, [], "private networks that a `webhook` may reach, such as `10.0.0.0/8`")
    mail_server = Setting(
        ValueType("a server such as smtp.example.com, or smtp.example.com:587", _parse_server),
        "",
        "the server for outgoing e-mail. Default port: 587, 465 with `tls`, 25 with `none`",
        otherwise="none",
    )
    mail_security = Setting(one_of("starttls", "tls", "none"), "starttls", "how the connection to it is encrypted")
    mail_user = Setting(_NAME, "", "the user to log in as, with the credential `mail-password`", otherwise="no login")
    mail_from = Setting(_NAME, "", "the sender of e-mail", otherwise="pagemill@ and the host name")


def value_of(setting: Setting[T]) -> T:
    """Read a setting in a child process, from a variable that the handler declares."""
    try:
        return setting.from_environment()
    except ConfigError as error:
        raise Permanent("SETTING_INVALID", str(error)) from error


def credential_file(name: str) -> Path:
    # Below /dev/null no file exists. Without a directory, the name would be relative to the working directory.
    return Path(os.environ.get("CREDENTIALS_DIRECTORY") or os.devnull) / name


def credential_text(name: str) -> str:
    try:
        return credential_file(name).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Permanent(
            "SECRET_ABSENT",
            f"there is no credential {name}",
            f"give the service LoadCredential={name}:/path/of/the/file",
        ) from error
