"""The files for systemd say what the daemon means, and systemd understands them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from worker_service.config import every_setting, load_settings

PLACE = Path(__file__).resolve().parents[2] / "systemd"
UNIT = PLACE / "pagemill.service"
EXPOSURE_MOST = 15
"""Ten times what `systemd-analyze security` prints."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@needs_systemd
def test_systemd_understands_the_unit() -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_no_more_exposed_than_it_was() -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MOST}", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_the_times_of_the_unit_fit_those_of_the_daemon(tmp_path: Path) -> None:
    defaults = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)

    [stop], [watchdog] = settings("TimeoutStopSec"), settings("WatchdogSec")
    assert float(stop) > defaults.grace_period_seconds + 30
    assert float(watchdog) >= 3 * defaults.heartbeat_interval_seconds
    assert settings("RestartPreventExitStatus") == ["78"]
    assert settings("OOMPolicy") == ["continue"]


def test_the_example_settings_can_be_read_with_every_line_in_force(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in (PLACE / "pagemill.toml").read_text().splitlines()[1:]]
    file = tmp_path / "pagemill.toml"
    # A program that runs in a directory of its own publishes none of its files: of the two it has one.
    file.write_text("\n".join(line for line in lines if not line.startswith("cwd =")))

    read = load_settings(environ={"HOME": str(tmp_path), "WORKER_CONFIG": str(file)}, directory=tmp_path)

    assert read.limits["owner"] == {"*": 4}
    assert "scrape_account" in read.commands
    written = [setting for key, setting in every_setting().items() if read.origins[key] == str(file)]
    others = [one for one in written if one.default is None or read.values[one.key] != one.kind.read(one.default, "")]
    assert {one.key for one in others} == {"database", "workspace", "concurrency", "limits", "commands", "retries"}
