"""`pagemill cluster init`, `invite`, `join`, `start`: what they write, in the file system of an image."""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
from pathlib import Path

import pytest

from tests import installed
from tests.commands.conftest import ROOT, Process, Run
from worker_service import VERSION
from worker_service.commands import service
from worker_service.config import load_settings
from worker_service.nodes import ray_settings
from worker_service.operations.joining import valid_until

ADDRESS = "10.1.2.3"


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the Python of these tests lies: what is joined has its own."""
    monkeypatch.setattr(service, "_HIDDEN", ())


def init(run: Run, root: Path, *more: object) -> Path:
    run("cluster", "init", "ray", ADDRESS, "--root", root, *more)
    return root / "etc/pagemill/cluster"


@pytest.mark.usefixtures("ray")
def test_init_makes_keys_for_root_alone_and_units_and_again_it_keeps_what_others_have(
    run: Run, root: Path, commands: list[list[str]]
) -> None:
    keys = init(run, root)

    made = {file.name: file.read_text() for file in keys.iterdir()}
    assert set(made) == {*ray_settings.KEYS, "authority.key", "cluster.json"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in keys.iterdir()} == {0o600}
    assert json.loads(made["cluster.json"])["head"] == f"{ADDRESS}:6379"
    assert valid_until(made["cluster.cert"]).year >= 2030
    unit = (root / "etc/systemd/system/pagemill-ray.service").read_text()
    assert "worker_service.commands cluster start" in unit
    drop_in = (root / "etc/systemd/system/pagemill.service.d/cluster.conf").read_text()
    assert "LoadCredential=cluster.token:/etc/pagemill/cluster/cluster.token" in drop_in
    assert ["systemctl", f"--root={root}", "enable", "pagemill-ray.service"] in commands

    init(run, root)
    again = {file.name: file.read_text() for file in keys.iterdir()}
    assert {name for name in made if made[name] == again[name]} == {
        "cluster.ca", "authority.key", "cluster.token", "cluster.json",
    }  # fmt: skip


@pytest.mark.usefixtures("ray", "commands")
def test_a_machine_joins_with_the_file_that_it_was_invited_with(run: Run, root: Path, tmp_path: Path) -> None:
    keys = init(run, root)
    other = tmp_path / "other"
    other.mkdir()

    file = tmp_path / "box2.join"
    file.write_text(run("cluster", "invite", "box2", "10.1.2.4", "--slots", "3", "--root", root, fails=2).stdout)
    file.write_text(run("cluster", "invite", "10.1.2.4", "--slots", "3", "--root", root).stdout)
    run("cluster", "join", file, "--root", other)

    theirs = other / "etc/pagemill/cluster"
    assert (theirs / "cluster.token").read_text() == (keys / "cluster.token").read_text()
    assert (theirs / "cluster.key").read_text() != (keys / "cluster.key").read_text()
    assert not (theirs / "authority.key").exists()
    member = json.loads((theirs / "cluster.json").read_text())
    assert member == {"head": f"{ADDRESS}:6379", "address": "10.1.2.4", "is_head": False, "slots": 3}
    assert (other / "etc/systemd/system/pagemill-node.service").exists()
    assert "is the head" in run("cluster", "join", file, "--root", root, fails=1).stderr


@pytest.mark.usefixtures("ray", "commands")
def test_a_machine_with_other_versions_is_refused_before_anything_is_written(
    run: Run, root: Path, tmp_path: Path
) -> None:
    init(run, root)
    invited = json.loads(run("cluster", "invite", "10.1.2.4", "--root", root).stdout)
    assert (invited["pagemill"], invited["python"]) == (VERSION, platform.python_version())
    other = tmp_path / "other"
    other.mkdir()
    file = tmp_path / "f.join"
    file.write_text(json.dumps(invited | {"pagemill": "0.0.1", "ray": "2.59.0"}))

    refused = run("cluster", "join", file, "--root", other, fails=1).stderr

    assert "the head has pagemill 0.0.1" in refused
    assert "the head has Ray 2.59.0, and this machine 2.60.0: install the same on both" in refused
    assert list(other.iterdir()) == []


@pytest.mark.usefixtures("ray", "commands")
def test_a_python_that_the_unit_would_not_see_is_refused_before_anything_is_written(
    run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(run, root)
    file = tmp_path / "f.join"
    file.write_text(run("cluster", "invite", "10.1.2.4", "--root", root).stdout)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(service, "_HIDDEN", (sys.prefix,))

    for words in (["init", "ray", ADDRESS], ["join", str(file)]):
        refused = run("cluster", *words, "--root", other, fails=1).stderr
        assert f"{sys.executable} is hidden from the service, which sees no homes" in refused
        assert "[ray]' && " in refused
        assert refused.endswith(f"/opt/pagemill/bin/pagemill cluster {' '.join(words)}\n")
    assert list(other.iterdir()) == []
    assert "fit to be a node" in run("cluster", "join").stdout, "by ssh whoever may go there runs it"


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("Handler('reads', reads, dict, missing=lambda: 'no tesseract')", "reads cannot be run here: no tesseract"),
        ("Handler('reads', reads, dict, missing=lambda: 'no tesseract', travels=False)", ""),
        ("raise ImportError('no such library')", "reads cannot be run here: ImportError: no such library"),
    ],
    ids=["what it needs is missing", "it runs at the head alone", "it cannot be imported"],
)
def test_a_machine_is_fit_where_all_that_goes_to_nodes_can_run(
    handler: str, reason: str, tmp_path: Path, process: Process
) -> None:
    (tmp_path / "own_reads.py").write_text(
        "from worker_service.handlers import Handler\n"
        "def reads(context): ...\n"
        f"{handler if handler.startswith('raise') else f'handlers = [{handler}]'}\n"
    )
    installed.keep_of_the_shipped(tmp_path)
    installed.install(tmp_path, "own-reads", {"reads": "own_reads:handlers"})
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', ROOT)}"}

    done = process("cluster", "join", fails=1 if reason else 0, env=path)

    assert reason in done.stderr
    assert ("fit to be a node" in done.stdout) is not bool(reason)


@pytest.mark.usefixtures("ray", "commands")
def test_what_cannot_be_is_said_in_a_sentence(run: Run, root: Path, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")

    assert "no other machine finds it" in run("cluster", "init", "ray", "127.0.0.1", "--root", root, fails=2).stderr
    assert "cluster init ray" in run("cluster", "invite", "box2", "--root", root, fails=1).stderr
    assert "cluster invite" in run("cluster", "join", tmp_path / "junk", "--root", root, fails=2).stderr


def test_who_has_no_keys_starts_no_ray(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("worker_service.commands.joining.KEYS", tmp_path)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)

    assert "cluster init ray" in run("cluster", "start", fails=78).stderr


def test_the_settings_that_the_page_shows_can_be_read(tmp_path: Path) -> None:
    shown = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE | re.DOTALL)
    shown += [f"{line}\n" for line in re.findall(r"`(cluster = .*?)`", (ROOT / "docs/cluster.md").read_text())]

    assert len(shown) == 4
    for number, text in enumerate(shown):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        settings = load_settings(environ={"HOME": str(tmp_path), "WORKER_CONFIG": str(file)}, directory=tmp_path)
        assert settings.cluster is not None


@pytest.mark.usefixtures("commands")
def test_for_ssh_a_key_is_made_once_and_its_line_lets_in_for_one_program(run: Run, root: Path) -> None:
    line = run("cluster", "init", "ssh", "--root", root).stdout.splitlines()[-1]

    assert line.startswith('restrict,command="pagemill node" ssh-ed25519 AAAA')
    assert stat.S_IMODE((root / "var/lib/pagemill/.ssh/id_ed25519").stat().st_mode) == 0o600
    assert run("cluster", "init", "ssh", "--root", root).stdout.splitlines()[-1] == line
