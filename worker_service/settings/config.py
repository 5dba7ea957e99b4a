"""The settings and where each comes from: a flag, a WORKER_* variable, the TOML file, or the default.

Each setting is declared once, as an attribute of `Settings`. Handlers declare their own in light modules, which are
imported only if a key is not found here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from worker_service.base.errors import ConfigError
from worker_service.settings import value_types
from worker_service.settings.value_types import Setting, ValueType, format_seconds

if TYPE_CHECKING:
    from worker_service.settings.cluster import Cluster
    from worker_service.settings.cron_schedules import Schedule
    from worker_service.settings.notifications import NotifyRule
    from worker_service.settings.trusted_proxy import TrustedProxy

HANDLERS_SETTINGS = "worker_service.settings"
_FILE_VARIABLE = "WORKER_CONFIG"

OWN_PLACE = Path(__file__).resolve().parents[1]
SERVICE_CONFIGURATION, SERVICE_STATE = Path("/etc/pagemill"), Path("/var/lib/pagemill")
_SERVICE = "the service"


def _parse_commands(raw: object, label: str, _: Path) -> dict[str, Any]:
    if raw == {}:
        return {}
    from worker_service.settings.commands import read_program  # imported only if there are commands

    tables = value_types.read_table(raw, f"{label}: commands")
    for name, table in tables.items():
        if not name.isprintable() or not 0 < len(name) <= 100:
            raise ConfigError(f"{label}: {name!r} is not the name of a job type")
        read_program(value_types.read_table(table, f"{label}: commands.{name}"), f"{label}: commands.{name}")
    return tables


def _parse_schedules(raw: object, label: str, _: Path) -> tuple[Schedule, ...]:
    if raw == []:
        return ()
    from worker_service.settings.cron_schedules import read_schedules  # imported only if there are schedules

    return read_schedules(raw, label)


def _parse_notify(raw: object, label: str, _: Path) -> tuple[NotifyRule, ...]:
    if raw == []:
        return ()
    from worker_service.settings.notifications import read_rules  # imported only if there are rules

    return read_rules(raw, label)


def _parse_addresses(raw: object, label: str, _: Path) -> dict[str, str]:
    if raw == {}:
        return {}
    from worker_service.settings.notifications import read_addresses

    return read_addresses(raw, label)


def _parse_cluster(raw: object, label: str, _: Path) -> Cluster | None:
    if raw in ("", {}):
        return None
    from worker_service.settings.cluster import Cluster  # imported only with a cluster

    return value_types.read_struct(Cluster, {"address": raw} if isinstance(raw, str) else raw, label)


def _parse_proxy(raw: object, label: str, _: Path) -> TrustedProxy | None:
    if raw == {}:
        return None
    from worker_service.settings.trusted_proxy import TrustedProxy  # imported only with a proxy

    return value_types.read_struct(TrustedProxy, raw, label)


def _show_addresses(addresses: Mapping[str, str]) -> dict[str, str]:
    return {owner: hide_secrets(address) for owner, address in addresses.items()}


def _show_rules(rules: Sequence[NotifyRule]) -> dict[str, str]:
    return {rule.name: f"{', '.join(rule.when)}: {hide_secrets(rule.to)}" for rule in rules}


def _show_schedules(schedules: Sequence[Schedule]) -> dict[str, str]:
    return {schedule.name: f"{schedule.cron} ({schedule.zone}): {schedule.what}" for schedule in schedules}


def _show_commands(commands: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    # Show only the program: an argument may be a secret, though it should not be.
    argvs = {name: table.get("argv") for name, table in commands.items()}
    return {name: str(argv[0]) if isinstance(argv, list) and argv else "" for name, argv in argvs.items()}


def hide_secrets(address: str) -> str:
    return re.sub(r"(?<=://)(?:[^/@]*@)?([^/]*).*", r"\1/…", address)


RELOADABLE = (
    "addresses", "grace_period", "limits", "notify", "notify_old_after", "owner_policy", "poll_interval", "prune",
    "recovery_interval", "schedule", "schedule_in_daemon", "unknown_type_grace", "zone",
)  # fmt: skip

Limits = Mapping[str, Mapping[str, int]]


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
    commands = Setting(
        ValueType("a table", _parse_commands, _show_commands),
        {},
        "your own programs, by job type",
        table="[commands.TYPE]",
    )
    retries = Setting(value_types.RETRIES, {}, "retry policy of a job type", table="[retries.TYPE]")
    zone = Setting(value_types.ZONE, "UTC", "time zone of `enqueue --once-per`, and of schedules without one")
    schedule = Setting(
        ValueType("a list of tables", _parse_schedules, _show_schedules),
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
        ValueType("a cluster", _parse_cluster, lambda cluster: "" if cluster is None else cluster.as_setting()),
        "",
        "Ray cluster that runs attempts, such as `ray:10.0.0.1:6379`; or `[cluster]` with `address` and more: "
        "[cluster.md](cluster.md)",
        otherwise="none",
    )

    notify = Setting(
        ValueType("a list of tables", _parse_notify, _show_rules),
        [],
        "notifications by mail, webhook or chat: [notify.md](notify.md)",
        table="[[notify]]",
    )
    addresses = Setting(
        ValueType("a table", _parse_addresses, _show_addresses),
        {},
        'address of each owner, for a `[[notify]]` with `to = "owner"`',
        table="[addresses]",
    )
    notify_allow = Setting(
        value_types.WORDS,
        [],
        "addresses to which every user may have the end of a batch reported, besides his or her own: "
        "`mailto:*@example.com`; `*` stands for a name, without any of `/@?#%:,;`",
        otherwise="none",
    )
    notify_old_after_seconds = Setting(
        value_types.INTERVAL, "1h", "waiting time of a job after which `queue.old` notifications are sent"
    )

    web_listen = Setting(
        value_types.LISTEN,
        "127.0.0.1:8470",
        "address and port, or path of a Unix socket, of `pagemill serve`: [http.md](http.md)",
    )
    web_urls = Setting(value_types.URLS, [], "public addresses of the web page, such as a proxy's", otherwise="none")
    proxy = Setting(
        ValueType(
            "a proxy that signs users in", _parse_proxy, lambda proxy: "" if proxy is None else proxy.as_setting()
        ),
        {},
        "a proxy whose header names the user, and what each user may do: [http.md](http.md#sign-in-by-a-proxy)",
        otherwise="none",
        table="[proxy]",
    )
    web_origins = Setting(
        value_types.URLS,
        [],
        "other web pages that may call the API with a token: [http.md](http.md#pages-of-your-own)",
        otherwise="none",
    )
    web_endpoints = Setting(
        value_types.list_of("mcp", "openwebui", "docling", "tika", "opencontracts"),
        [],
        "further endpoints to serve: `mcp` for [assistants](assistants.md), the others for [programs made for other "
        "converters](converters.md)",
        otherwise="none",
    )
    embeddings = Setting(
        value_types.EMBEDDINGS,
        "off",
        "search by [meaning](documents.md#search-by-meaning): `bundled` uses the model of the extra `semantic`, an "
        "address an OpenAI-compatible server, with the credential `embeddings-key` if it needs one",
    )
    embeddings_model = Setting(value_types.MODEL, "", "the embedding model of that server", otherwise="none")
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
        return self.origins["database"] == _SERVICE

    @property
    def web_address(self) -> str:
        if self.web_urls:
            return self.web_urls[0]
        return (
            "http://localhost"
            if isinstance(self.web_listen, Path)
            else f"http://{value_types.LISTEN.write(self.web_listen)}"
        )

    @property
    def start_command(self) -> str:
        return self._systemctl("start") or "pagemill run"

    @property
    def restart_command(self) -> str:
        return self._systemctl("restart") or "stop and start pagemill run"

    def _systemctl(self, action: str) -> str:
        """Return '' if no unit runs the daemon of this database."""
        if (
            self.is_of_the_service
            or self.database.parent == SERVICE_STATE
            or self.file == SERVICE_CONFIGURATION / "pagemill.toml"
        ):
            return f"systemctl {action} pagemill pagemill-commands"
        is_users = self.origins["database"] == "default" and user_unit(os.environ).exists()
        return f"systemctl --user {action} pagemill" if is_users else ""

    @property
    def wanted_limits(self) -> Limits:
        """Return kind → name → limit. `limits.type` overrides a command's `max_running`."""
        max_running = {name: table.get("max_running") for name, table in self.commands.items()}
        command_limits = {name: most for name, most in max_running.items() if isinstance(most, int)}
        return {
            "type": {**command_limits, **self.limits.get("type", {})},
            "class": dict(self.limits.get("class", {})),
            "owner": dict(self.limits.get("owner", {})),
            "payload": {"bytes": self.payload_bytes_max},
        }

    def limit_differences(self, written: Limits) -> Iterator[str]:
        """Yield texts such as `type ocr_pages: 2 in the database, 4 in these settings`."""
        wanted = self.wanted_limits
        for kind in sorted(written.keys() | wanted.keys()):
            old, new = written.get(kind, {}), wanted.get(kind, {})
            for name in sorted(old.keys() | new.keys()):
                old_limit, new_limit = old.get(name, "no limit"), new.get(name, "no limit")
                if old_limit != new_limit:
                    yield f"{kind} {name}: {old_limit} in the database, {new_limit} in these settings"

    def describe_values(self) -> Iterator[tuple[str, str, str]]:
        """Yield (key, value as in the TOML file, origin)."""
        for key, setting in every_setting().items():
            value = self.values[key] if key in self.values else setting.kind.read(setting.default, key)
            written, origin = setting.kind.write(value), self.origins.get(key, "default")
            lines = {"": written} if isinstance(written, str) else {f".{name}": text for name, text in written.items()}
            for name, text in lines.items():
                yield key + name, text, self.origins.get(key + name, origin)

    def hand_to_handlers(self) -> None:
        """Export the settings of handlers as variables. A child gets those that its handler declares."""
        given = [key for key in self.values.keys() - _OWN.keys() if self.origins[key] != "default"]
        every = every_setting() if given else {}
        os.environ.update({every[key].variable: str(every[key].kind.write(self.values[key])) for key in given})


