"""The secret key that signs cookies and forms, in a file beside the database."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from worker_service.base.errors import ConfigError
from worker_service.base.files import atomic_write

_SECRET_BYTES = 32


class SigningKey:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()

    def verify(self, purpose: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(purpose, text).encode(), signature.encode())


def load_signing_key(database: Path) -> SigningKey:
    """Read the key, or create it. Each user who serves a shared database has a key file."""
    path = database.with_name(f"{database.name}.web-key.{os.geteuid()}")
    try:
        with atomic_write(path, mode=0o600, is_new=True, is_synced=True) as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
    except FileExistsError:
        pass  # the key was created by an earlier start, or just now by another process
    except OSError as error:
        raise ConfigError(
            f"cannot create {path}, the key that signs cookies: {(error.strerror or str(error)).lower()}"
        ) from error
    return SigningKey(_read_key_file(path))


def _read_key_file(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            status, secret = os.fstat(file.fileno()), file.read(_SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or len(secret) != _SECRET_BYTES:
        raise ConfigError(
            f"{path} is damaged or readable by other users", "remove it; browsers must then sign in again"
        )
    return secret
