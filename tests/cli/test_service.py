"""`pagemill service`: prints each step before the first is done, and does no other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run, items
from worker_service.cli import service_installation
from worker_service.settings import loading

SHIPPED = Path(__file__).resolve().parents[2] / "systemd"
PYTHON = "/opt/pagemill/bin/python"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemctl") is None or shutil.which("systemd-sysusers") is None or os.geteuid() != 0,
    reason="needs root and systemd",
)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_dry_run_prints_every_step_and_does_none(run: Run, root: Path, commands: list[list[str]]) -> None:
    result = run("service", "install", "--dry-run", "--root", root, "--python", PYTHON)

    assert (files(root), commands) == ([], [])
    lines = result.stdout.splitlines()
    assert f"write  {root}/etc/systemd/system/pagemill.service" in lines
    assert f"run    systemctl --root={root} enable pagemill.service pagemill-commands.service" in lines


def test_install_starts_the_daemons(run: Run) -> None:
    steps = items(run("service", "install", "--dry-run", "--python", PYTHON, "--json"))

    paths = [step["path"] for step in steps if step["step"] != "run"]
    assert paths == [
        "/etc/systemd/system/pagemill.service",
        "/etc/systemd/system/pagemill-commands.service",
        "/etc/systemd/system/pagemill-offline@.service",
        "/etc/systemd/system/pagemill-schedule.service",
        "/etc/systemd/system/pagemill-schedule.timer",
        "/etc/systemd/system/pagemill-backup.service",
        "/etc/systemd/system/pagemill-backup.timer",
        "/etc/systemd/system/pagemill-web.service",
        "/etc/sysusers.d/pagemill.conf",
        "/etc/tmpfiles.d/pagemill.conf",
        "/etc/pagemill/pagemill.toml",
    ]
    ran = [" ".join(step["argv"]) for step in steps if step["step"] == "run"]
    assert ran[0] == "systemd-sysusers pagemill.conf"
    assert ran[2].endswith(f'umask 0007 && exec "$0" -m worker_service.cli "$@" {PYTHON} init')
    assert ran[-2:] == [
        "systemctl restart pagemill.service pagemill-commands.service",
        "systemctl try-restart pagemill-web.service",
    ]


def test_install_with_web_also_starts_the_web_page(run: Run) -> None:
    steps = items(run("service", "install", "--dry-run", "--python", PYTHON, "--web", "--json"))

    ran = [" ".join(step["argv"]) for step in steps if step["step"] == "run"]
    assert ran[-1] == "systemctl restart pagemill.service pagemill-commands.service pagemill-web.service"
    assert "pagemill serve" in run("service", "install", "--user", "--web", fails=2).stderr


def test_install_prints_how_to_add_a_key_and_a_user(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")

    stderr = run("service", "install", "--dry-run", "--python", PYTHON).stderr

    # Downloads and crawls use this name by default.
    assert "LoadCredential=drive:/etc/pagemill/drive.json" in stderr
    assert "chmod 600 /etc/pagemill/drive.json" in stderr
    assert "usermod -aG pagemill ann," in stderr
    assert "pagemill-offline@TYPE" in stderr


def test_the_written_unit_is_the_shipped_one_with_this_python(run: Run, root: Path, commands: list[list[str]]) -> None:
    run("service", "install", "--root", root, "--python", PYTHON)

    written = (root / "etc/systemd/system/pagemill.service").read_text()
    shipped = (SHIPPED / "pagemill.service").read_text()
    changed = set(written.splitlines()) ^ set(shipped.splitlines())
    assert changed == {f"ExecStart={PYTHON} -m worker_service", "ExecStart=/usr/bin/env python3 -m worker_service"}
    assert (root / "etc/pagemill/pagemill.toml").read_text() == (SHIPPED / "pagemill.toml").read_text()


def test_existing_settings_are_kept(run: Run, root: Path, commands: list[list[str]]) -> None:
    settings = root / "etc/pagemill/pagemill.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("concurrency = 3\n")

    result = run("service", "install", "--root", root, "--python", PYTHON)

    assert f"keep   {settings}" in result.stdout.splitlines()
    assert settings.read_text() == "concurrency = 3\n"


@needs_systemd
def test_install_in_an_image_creates_user_directories_and_units(run: Run, root: Path) -> None:
    run("service", "install", "--root", root, "--python", PYTHON)
    # A second install changes nothing.
    run("service", "install", "--root", root, "--python", PYTHON)

    assert "pagemill:" in (root / "etc/passwd").read_text()
    assert (root / "var/lib/pagemill").stat().st_mode & 0o7777 == 0o2770
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    assert sorted(path.name for path in wanted.iterdir()) == ["pagemill-commands.service", "pagemill.service"]

    run("service", "uninstall", "--root", root)

    assert not any("systemd/system" in name or ".d/pagemill" in name for name in files(root))
    assert not wanted.exists()
    assert "etc/pagemill/pagemill.toml" in files(root)
    assert (root / "var/lib/pagemill").is_dir()


def test_uninstall_without_an_install_has_nothing_to_do(run: Run, root: Path, commands: list[list[str]]) -> None:
    result = run("service", "uninstall", "--root", root)

    assert result.stdout == ""
    assert "the service is not installed" in result.stderr
    assert commands == []


def test_install_for_a_user_creates_a_unit_and_a_database(run: Run, tmp_path: Path, commands: list[list[str]]) -> None:
    unit = tmp_path / "home/systemd/user/pagemill.service"

    run("service", "install", "--user", "--python", PYTHON)

    assert f"ExecStart={PYTHON} -m worker_service" in unit.read_text().splitlines()
    assert commands[0] == [PYTHON, "-m", "worker_service.cli", "init"]
    assert commands[-1] == ["systemctl", "--user", "restart", "pagemill.service"]

    run("service", "uninstall", "--user")

    assert not unit.exists()
    assert ["systemctl", "--user", "disable", "--now", "pagemill.service"] in commands


def test_install_links_the_command_into_usr_local_bin(run: Run, root: Path, commands: list[list[str]]) -> None:
    script = root / PYTHON.lstrip("/").replace("python", "pagemill")
    script.parent.mkdir(parents=True)
    script.touch()

    stdout = run("service", "install", "--root", root, "--python", PYTHON).stdout

    link = root / "usr/local/bin/pagemill"
    assert link.readlink() == Path("/opt/pagemill/bin/pagemill")
    assert f"link   {link} to /opt/pagemill/bin/pagemill" in stdout.splitlines()
    # A file of another origin is kept.
    link.unlink()
    link.touch()
    assert "link " not in run("service", "install", "--root", root, "--python", PYTHON).stdout


def test_a_user_service_on_the_database_of_the_machine_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    database = tmp_path / "state/pagemill.db"
    run("init", "--database", database)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pagemill.toml").touch()
    monkeypatch.delenv("WORKER_DATABASE")
    monkeypatch.setattr(loading, "SERVICE_CONFIGURATION", tmp_path / "etc")
    monkeypatch.setattr(loading, "SERVICE_STATE", tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    refused = run("run", fails=78)
    as_user = run("service", "install", "--user", fails=1)

    assert f"{database} is the service's" in refused.stderr
    assert "systemctl start pagemill" in refused.stderr
    assert "~/.config/pagemill/pagemill.toml" in as_user.stderr
    assert commands == []


@pytest.mark.parametrize("python", ["/root/venv/bin/python", "/home/ann/venv/bin/python", "/opt/../root/bin/python"])
def test_a_python_that_the_unit_cannot_see_is_refused(run: Run, root: Path, python: str) -> None:
    result = run("service", "install", "--root", root, "--python", python, fails=1)

    # The remedy installs from the same source, in one line that can be pasted.
    again = f"/opt/pagemill/bin/pip install {SHIPPED.parent} && /opt/pagemill/bin/pagemill service install"
    assert f" /usr/bin/python3 -m venv /opt/pagemill && {again}" in result.stderr
    assert files(root) == []


def test_only_root_installs_for_the_whole_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    for words in (["install", "--python", PYTHON], ["uninstall"]):
        assert "use sudo, or --user" in run("service", *words, fails=77).stderr


def test_a_failed_step_shows_the_message_of_its_command(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Read-only file system\n")

    monkeypatch.setattr(subprocess, "run", fail)

    result = run("service", "install", "--root", root, "--python", PYTHON, fails=1)

    assert "systemd-sysusers" in result.stderr
    assert "ended with 1: Read-only file system" in result.stderr


def test_a_machine_without_systemd_says_so(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))

    assert (
        "systemd-sysusers is not installed"
        in run("service", "install", "--root", root, "--python", PYTHON, fails=69).stderr
    )


def test_install_refuses_the_option_database(run: Run) -> None:
    result = run("service", "install", "--dry-run", "--python", PYTHON, "--database", "/tmp/x.db", fails=2)

    assert "/etc/pagemill/pagemill.toml" in result.stderr


def test_special_characters_in_the_path_of_python_are_escaped_for_systemd() -> None:
    text = service_installation.unit_text("pagemill.service", '/srv/my "100%"/bin/python')

    assert 'ExecStart="/srv/my \\"100%%\\"/bin/python" -m worker_service' in text.splitlines()
