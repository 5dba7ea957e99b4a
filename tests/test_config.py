from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from job_handlers.settings import HandlersSettings
from tests import fake_distributions as installed
from worker_service.base.errors import ConfigError
from worker_service.jobs.retries import RetryRule
from worker_service.jobs.workers import allows_type
from worker_service.settings import loading
from worker_service.settings.config import HANDLERS_SETTINGS, Settings
from worker_service.settings.loading import load_settings


@pytest.fixture(autouse=True)
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that replaces /etc/pagemill and /var/lib/pagemill."""
    monkeypatch.setattr(loading, "SERVICE_CONFIGURATION", tmp_path / "service/etc")
    monkeypatch.setattr(loading, "SERVICE_STATE", tmp_path / "service/state")
    return tmp_path / "service"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


Load = Callable[..., Settings]


@pytest.fixture
def load(home: dict[str, str], tmp_path: Path) -> Load:
    """Load settings from the text of a file and from variables."""

    def load(text: str | None = None, **variables: str) -> Settings:
        file = {} if text is None else {"WORKER_CONFIG": str(write(tmp_path / "own.toml", text))}
        return load_settings(environ=home | file | variables, directory=tmp_path)

    return load


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout of this code."""
    monkeypatch.setattr(loading, "CHECKOUT", tmp_path / "tree")
    return write(tmp_path / "tree/pyproject.toml", "").parent


def test_defaults_apply_without_any_setting(home: dict[str, str], tmp_path: Path) -> None:
    settings = load_settings(environ=home, directory=tmp_path)

    # docs/settings.md shows the defaults that depend on nothing, and is compared with them.
    assert settings.database == tmp_path / "home/.local/share/pagemill/pagemill.db"
    assert settings.workspace == tmp_path / "home/.local/share/pagemill/workspace"
    assert (settings.concurrency, settings.io_concurrency) == (len(os.sched_getaffinity(0)), 4)
    assert set(settings.origins.values()) == {"default"}


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(home: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "own.toml", 'database = "/file.db"\norphan_after = "5m"\npayload_bytes_max = 2048\n')
    environ = {**home, "WORKER_CONFIG": str(file), "WORKER_DATABASE": "/env.db", "WORKER_ORPHAN_AFTER": "2m"}

    settings = load_settings({"database": "/flag.db"}, environ=environ, directory=tmp_path)

    shown = [*settings.describe_values()]
    assert ("database", "/flag.db", "--database") in shown
    assert ("payload_bytes_max", "2048", str(file)) in shown
    assert ("orphan_after", "120s", "WORKER_ORPHAN_AFTER") in shown
    assert ("io_concurrency", "4", "default") in shown


def test_the_default_database_is_of_systemd_the_checkout_or_the_user(
    home: dict[str, str], tmp_path: Path, tree: Path
) -> None:
    state = {**home, "STATE_DIRECTORY": "/var/lib/pagemill:/var/lib/other"}
    xdg = {**home, "XDG_DATA_HOME": "/data"}

    assert load_settings(environ=state, directory=tree).database == Path("/var/lib/pagemill/pagemill.db")
    assert load_settings(environ=xdg, directory=tree).database == tree / "var/pagemill.db"
    assert load_settings(environ=xdg, directory=tmp_path).database == Path("/data/pagemill/pagemill.db")
    relative = {**home, "XDG_DATA_HOME": "data"}
    assert load_settings(environ=relative, directory=tmp_path).database.is_relative_to(tmp_path / "home")


def test_this_repository_is_the_checkout() -> None:
    assert (loading.CHECKOUT / "pyproject.toml").is_file()


def test_an_installed_pagemill_ignores_another_checkout(home: dict[str, str], tmp_path: Path) -> None:
    other = write(tmp_path / "other/pyproject.toml", "").parent

    assert load_settings(environ=home, directory=other).database == tmp_path / "home/.local/share/pagemill/pagemill.db"