_OWN = value_types.find_settings(Settings)


def every_setting() -> dict[str, Setting[Any]]:
    from worker_service.base.entry_points import entry_points

    every = dict(_OWN)
    for point in entry_points(HANDLERS_SETTINGS):
        try:
            declared = value_types.find_settings(point.load())
        except Exception as error:
            # Do not ignore the error: one of these settings may keep jobs away from something.
            raise ConfigError(
                f"the settings that {point.spec} declares cannot be read: {error}", "mend it or uninstall it"
            ) from error
        for key in declared.keys() & every.keys():
            raise ConfigError(f"the setting {key} of {point.spec} is another one's, too", "uninstall one of them")
        every |= declared
    return every


class _Source(NamedTuple):
    raw: Any
    """None if the source does not set the key."""
    origin: str
    directory: Path
    """The base of relative paths."""


def load_settings(
    flags: Mapping[str, str] | None = None, *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    file, from_file, is_shared = _read_file(environ, directory)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, setting in _declared(environ, from_file, file).items():
        from_flag = _Source((flags or {}).get(key) or None, setting.flag, directory)
        variable = None if setting.table else environ.get(setting.variable) or None
        table = from_file.get(key)
        if key == "cluster" and variable is not None and isinstance(table, dict):
            # The variable has only the address; keep the rest of the table.
            from_variable = _Source({**table, "address": variable}, setting.variable, directory)
        else:
            from_variable = _Source(variable, setting.variable, directory)
        in_file = _Source(table, str(file), directory if file is None else file.parent)
        default = _Source(setting.default, "default", directory)
        given = [source for source in (from_flag, from_variable, in_file) if source.raw is not None]
        raw, origins[key], base = (*given, default)[0]
        values[key] = None if raw is None else setting.kind.read(raw, f"{key} ({origins[key]})", base)
    if origins["database"] == "default":
        values["database"] = _default_database(environ, directory, is_shared=is_shared)
    if is_shared and origins["database"] in ("default", str(file)):
        origins["database"] = _SERVICE
    if origins["workspace"] == "default":
        values["workspace"] = values["database"].parent / "workspace"
    if origins["concurrency"] == "default":
        # The processors that this process may use.
        values["concurrency"] = len(os.sched_getaffinity(0))
    elif origins["io_concurrency"] == "default" and values["concurrency"]:
        # A user who sets only one number means it for all jobs.
        values["io_concurrency"], origins["io_concurrency"] = values["concurrency"], origins["concurrency"]
    values["schedule"] = tuple(
        replace(schedule, zone=schedule.zone or values["zone"]) for schedule in values["schedule"]
    )
    values["types"] = _with_commands(values["types"], values["commands"])
    if origins["heartbeat_interval"] == "default":
        # A short `orphan_after` alone must not be an error.
        values["heartbeat_interval"] = min(values["heartbeat_interval"], values["orphan_after"] / 4)
    _refuse_slow_heartbeat(values["heartbeat_interval"], values["orphan_after"])
    pruned = value_types.read_table(from_file.get("prune", {}), "prune")
    origins |= {f"prune.{kind}": "default" for kind in values["prune"] if kind not in pruned}
    return Settings(values, origins, file)


def _declared(
    environ: Mapping[str, str], from_file: Mapping[str, object], file: Path | None
) -> Mapping[str, Setting[Any]]:
    variables = {name for name in environ if name.startswith("WORKER_")} - {_FILE_VARIABLE}
    if from_file.keys() <= _OWN.keys() and variables <= _variables(_OWN):
        return _OWN
    from worker_service.base.suggestions import did_you_mean, nearest  # only needed for a doubtful name

    every = every_setting()
    for key in from_file:
        if key not in every:
            near = did_you_mean(key, every, f"the settings are {', '.join(every)}", 0.5)
            raise ConfigError(f"{file}: there is no setting {key!r}", near)
    # Other programs have WORKER_ variables, too: report only variables that are nearly the name of a setting.
    words = {name.removeprefix("WORKER_"): name for name in {*_variables(every), _FILE_VARIABLE}}
    for name in sorted(variables - _variables(every)):
        if near := nearest(name.removeprefix("WORKER_"), words, 0.75):
            raise ConfigError(f"there is no setting {name!r}", f"did you mean WORKER_{near}?")
    return every


def _variables(settings: Mapping[str, Setting[Any]]) -> set[str]:
    return {setting.variable for setting in settings.values() if not setting.table}


def _with_commands(types: Sequence[str], commands: Iterable[str]) -> tuple[str, ...]:
    # Keep the word itself: if there are no commands, `@commands` must match no job type instead of all.
    stands_for = {"@commands": tuple(commands), "!@commands": tuple(f"!{name}" for name in commands)}
    return tuple(name for word in types for name in (word, *stands_for.get(word, ())))


def _refuse_slow_heartbeat(heartbeat: float, orphan_after: int) -> None:
    if heartbeat * 2 > orphan_after:
        raise ConfigError(
            f"heartbeat_interval is {format_seconds(heartbeat)} and orphan_after {orphan_after}s: a worker would be "
            "given up after one late beat, so let orphan_after be at least twice as long"
        )


# ── The settings file ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read_file(environ: Mapping[str, str], directory: Path) -> tuple[Path | None, dict[str, object], bool]:
    """Return the file, its contents, and whether it is the installed service's, for lack of a nearer file."""
    if (file := _settings_file(environ, directory)) is not None:
        return file, _table_of(file), False
    file = SERVICE_CONFIGURATION / "pagemill.toml"
    if environ.get("STATE_DIRECTORY") or is_checkout(directory) or not os.access(file, os.R_OK):
        return None, {}, False
    table = _table_of(file)
    database = SERVICE_CONFIGURATION / str(table.get("database", SERVICE_STATE / "pagemill.db"))
    # A user who may not read the service's database uses their own, if there is one.
    if not os.access(database, os.R_OK) and _own_database(environ).exists():
        return None, {}, False
    return file, table, True


def _table_of(file: Path) -> dict[str, object]:
    import tomllib  # imported only with a file: it takes a tenth of the start of `pagemill ls`

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the settings file {file} is not TOML: {error}") from error


def _settings_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    if named := environ.get(_FILE_VARIABLE):
        return directory / Path(named).expanduser()
    places = []
    if given := environ.get("CONFIGURATION_DIRECTORY"):
        places.append(_first_path(given))
    elif is_checkout(directory):
        places.append(directory / "var")
    places.append(own_configuration(environ))
    # Not Path.exists: it raises if a service may not look there, as in a home directory that its unit hides.
    return next((file for place in places if os.path.exists(file := place / "pagemill.toml")), None)  # noqa: PTH110


def _default_database(environ: Mapping[str, str], directory: Path, *, is_shared: bool) -> Path:
    if given := environ.get("STATE_DIRECTORY"):
        return _first_path(given) / "pagemill.db"
    if is_checkout(directory):
        return directory / "var" / "pagemill.db"
    return SERVICE_STATE / "pagemill.db" if is_shared else _own_database(environ)


def is_checkout(directory: Path) -> bool:
    return directory.resolve() == OWN_PLACE and (directory / "pyproject.toml").is_file()


def _own_database(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "pagemill.db"


def own_configuration(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def user_unit(environ: Mapping[str, str]) -> Path:
    return own_configuration(environ).parent / "systemd/user/pagemill.service"


def _first_path(given: str) -> Path:
    # systemd separates several directories with colons.
    return Path(given.split(":")[0])


def _xdg(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    given = environ.get(variable, "")
    # The specification says to ignore a relative path.
    base = Path(given) if given.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / otherwise
    return base / "pagemill"
