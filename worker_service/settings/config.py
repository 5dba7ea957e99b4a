"""Every setting, declared once as an attribute of `Settings`. `loading.py` reads the values.

Handlers declare settings of their own in light modules, which `every_setting` finds by their entry points.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_service.base.errors import ConfigError
from worker_service.settings import value_types
from worker_service.settings.value_types import Setting

HANDLERS_SETTINGS = "worker_service.settings"
SERVICE = "the service"

# The keys of settings that a running daemon applies when it reads the settings again.
RELOADABLE = (
    "addresses", "grace_period", "limits", "notify", "notify_old_after", "owner_policy", "poll_interval", "prune",
    "recovery_interval", "schedule", "schedule_in_daemon", "unknown_type_grace", "zone",
)  # fmt: skip

Limits = Mapping[str, Mapping[str, int]]
"""Kind (type, class, owner, payload) → name → maximum."""


@dataclass(frozen=True)
class Settings:
    database = Setting(value_types.DATABASE, None, "path of the SQLite file", otherwise="see above", has_flag=True)
    workspace = Setting(
        value_types.DIRECTORY, None, "directory of the published files", otherwise="beside the database"
    )
    payload_bytes_max = Setting(
        value_types.PAYLOAD_BYTES, 1_048_576, "maximum size of a payload in bytes; run `pagemill init` after a change"
    )
    concurrency = Setting(
        value_types.SLOTS, None, "maximum number of running `cpu` jobs", otherwise="the number of cores"
    )
    io_concurrency = Setting(
        value_types.SLOTS,
        4,
        "maximum number of running `io` jobs, such as your programs and downloads",
        otherwise="as `concurrency` if that is set, else 4",
    )
    types = Setting(
        value_types.TYPES,
        [],
        "job types that this daemon claims; with `!`, job types that it leaves to others. `@commands` stands for every "
        "`[commands.TYPE]`. The systemd units set it",
        otherwise="all",
    )
    poll_interval_seconds = Setting(
        value_types.INTERVAL, "5s", "how often to look for new jobs in case a notification was missed"
    )
    heartbeat_interval_seconds = Setting(
        value_types.INTERVAL, "30s", "interval between heartbeats; shortened automatically if `orphan_after` is short"
    )
    orphan_after_seconds = Setting(
        value_types.WHOLE_SECONDS,
        "5m",
        "time without a heartbeat after which a worker counts as dead; at least two heartbeat intervals",
    )
    recovery_interval_seconds = Setting(value_types.INTERVAL, "60s", "how often to look for jobs of dead workers")
    grace_period_seconds = Setting(
        value_types.TIME_FROM_ZERO,
        "30s",
        "how long a stopping daemon waits for running jobs; less than `TimeoutStopSec` of the unit",
    )
    unknown_type_grace_seconds = Setting(
        value_types.TIME_FROM_ONE,
        "24h",
        "time after which a job fails with `UNKNOWN_TYPE` if no running daemon has a handler for its type; at least so "
        "long after the daemon's start",
    )
    queued_patience_seconds = Setting(
        value_types.TIME_FROM_ZERO,
        "10m",
        "time after which a new request takes over a document whose reading has not started",
    )
    indexing_patience_seconds = Setting(
        value_types.TIME_FROM_ZERO,
        "45m",
        "time without a new page after which a new request takes over a document that is being read",
    )
    owner_policy = Setting(
        value_types.one_of("replace", "queue", "off"),
        "replace",
        "when an owner starts or resumes a batch: `replace`: the owner's other active batches wait, and resume when it "
        "has ended; `queue`: it waits until they have ended; `off`: all run at the same time",
    )
    sandbox = Setting(
        value_types.one_of("strict", "best-effort", "off"),
        "strict",
        "`strict`; `best-effort`: as much as the kernel supports; `off`",
    )
    log_format = Setting(
        value_types.one_of("auto", "console", "json", "journal"),
        "auto",
        "`console`, `json` or `journal`; `auto`: console on a terminal, journal under systemd, otherwise json",
    )
    handlers_dir = Setting(
        value_types.DIRECTORY,
        "/etc/pagemill/handlers",
        "directory of handler files: each `NAME.py` defines `handler` or `handlers`; read when the daemon starts",
    )
    limits = Setting(
        value_types.LIMITS,
        {},
        "maximum number of running jobs over all daemons, by `type`, `class` or `owner`",
        table="[limits.KIND]",
    )
    commands = Setting(value_types.COMMANDS, {}, "your own programs, by job type", table="[commands.TYPE]")
    retries = Setting(value_types.RETRIES, {}, "retry policy of a job type", table="[retries.TYPE]")
    zone = Setting(value_types.ZONE, "UTC", "time zone of `enqueue --once-per`, and of schedules without one")
    schedule = Setting(
        value_types.SCHEDULES,
        [],
        "jobs, crawls and batches that start at fixed times: [schedules.md](schedules.md)",
        table="[[schedule]]",
    )
    schedule_in_daemon = Setting(
        value_types.YES_NO,
        False,
        "the daemon starts scheduled work itself, without cron or `pagemill-schedule.timer`",
        otherwise="`false`",
    )
    prune = Setting(
        value_types.PRUNE,
        {},
        "age at which ended jobs, by status, and log lines are deleted; `never` keeps them",
        otherwise="90d; logs 30d",
        table="[prune]",
    )

    cluster = Setting(
        value_types.CLUSTER,
        "",
        "Ray cluster that runs attempts, such as `ray:10.0.0.1:6379`; or `[cluster]` with `address` and more: "
        "[cluster.md](cluster.md)",
    )

    notify = Setting(
        value_types.RULES, [], "notifications by mail, webhook or chat: [notify.md](notify.md)", table="[[notify]]"
    )
    addresses = Setting(
        value_types.ADDRESSES, {}, 'address of each owner, for a `[[notify]]` with `to = "owner"`', table="[addresses]"
    )
    notify_allow = Setting(
        value_types.WORDS,
        [],
        "addresses to which every user may have the end of a batch reported, besides his or her own: "
        "`mailto:*@example.com`; `*` stands for a name, without any of `/@?#%:,;`",
    )
    notify_old_after_seconds = Setting(
        value_types.INTERVAL, "1h", "waiting time of a job after which `queue.old` notifications are sent"
    )

    web_listen = Setting(
        value_types.LISTEN,
        "127.0.0.1:8470",
        "address and port, or path of a Unix socket, of `pagemill serve`: [http.md](http.md)",
    )
    web_urls = Setting(value_types.URLS, [], "public addresses of the web page, such as a proxy's")
    proxy = Setting(
        value_types.PROXY,
        {},
        "a proxy whose header names the user, and what each user may do: [http.md](http.md#sign-in-by-a-proxy)",
        table="[proxy]",
    )
    web_origins = Setting(
        value_types.URLS,
        [],
        "other web pages that may call the API with a token: [http.md](http.md#pages-of-your-own)",
    )
    web_endpoints = Setting(
        value_types.list_of("mcp", "openwebui", "docling", "tika", "opencontracts"),
        [],
        "further endpoints to serve: `mcp` for [assistants](assistants.md), the others for [programs made for other "
        "converters](converters.md)",
    )
    embeddings = Setting(
        value_types.EMBEDDINGS,
        "off",
        "search by [meaning](documents.md#search-by-meaning): `bundled` uses the model of the extra `semantic`, an "
        "address an OpenAI-compatible server, with the credential `embeddings-key` if it needs one",
    )
    embeddings_model = Setting(value_types.MODEL, "", "the embedding model of that server")
    passage_tokens = Setting(
        value_types.PASSAGE_TOKENS, 400, "maximum length of a [passage](documents.md#passages), in tokens (estimated)"
    )
    passage_overlap = Setting(
        value_types.OVERLAP_TOKENS, 0, "maximum number of tokens that a passage repeats of the one before it"
    )
    upload_bytes_max = Setting(value_types.FILE_BYTES, 2_000_000_000, "maximum size of an uploaded file in bytes")

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    """TOML key → a flag, a variable, a file, 'default' or, for the database, 'the service'."""
    file: Path | None = None

    def __post_init__(self) -> None:
        # Plain attributes, because the main loop reads some of them in every turn.
        declared = {name: setting for name, setting in vars(Settings).items() if isinstance(setting, Setting)}
        vars(self).update({name: self.values[setting.key] for name, setting in declared.items()})

    @property
    def is_of_the_service(self) -> bool:
        """True if the database is the installed service's, because no other was configured."""
        return self.origins["database"] == SERVICE

    @property
    def web_address(self) -> str:
        if self.web_urls:
            return self.web_urls[0]
        is_unix_socket = isinstance(self.web_listen, Path)
        return f"http://{'localhost' if is_unix_socket else value_types.LISTEN.format(self.web_listen)}"

    @property
    def start_command(self) -> str:
        return self._systemctl("start") or "pagemill run"

    @property
    def restart_command(self) -> str:
        return self._systemctl("restart") or "stop and start pagemill run"

    def _systemctl(self, action: str) -> str:
        """Return a command, or '' if no unit runs the daemon of this database."""
        from worker_service.settings import loading  # which imports this module

        if self.is_of_the_service or loading.belongs_to_service(self.database, self.file):
            return f"systemctl {action} pagemill pagemill-commands"
        has_user_unit = self.origins["database"] == "default" and loading.user_unit(os.environ).exists()
        return f"systemctl --user {action} pagemill" if has_user_unit else ""

    @property
    def wanted_limits(self) -> Limits:
        """`limits.type` overrides a command's `max_running`."""
        limit_by_command = {name: table.get("max_running") for name, table in self.commands.items()}
        command_limits = {name: limit for name, limit in limit_by_command.items() if isinstance(limit, int)}
        return {
            "type": {**command_limits, **self.limits.get("type", {})},
            "class": dict(self.limits.get("class", {})),
            "owner": dict(self.limits.get("owner", {})),
            "payload": {"bytes": self.payload_bytes_max},
        }

    def limit_differences(self, stored: Limits) -> Iterator[str]:
        """Yield texts such as `type ocr_pages: 2 in the database, 4 in these settings`."""
        wanted = self.wanted_limits
        for kind in sorted(stored.keys() | wanted.keys()):
            old, new = stored.get(kind, {}), wanted.get(kind, {})
            for name in sorted(old.keys() | new.keys()):
                old_limit, new_limit = old.get(name, "no limit"), new.get(name, "no limit")
                if old_limit != new_limit:
                    yield f"{kind} {name}: {old_limit} in the database, {new_limit} in these settings"

    def describe_values(self) -> Iterator[tuple[str, str, str]]:
        """Yield (key, value as in the TOML file, origin), for each entry of a table."""
        for key, setting in every_setting().items():
            value = self.values[key] if key in self.values else setting.value_type.read(setting.default, key)
            text_or_texts, origin = setting.value_type.format(value), self.origins.get(key, "default")
            if isinstance(text_or_texts, str):
                yield key, text_or_texts, origin
                continue
            for name, text in text_or_texts.items():
                yield f"{key}.{name}", text, self.origins.get(f"{key}.{name}", origin)

    def export_handler_settings(self) -> None:
        """Set a variable for each changed setting. A child process gets the variables that its handler declares."""
        changed_keys = [key for key in self.values.keys() - OWN_SETTINGS.keys() if self.origins[key] != "default"]
        if not changed_keys:
            return  # `every_setting` is slow
        settings = every_setting()
        for key in changed_keys:
            os.environ[settings[key].variable] = str(settings[key].value_type.format(self.values[key]))


OWN_SETTINGS = value_types.find_settings(Settings)


def every_setting() -> dict[str, Setting[Any]]:
    from worker_service.base.entry_points import entry_points

    settings = dict(OWN_SETTINGS)
    for point in entry_points(HANDLERS_SETTINGS):
        try:
            declared = value_types.find_settings(point.load())
        except Exception as error:
            # Do not ignore the error: one of these settings may keep jobs away from something.
            raise ConfigError(
                f"the settings that {point.spec} declares cannot be read: {error}", "mend it or uninstall it"
            ) from error
        for key in declared.keys() & settings.keys():
            raise ConfigError(f"the setting {key} of {point.spec} is another one's, too", "uninstall one of them")
        settings |= declared
    return settings