def test_the_installed_services_settings_and_database_are_used(
    home: dict[str, str], service: Path, tmp_path: Path
) -> None:
    file = write(service / "etc/pagemill.toml", "io_concurrency = 7\n")

    settings = load_settings(environ=home, directory=tmp_path)
    write(file, 'database = "/data/q.db"\n')
    elsewhere = load_settings(environ=home, directory=tmp_path)

    assert (settings.database, settings.workspace) == (service / "state/pagemill.db", service / "state/workspace")
    assert (settings.io_concurrency, settings.is_of_the_service) == (7, True)
    assert ("database", str(service / "state/pagemill.db"), "the service") in settings.describe_values()
    assert ("io_concurrency", "7", str(file)) in settings.describe_values()
    assert (elsewhere.database, elsewhere.is_of_the_service) == (Path("/data/q.db"), True)
    assert elsewhere.start_command == "systemctl start pagemill pagemill-commands"


def test_nearer_settings_override_those_of_the_service(
    home: dict[str, str], service: Path, tmp_path: Path, tree: Path
) -> None:
    write(service / "etc/pagemill.toml", "io_concurrency = 7\n")
    named = {**home, "WORKER_DATABASE": "/env.db"}
    given = {**home, "STATE_DIRECTORY": "/var/lib/other"}

    assert load_settings({"database": "/flag.db"}, environ=home, directory=tmp_path).database == Path("/flag.db")
    assert load_settings(environ=named, directory=tmp_path).database == Path("/env.db")
    assert load_settings(environ=given, directory=tmp_path).database == Path("/var/lib/other/pagemill.db")
    assert load_settings(environ=home, directory=tree).database == tree / "var/pagemill.db"
    write(tmp_path / "home/.config/pagemill/pagemill.toml", "orphan_after = 60\n")
    own = load_settings(environ=home, directory=tmp_path)
    assert (own.database, own.io_concurrency) == (tmp_path / "home/.local/share/pagemill/pagemill.db", 4)
    assert not own.is_of_the_service
    assert own.start_command == "pagemill run"


def test_a_user_who_cannot_read_the_services_database_uses_their_own(
    home: dict[str, str], service: Path, tmp_path: Path
) -> None:
    write(service / "etc/pagemill.toml", "io_concurrency = 7\n")
    assert load_settings(
        environ=home, directory=tmp_path
    ).is_of_the_service  # There is none: the sentence about it helps.

    own = write(tmp_path / "home/.local/share/pagemill/pagemill.db", "")
    kept = load_settings(environ=home, directory=tmp_path)
    write(service / "state/pagemill.db", "")

    assert (kept.database, kept.io_concurrency) == (own, 4)
    assert load_settings(environ=home, directory=tmp_path).is_of_the_service


def test_the_nearest_settings_file_is_read(home: dict[str, str], tmp_path: Path, tree: Path) -> None:
    write(tmp_path / "home/.config/pagemill/pagemill.toml", "orphan_after = 1\n")
    write(tree / "var/pagemill.toml", "orphan_after = 2\n")
    write(tmp_path / "etc/pagemill.toml", "orphan_after = 3\n")
    named = write(tmp_path / "named.toml", "orphan_after = 4\n")
    configured = {**home, "CONFIGURATION_DIRECTORY": str(tmp_path / "etc")}

    found = [
        load_settings(environ=environ, directory=directory).orphan_after_seconds
        for environ, directory in [
            (home, tmp_path), (home, tree), (configured, tree), ({**configured, "WORKER_CONFIG": str(named)}, tree),
        ]
    ]  # fmt: skip

    assert found == [1, 2, 3, 4]


def test_a_relative_path_is_relative_to_its_file_or_the_working_directory(home: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "etc/own.toml", 'database = "data/q.db"\n')
    environ = {**home, "WORKER_CONFIG": str(file)}

    assert load_settings(environ=environ, directory=tmp_path).database == tmp_path / "etc/data/q.db"
    assert load_settings({"database": "q.db"}, environ=environ, directory=tmp_path).database == tmp_path / "q.db"


