"""Apply the changed settings that a running daemon can apply, after SIGHUP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker_service.base import events
from worker_service.base.errors import PagemillError
from worker_service.daemon.attempts import DaemonContext
from worker_service.settings.config import RELOADABLE, load_settings


def reload_settings(context: DaemonContext, environ: Mapping[str, str]) -> None:
    """Keep all settings if the file has an error. `environ` is the environment at the start."""
    before = context.settings
    try:
        fresh = load_settings({"database": str(before.database)}, environ=environ)
        changed = sorted(
            key for key in before.values.keys() | fresh.values.keys() if before.values.get(key) != fresh.values.get(key)
        )
        applied = [key for key in changed if key in RELOADABLE]
        after = replace(before, values={**before.values, **{key: fresh.values[key] for key in applied}})
        if "limits" in applied:
            for kind, most in after.wanted_limits.items():
                context.store.workers.set_limits(kind, dict(most))
    except PagemillError as error:
        context.log.error(events.SETTINGS_REFUSED, reason=str(error))
        return
    context.settings = after
    context.log.info(
        events.SETTINGS_RELOADED, applied=applied, need_restart=[key for key in changed if key not in RELOADABLE]
    )
