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
# The same whatever `token_uri` the key file has.
_AUDIENCE = "https://oauth2.googleapis.com/token"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

# One pair for all tests: generating it takes longer than most of them.
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
        self.lifetime_seconds = 3600
        self._count = 0
        self._issued: dict[str, tuple[str, str, float]] = {}

    def service_account(self, **more: str) -> str:
        """Return a key file."""
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

    def account_and_scope(self, token: str) -> tuple[str, str] | None:
        account, scope, expires_at = self._issued.get(token, ("", "", 0.0))
        return (account, scope) if time.time() < expires_at else None

    def expire_all(self) -> None:
        self._issued.clear()

    def answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        parameters = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if self.is_revoked:
            return 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        if parameters.get("grant_type") == "refresh_token":
            if parameters.get("client_secret") != self.client_secret:
                return 401, {"error": "invalid_client", "error_description": "Unauthorized"}
            if parameters.get("refresh_token") != self.refresh_token:
                return 400, {"error": "invalid_grant", "error_description": "Bad Request"}
            return 200, self._issue(ME, READONLY)
        if parameters.get("grant_type") != _GRANT:
            return 400, {"error": "unsupported_grant_type", "error_description": "Invalid grant_type"}
        claims = self._claims(parameters.get("assertion", ""))
        if claims is None or claims.get("aud") != _AUDIENCE or not claims["iat"] - 60 < time.time() < claims["exp"]:
            return 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        return 200, self._issue(claims.get("sub") or claims["iss"], claims["scope"])

    def _issue(self, account: str, scope: str) -> dict[str, Any]:
        self._count += 1
        token = f"ya29.token-SECRET-{self._count}"
        self._issued[token] = (account, scope, time.time() + self.lifetime_seconds)
        return {"access_token": token, "expires_in": self.lifetime_seconds, "token_type": "Bearer", "scope": scope}

    def _claims(self, assertion: str) -> dict[str, Any] | None:
        try:
            signed, _, signature = assertion.rpartition(".")
            _KEY.public_key().verify(_decode_base64(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
            claims: dict[str, Any] = json.loads(_decode_base64(signed.partition(".")[2]))
            return claims
        except (ValueError, InvalidSignature):
            return None


def _decode_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