def test_an_empty_variable_is_ignored(load: Load) -> None:
    assert load(WORKER_DATABASE="").origins["database"] == "default"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('databse = "x"', "there is no setting 'databse': did you mean database?"),
        ("qqqqqq = 1", "the settings are database, workspace, payload_bytes_max, concurrency"),
        ("[database]", "is the path of a file"),
        ('database = ""', "is the path of a file"),
        ('database = "postgres://host/x"', "SQLite only"),
        ('database = "sqlite:///x.db"', "give the path of a file"),
        ("payload_bytes_max = 1023", "from 1024"),
        ("payload_bytes_max = true", "from 1024"),
        ('payload_bytes_max = "much"', "from 1024"),
        ("orphan_after = 0", "such as 5m"),
        ('orphan_after = "soon"', "such as 5m"),
        ('orphan_after = "99999999999999d"', "such as 5m"),
        ("orphan_after = ", "is not TOML"),
        ("concurrency = -1", "a number of slots"),
        ("concurrency = 1001", "a number of slots"),
        ("grace_period = -1", "such as 5m"),
        ("types = [1]", "a list of job types"),
        ('types = "!"', "a list of job types"),
        ('log_format = "xml"', "auto, console, json, journal"),
        ('sandbox = "none"', "strict, best-effort, off"),
        ('workspace = ""', "path of a directory"),
        ("limits = 3", "is a table"),
        ("[limits.colour]", "there is no limit of 'colour'"),
        ("[limits.type]\nocr_pages = -1", "limits.type.ocr_pages is a number of jobs"),
        ("[limits.class]\ngpu = 1", "the classes are cpu, io and node"),
        ("[commands.scrape]", "commands.scrape: argv is missing"),
        ('[commands]\nscrape = "x"', "is a table"),
        ('[prune]\nrunning = "1d"', "prune: there is no setting 'running'"),
        ('[commands.x]\nargv = ["/bin/x"]\ncwdd = "/srv"', "commands.x: there is no setting 'cwdd': did you mean cwd?"),
        ('[commands.x]\nargv = ["/bin/x", "{acount}"]', "commands.x.argv: {acount} is not known"),
        (f'[commands.{"x" * 101}]\nargv = ["/bin/x"]', "is not the name of a job type"),
        ("[prune]\nfailed = 30", "such as 30d"),
        ('[prune]\nfailed = "30"', "such as 30d"),
        ('[prune]\nfailed = "soon"', "such as 30d, or never, not 'soon'"),
        ("unknown_type_grace = 0", "such as 5m"),
        ("queued_patience = -1", "such as 5m"),
        ('indexing_patience = "soon"', "such as 5m"),
        ('webhook_allow = "intranet"', "a list of networks such as 10.0.0.0/8"),
        ("webhook_allow = [10]", "a list of networks such as 10.0.0.0/8"),
        ("download_bytes_max = -1", "a number of bytes"),
        ("download_roots = 1", "a list of directories"),
        ('drive_endpoint = "http://10.0.0.7:80"', "a server on this machine"),
        ("retries = 3", "is a table"),
        ("[retries]\nocr_pages = 3", "retries.ocr_pages is a table"),
        ("[retries.ocr_pages]\nmaximum = 3", "there is no setting 'maximum': did you mean max?"),
        ("[retries.ocr_pages]\nmax = -1", "retries.ocr_pages.max is a number of retries"),
        ('[retries.ocr_pages]\nmax = "5"', "retries.ocr_pages.max is a number of retries"),
        ('[retries.ocr_pages]\nfirst = "soon"', "retries.ocr_pages.first is a length of time"),
        ('[retries.ocr_pages]\nfirst = "2h"\nmost = "1h"', "no wait is longer than most"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_file(load: Load, tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)

    assert sentence in str(caught.value)
    assert str(tmp_path / "own.toml") in str(caught.value)


def test_tables_of_the_file_are_parsed(load: Load, tmp_path: Path) -> None:
    text = """
    types = ["ocr_pages", "!command"]
    poll_interval = 0.5
    [limits.type]
    ocr_pages = 2
    [limits.owner]
    "*" = 3
    [commands.scrape_account]
    argv = ["/opt/scrape", "--user", "{account}"]
    timeout = "2h"
    [retries.ocr_pages]
    max = 5
    first = "30s"
    [retries.download]
    most = "1s"
    [prune]
    completed = "800d"
    failed = "never"
    """
    file = tmp_path / "own.toml"

    settings = load(text)

    assert settings.types == ("ocr_pages", "!command")
    assert settings.poll_interval_seconds == 0.5
    assert settings.limits == {"type": {"ocr_pages": 2}, "owner": {"*": 3}}
    assert settings.commands["scrape_account"]["timeout"] == "2h"
    assert settings.retries == {"ocr_pages": RetryRule(5, 30, 3600), "download": RetryRule(None, 1, 1)}
    assert ("retries.ocr_pages", "max 5, first 30s, most 3600s", str(file)) in settings.describe_values()
    assert [(key, *rest) for key, *rest in settings.describe_values() if key.startswith("prune.")] == [
        ("prune.completed", "800d", str(file)),
        ("prune.failed", "never", str(file)),
        ("prune.cancelled", "90d", "default"),
        ("prune.logs", "30d", "default"),
    ]
    assert ("commands.scrape_account", "/opt/scrape", str(file)) in settings.describe_values()


def test_settings_of_handlers_are_parsed_and_exported(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    webhook_allow = ["10.0.0.0/8", "fd00::/8"]
    download_roots = ["/srv/reports", "scans"]
    download_bytes_max = 1000
    """
    file = write(tmp_path / "own.toml", text)
    given = {**home, "WORKER_CONFIG": str(file), "WORKER_WEBHOOK_ALLOW": "192.168.7.7/16, ::1"}
    for name in ("WORKER_WEBHOOK_ALLOW", "WORKER_DOWNLOAD_ROOTS", "WORKER_DOWNLOAD_BYTES_MAX", "WORKER_DOWNLOAD_ALLOW"):
        monkeypatch.setenv(name, "")

    settings = load_settings(environ=given, directory=tmp_path)
    settings.export_handler_settings()

    shown = [line for line in settings.describe_values() if line[0].startswith(("webhook", "download"))]
    assert sorted(shown) == [
        ("download_allow", "", "default"),
        ("download_bytes_max", "1000", str(file)),
        ("download_roots", f"/srv/reports:{tmp_path}/scans", str(file)),
        ("webhook_allow", "192.168.0.0/16,::1/128", "WORKER_WEBHOOK_ALLOW"),
    ]
    assert HandlersSettings.webhook_allow.from_environment() == ("192.168.0.0/16", "::1/128")
    assert HandlersSettings.download_roots.from_environment() == ("/srv/reports", f"{tmp_path}/scans")
    assert HandlersSettings.download_bytes_max.from_environment() == 1000
    assert os.environ["WORKER_DOWNLOAD_ALLOW"] == ""


@pytest.fixture
def scrapers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Another distribution with settings of its own."""

    def install(text: str) -> None:
        write(tmp_path / "scrapers/scrapers_settings.py", text)
        monkeypatch.delitem(sys.modules, "scrapers_settings", raising=False)

    installed.install(
        tmp_path / "scrapers", "scrapers", {}, {HANDLERS_SETTINGS: {"scrapers": "scrapers_settings:ScrapeSettings"}}
    )
    monkeypatch.syspath_prepend(tmp_path / "scrapers")
    return install


DOCS = (Path(__file__).resolve().parent.parent / "docs/settings.md").read_text("utf-8")
DECLARED = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0]


def test_settings_of_third_party_handlers_are_parsed_and_exported(load: Load, scrapers: Callable[[str], None]) -> None:
    scrapers(DECLARED)

    settings = load("scrape_pages_max = 7\n")

    assert ("scrape_pages_max", "7", str(settings.file)) in settings.describe_values()
    for wrong, sentence in (("scrape_pages_max = 0", "is a number of pages"), ("scrape_page_max = 1", "did you mean")):
        with pytest.raises(ConfigError, match=sentence):
            load(wrong)
    with pytest.raises(ConfigError, match="did you mean WORKER_SCRAPE_PAGES_MAX"):
        load(WORKER_SCRAPE_PAGE_MAX="1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import not_there", "the settings that scrapers_settings:ScrapeSettings declares cannot be read: .*not_there"),
        (DECLARED.replace("scrape_pages_max", "concurrency"), "the setting concurrency of scrapers_settings"),
    ],
)
def test_broken_declarations_are_reported_only_if_a_key_is_unknown(
    load: Load, scrapers: Callable[[str], None], text: str, sentence: str
) -> None:
    scrapers(text)

    load(WORKER_CONCURRENCY="3")
    with pytest.raises(ConfigError, match=sentence):
        load(WORKER_DOWNLOAD_ROOTS="/srv")


