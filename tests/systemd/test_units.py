from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from worker_service.settings.config import every_setting
from worker_service.settings.loading import load_settings

PLACE = Path(__file__).resolve().parents[2] / "systemd"
UNITS = sorted(path.name for path in PLACE.glob("*.service"))
TIMERS = sorted(path.name for path in PLACE.glob("*.timer"))
EXPOSURE_MOST = {
    "pagemill.service": 15,
    "pagemill-commands.service": 15,
    "pagemill-offline@.service": 5,
    "pagemill-schedule.service": 5,
    "pagemill-backup.service": 5,
    "pagemill-web.service": 16,
    # Most of what is counted needs rights that a user's systemd does not have. SECURITY.md says the figure.
    "pagemill-user.service": 78,
}
"""Ten times what `systemd-analyze security` prints."""


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        (pytest.fail if os.environ.get("CI") and os.geteuid() == 0 else pytest.skip)("systemd is not installed")
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_understands_each_unit(unit: str, tmp_path: Path) -> None:
    # A template is understood by one of its instances.
    instance = tmp_path / unit.replace("@", "@ocr_pages")
    instance.write_bytes((PLACE / unit).read_bytes())

    done = analyze("verify", str(instance))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("timer", TIMERS)
def test_systemd_understands_each_timer_and_its_service(timer: str, tmp_path: Path) -> None:
    for name in (timer, timer.replace("timer", "service")):
        (tmp_path / name).write_bytes((PLACE / name).read_bytes())

    done = analyze("verify", str(tmp_path / timer))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", EXPOSURE_MOST)
def test_the_exposure_of_each_unit_is_at_most_its_limit(unit: str, tmp_path: Path) -> None:
    instance = tmp_path / unit.replace("@", "@ocr_pages")
    instance.write_bytes((PLACE / unit).read_bytes())

    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MOST[unit]}", str(instance))

    assert done.returncode == 0, done.stdout


def test_each_unit_has_a_limit_of_exposure() -> None:
    assert set(UNITS) == set(EXPOSURE_MOST)


_OF_THE_DAEMON = sorted(
    {*UNITS} - {f"pagemill-{name}.service" for name in ("schedule", "backup", "web", "ray", "node")}
)


def test_the_user_unit_restricts_namespaces_too() -> None:
    """A system call filter needs no privileges."""
    restricted = {"RestrictNamespaces", "RestrictAddressFamilies"}

    assert _values("pagemill-user.service", restricted) == _values("pagemill-commands.service", restricted)


@pytest.mark.parametrize("name", _OF_THE_DAEMON)
def test_all_daemon_units_have_the_same_restart_and_resource_settings(name: str) -> None:
    treated = {"WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus", "KillMode", "TimeoutStopSec",
               "OOMPolicy", "CPUWeight", "IOWeight", "Nice", "Type", "StartLimitIntervalSec",
               "StartLimitBurst"}  # fmt: skip

    assert _values(name, treated) == _values("pagemill.service", treated)


def test_the_daemon_has_a_lower_weight_than_other_services() -> None:
    shares = _values("pagemill.service", {"CPUWeight", "IOWeight", "Nice"})

    # 100 is what every other service has.
    assert shares == {"CPUWeight=30", "IOWeight=30", "Nice=10"}


def test_one_unit_runs_the_commands_and_the_other_excludes_them(tmp_path: Path) -> None:
    file = tmp_path / "pagemill.toml"
    file.write_text('[commands.a]\nargv = ["/a"]\n[commands.b]\nargv = ["/b"]\n')

    def types(unit: str) -> set[str]:
        [written] = [line.partition("=")[2] for line in _values(unit, {"Environment"}) if "WORKER_TYPES" in line]
        environ = {"HOME": str(tmp_path), "WORKER_CONFIG": str(file), "WORKER_TYPES": written.partition("=")[2]}
        return set(load_settings(environ=environ, directory=tmp_path).types)

    assert types("pagemill-commands.service") == {"@commands", "a", "b"}
    assert types("pagemill.service") == {"!@commands", "!a", "!b"}


def test_the_timeouts_of_the_unit_fit_the_settings(tmp_path: Path) -> None:
    defaults = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)

    values = dict(line.split("=", 1) for line in (PLACE / "pagemill.service").read_text().splitlines() if "=" in line)
    assert float(values["TimeoutStopSec"]) > defaults.grace_period_seconds + 30
    assert float(values["WatchdogSec"]) >= 3 * defaults.heartbeat_interval_seconds
    assert values["RestartPreventExitStatus"] == "78"
    assert values["OOMPolicy"] == "continue"


def test_the_example_settings_are_valid_when_uncommented(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in (PLACE / "pagemill.toml").read_text().splitlines()[1:]]
    file = tmp_path / "pagemill.toml"
    # A program that runs in a directory of its own publishes none of its files: of the two it has one.
    file.write_text("\n".join(line for line in lines if not line.startswith("cwd =")))

    settings = load_settings(environ={"HOME": str(tmp_path), "WORKER_CONFIG": str(file)}, directory=tmp_path)

    assert settings.limits["owner"] == {"*": 4}
    assert "scrape_account" in settings.commands
    in_file = [setting for key, setting in every_setting().items() if settings.origins[key] == str(file)]
    changed = {
        setting.key
        for setting in in_file
        if setting.default is None or settings.values[setting.key] != setting.value_type.read(setting.default, "")
    }
    assert changed == {
        "database", "workspace", "concurrency", "limits", "commands", "retries", "schedule", "notify", "addresses",
    }  # fmt: skip


def _values(unit: str, names: set[str]) -> set[str]:
    lines = (PLACE / unit).read_text().splitlines()
    return {line for line in lines if line.partition("=")[0] in names}
