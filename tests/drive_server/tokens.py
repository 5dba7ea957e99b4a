"""The token endpoint: it checks a service account's signature and a user's refresh token as Google does."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.drive_server.model import ME

READONLY = "https://www.googleapis.com/auth/drive.readonly"
# Whatever the key file says of where tokens are fetched.
_AUDIENCE = "https://oauth2.googleapis.com/token"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

# One pair for the whole run: making it takes longer than most tests.
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE_PEM = _KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()


class Tokens:
    def __init__(self) -> None:
        self.endpoint = ""
        self.refresh_token = "1//refresh-me-SECRET"
        self.client_secret = "client-SECRET"
        self.is_revoked = False
        self.lives_seconds = 3600
        self._count = 0
        self._given: dict[str, tuple[str, str, float]] = {}

    def service_account(self, **more: str) -> str:
        """A key file, as Google hands it out."""
        return json.dumps(
            {
                "type": "service_account",
                "project_id": "project",
                "private_key_id": "key-1",
                "private_key": PRIVATE_PEM,
                "client_email": ME,
                "client_id": "1",
                "token_uri": self.endpoint,
                **more,
            }
        )

    def user(self) -> str:
        return json.dumps(
            {
                "type": "authorized_user",
                "client_id": "client",
                "client_secret": self.client_secret,
                "refresh_token": self.refresh_token,
            }
        )

    def whose(self, token: str) -> tuple[str, str] | None:
        """Principal and scope."""
        who, scope, until = self._given.get(token, ("", "", 0.0))
        return (who, scope) if time.time() < until else None

    def forget(self) -> None:
        """All that were given out end now."""
        self._given.clear()

    def answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if self.is_revoked:
            return 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        if asked.get("grant_type") == "refresh_token":
            if asked.get("client_secret") != self.client_secret:
                return 401, {"error": "invalid_client", "error_description": "Unauthorized"}
            if asked.get("refresh_token") != self.refresh_token:
                return 400, {"error": "invalid_grant", "error_description": "Bad Request"}
            return 200, self._give(ME, READONLY)
        if asked.get("grant_type") != _GRANT:
            return 400, {"error": "unsupported_grant_type", "error_description": "Invalid grant_type"}
        claims = self._claims(asked.get("assertion", ""))
        if claims is None or claims.get("aud") != _AUDIENCE or not claims["iat"] - 60 < time.time() < claims["exp"]:
            return 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        return 200, self._give(claims.get("sub") or claims["iss"], claims["scope"])

    def _give(self, who: str, scope: str) -> dict[str, Any]:
        self._count += 1
        token = f"ya29.token-SECRET-{self._count}"
        self._given[token] = (who, scope, time.time() + self.lives_seconds)
        return {"access_token": token, "expires_in": self.lives_seconds, "token_type": "Bearer", "scope": scope}

    def _claims(self, assertion: str) -> dict[str, Any] | None:
        try:
            signed, _, signature = assertion.rpartition(".")
            _KEY.public_key().verify(_plain(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
            claims: dict[str, Any] = json.loads(_plain(signed.partition(".")[2]))
            return claims
        except (ValueError, InvalidSignature):
            return None


def _plain(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