def test_a_length_of_time_is_shown_as_it_can_be_written(load: Load) -> None:
    settings = load(WORKER_UNKNOWN_TYPE_GRACE="30d", WORKER_POLL_INTERVAL="0.25")

    shown = {key: value for key, value, _ in settings.describe_values()}

    assert (shown["unknown_type_grace"], shown["poll_interval"]) == ("2592000s", "0.25s")
    again = load(WORKER_UNKNOWN_TYPE_GRACE=shown["unknown_type_grace"])
    assert again.unknown_type_grace_seconds == 30 * 86_400


def test_the_default_workspace_is_beside_the_database(load: Load, tmp_path: Path) -> None:
    assert load(WORKER_DATABASE="data/q.db").workspace == tmp_path / "data/workspace"


def test_an_orphan_time_shorter_than_two_beats_is_refused(load: Load) -> None:
    with pytest.raises(ConfigError, match="at least twice as long"):
        load(WORKER_ORPHAN_AFTER="10", WORKER_HEARTBEAT_INTERVAL="6")


def test_the_default_heartbeat_is_shortened_for_a_short_orphan_time(load: Load) -> None:
    assert load(WORKER_ORPHAN_AFTER="4").heartbeat_interval_seconds == 1


def test_a_named_file_must_exist(load: Load) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(WORKER_CONFIG="missing.toml")


