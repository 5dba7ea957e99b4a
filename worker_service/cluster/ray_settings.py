"""Variables with which the driver reaches Ray, set before Ray is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from worker_service.base.errors import Problem
from worker_service.settings.cluster import is_loopback
from worker_service.settings.loading import SERVICE_CONFIGURATION, own_configuration

TOKEN = "ray.token"
SERVICE_TOKEN = SERVICE_CONFIGURATION / TOKEN

HEALTH_CHECKS = {
    # The head drops a silent node after 8 s instead of 64.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "3",
}
RECONNECT = {
    # Nodes and drivers give up a lost head after 6 s instead of 60, and start again when it is back.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "6",
}
_DRIVER = {
    **RECONNECT,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Log files would go into Ray's own directory, which may belong to another user.
    "RAY_LOG_TO_STDERR": "1",
    "RAY_BACKEND_LOG_LEVEL": "error",
    "RAY_event_log_reporter_enabled": "0",
}


def token_path(environ: Mapping[str, str]) -> Path | None:
    places = [
        *([Path(environ["RAY_AUTH_TOKEN_PATH"])] if environ.get("RAY_AUTH_TOKEN_PATH") else []),
        Path(environ.get("CREDENTIALS_DIRECTORY") or os.devnull, TOKEN),
        own_configuration(environ) / TOKEN,
        SERVICE_TOKEN,
    ]
    return next((path for path in places if os.access(path, os.R_OK)), None)


def prepare(environ: MutableMapping[str, str]) -> Path | None:
    token = token_path(environ)
    variables = dict(_DRIVER)
    if environ.get("RAY_AUTH_TOKEN"):
        variables["RAY_AUTH_MODE"] = "token"
    elif token is not None:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    for name, value in variables.items():
        environ.setdefault(name, value)
    return token


def fault(address: str, environ: Mapping[str, str]) -> Problem | None:
    """Return why a driver must not connect."""
    has_token = environ.get("RAY_AUTH_MODE") == "token"
    if environ.get("RAY_USE_TLS") == "1":
        for name in ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY"):
            # Ray itself would wait for ever.
            if not os.access(environ.get(name, ""), os.R_OK):
                detail = f"{name} names no file that this user can read"
                return Problem("RAY_CERTIFICATE_ABSENT", detail, "set it, or leave out RAY_USE_TLS")
    if has_token or is_loopback(address):
        return None
    detail = f"there is no token for Ray at {address}, so any machine could join it"
    return Problem("RAY_TOKEN_ABSENT", detail, "pagemill cluster init, on the head")
