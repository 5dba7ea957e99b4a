"""What the shipped handlers are set by, and the credentials that they are handed. Imported where settings are read, so
it imports nothing heavy."""

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
    from ipaddress import ip_network  # only where there is one

    words = [word for several in parse_words(raw) for word in several.split()]
    return tuple(str(ip_network(word, strict=False)) for word in words)


def _parse_roots(raw: object, _: str, base: Path) -> tuple[str, ...]:
    return tuple(str(base / Path(word).expanduser()) for word in parse_words(raw, ":"))


def _parse_endpoint(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or (raw and not _LOOPBACK.fullmatch(raw)):
        raise ValueError
    return raw.rstrip("/")


def _parse_server(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or (raw and not _SERVER.fullmatch(raw)):
        raise ValueError
    return raw


def _parse_word(raw: object, _: str, __: Path) -> str:
    if not isinstance(raw, str) or not raw.isprintable():
        raise ValueError
    return raw


_WORD = ValueType("a name", _parse_word)
_NETWORKS = ValueType("a list of networks such as 10.0.0.0/8", _parse_networks, ",".join)


class HandlersSettings:
    download_allow = Setting(
        _NETWORKS, [], "networks that a `download` may reach although they are not public, and by plain http"
    )
    download_roots = Setting(
        ValueType("a list of directories", _parse_roots, ":".join),
        [],
        "the directories in which a `download` of a local path, a crawl and `adopt` may read; in the variable with "
        "colons between them",
        otherwise="all",
    )
    download_bytes_max = Setting(
        whole_number("a number of bytes", 0, 1 << 62), 4 << 30, "the largest file that a `download` takes"
    )
    drive_endpoint = Setting(
        ValueType("a place on this machine, for tests: http://127.0.0.1:PORT", _parse_endpoint),
        "",
        "for tests: another Drive than Google's, on this machine",
    )
    ocr_quality = Setting(
        one_of("auto", "fast", "best"),
        "auto",
        "how well pages are recognised where nobody says: `fast` by one engine; `auto`: a second one looks at what the "
        "first is not sure of, where the extra `neural` is installed; `best`: at every line, and trained data of best "
        "quality is used where there is some",
    )
    webhook_allow = Setting(
        _NETWORKS, [], "networks such as `10.0.0.0/8` that a `webhook` may reach although they are not public"
    )
    mail_server = Setting(
        ValueType("a server such as smtp.example.com, or smtp.example.com:587", _parse_server),
        "",
        "the server that e-mail is handed to; its port unless given: 587, 465 with `tls`, 25 with `none`",
        otherwise="none",
    )
    mail_security = Setting(
        one_of("starttls", "tls", "none"), "starttls", "how the way there is encrypted; `none`: not at all"
    )
    mail_user = Setting(
        _WORD, "", "who logs in there, with the credential `mail-password`", otherwise="nobody, without a password"
    )
    mail_from = Setting(_WORD, "", "the sender of e-mail", otherwise="pagemill@ and the name of the machine")


def value_of(setting: Setting[T]) -> T:
    """In the child of a handler, which is handed the variables that it declares."""
    try:
        return setting.here()
    except ConfigError as error:
        raise Permanent("SETTING_INVALID", str(error)) from error


def credential_file(name: str) -> Path:
    # Without a directory the name would be looked for among our own files.
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