@pytest.mark.parametrize(
    "name", ["WORKER_DATABSE", "WORKER_DATABASE_URL", "WORKER_ORPHANS_AFTER", "WORKER_PAYLOAD_MAX"]
)
def test_a_misspelt_variable_is_refused(load: Load, name: str) -> None:
    with pytest.raises(ConfigError, match="did you mean WORKER_"):
        load(**{name: "x"})


@pytest.mark.parametrize("name", ["WORKER_COMMANDS", "WORKER_PRUNE", "WORKER_CLASS", "WORKER_ID", "WORKER_HOME"])
def test_a_variable_of_another_program_is_ignored(load: Load, name: str) -> None:
    load(**{name: "x"})


@pytest.mark.parametrize(
    ("text", "variable", "slots", "origin"),
    [
        ("", "2", (2, 2), "WORKER_CONCURRENCY"),
        ("concurrency = 3", "", (3, 3), "FILE"),
        ("io_concurrency = 5", "2", (2, 5), "FILE"),
        # It keeps cpu jobs away, and a worker without any slot would be none.
        ("", "0", (0, 4), "default"),
    ],
)
def test_concurrency_alone_applies_to_both_classes(
    load: Load, tmp_path: Path, text: str, variable: str, slots: tuple[int, int], origin: str
) -> None:
    settings = load(text, WORKER_CONCURRENCY=variable)

    assert (settings.concurrency, settings.io_concurrency) == slots
    assert settings.origins["io_concurrency"] == origin.replace("FILE", str(tmp_path / "own.toml"))


def test_commands_in_types_stands_for_every_command(load: Load) -> None:
    tables = '[commands.a]\nargv = ["/a"]\n[commands.b]\nargv = ["/b"]\n'

    assert load(tables, WORKER_TYPES="@commands,c").types == ("@commands", "a", "b", "c")
    assert load(tables, WORKER_TYPES="!@commands").types == ("!@commands", "!a", "!b")


def test_commands_in_types_without_commands_allows_no_type(load: Load) -> None:
    assert not allows_type(load(WORKER_TYPES="@commands").types, "ocr_pages")
