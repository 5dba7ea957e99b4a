"""`pagemill cluster init`, `invite`, `join` and `start`: put machines together.

As `pagemill service install` does it: every file and every command is printed before the first of them is done, and
again does no harm. Keys that are there are kept.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import click

from worker_service import VERSION
from worker_service.clock import wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk, Function, verb
from worker_service.commands.service import (
    NotAllowed,
    Run,
    Step,
    Write,
    do_steps,
    refuse_hidden,
    script_of,
    shipped_file,
    unit_text,
)
from worker_service.config import SERVICE_CONFIGURATION, SERVICE_STATE
from worker_service.errors import ConfigError, Refused
from worker_service.nodes import ray_settings
from worker_service.operations import joining as operations
from worker_service.operations.joining import Joining, Member

KEYS = ray_settings.KEYS_DIRECTORY
_SSH_KEY = SERVICE_STATE / ".ssh" / "id_ed25519"
_PATH_OF_SSH = "/usr/local/bin:/usr/bin:/bin"
_TO_BE_FOUND = f"sudo ln -s {shlex.quote(str(script_of(sys.executable)))} /usr/local/bin/"
_HEAD_UNIT, _NODE_UNIT = "pagemill-ray.service", "pagemill-node.service"
_DROP_IN = """\
# Written by `pagemill cluster init ray`: the daemon's way to Ray, and the keys for it.
[Unit]
Wants=pagemill-ray.service
After=pagemill-ray.service

[Service]
SupplementaryGroups=pagemill-ray
# Ray looks for its own part on this machine among the processes, and asks how busy it is.
ProtectProc=default
ProcSubset=all
{credentials}
"""


def _placing(function: Function) -> Function:
    root = click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True)
    click.option("--dry-run", is_flag=True, help="Only say what would be done.")(function)
    return click.option("--root", type=root, help="In the file system of an image; nothing is started.")(function)


@verb
@click.argument("engine", type=click.Choice(["ssh", "ray"]))
@click.argument("hosts", metavar="[ADDRESS]...", nargs=-1)
@_placing
def init(desk: Desk, engine: str, hosts: Sequence[str], dry_run: bool, root: Path | None) -> None:
    """\b
    sudo pagemill cluster init ssh
    sudo pagemill cluster init ray 10.0.0.1
    sudo pagemill cluster init ray 10.0.0.1 --dry-run

    Make this machine the head of others. ssh: a key of the daemon's own, and the line that lets it in, for what it may
    do and no more. ray: an authority, certificates, a token, a user and a unit for Ray; ADDRESS is this machine's, by
    which nodes reach it. What is there already is kept.
    """
    _refuse_unless_root(dry_run=dry_run, root=root)
    if engine == "ssh":
        _init_ssh(desk, dry_run=dry_run, root=root)
        return
    refuse_hidden(extra="[ray]", then=f"cluster init {shlex.join([engine, *hosts])}")
    ray = operations.require_ray()
    address = operations.address_here(hosts or [socket.gethostname()])
    do_steps(desk, [*_head_steps(address, [address, *hosts], root)], dry_run=dry_run)
    if desk.as_json or dry_run:
        return
    output.say(f"with Ray {ray} at {address}:{ray_settings.PORT}; next, in {SERVICE_CONFIGURATION}/pagemill.toml:")
    output.say(f'    cluster = "ray:{address}:{ray_settings.PORT}"')
    output.say("then for each node, and run what it says there: sudo pagemill cluster invite box2 >box2.join")
    output.say("and: sudo systemctl restart pagemill && pagemill cluster")


@verb
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@click.option("--slots", type=click.IntRange(1, 1000), metavar="N", help="Attempts at once; else one for each core.")
@click.option("--root", type=click.Path(path_type=Path), help="The keys of an image.")
def invite(desk: Desk, hosts: Sequence[str], slots: int | None, root: Path | None) -> None:
    """\b
    sudo pagemill cluster invite box2 >box2.join
    sudo pagemill cluster invite box2 10.0.0.2 --slots 8 >box2.join

    Print the file with which another machine joins as a node of Ray: its certificate, the token, where the head is.
    Name the machine as others call it, and its addresses if the name does not tell them. Whoever has the file can join:
    bring it there by scp, and remove it.
    """
    if output.is_terminal(sys.stdout):
        raise Refused(f"it holds a key, and is for a file: pagemill cluster invite {hosts[0]} >{hosts[0]}.join")
    keys = _at(root, KEYS)
    try:
        ca, authority, token = ((keys / name).read_text() for name in ("cluster.ca", "authority.key", "cluster.token"))
        head = operations.read_member((keys / "cluster.json").read_text())
    except PermissionError as error:
        raise NotAllowed(f"only root can read {keys}: use sudo") from error
    except FileNotFoundError as error:
        raise Refused(f"there are no keys in {keys}: first `pagemill cluster init ray` on this machine") from error
    addresses = [address for host in hosts for address in operations.addresses_of(host)]
    certificate, key = operations.certify(ca, authority, hosts[0], hosts, wall_clock())
    made = dict(zip(ray_settings.KEYS, (ca, certificate, key, token), strict=True))
    member = Member(head.head, addresses[0], slots=slots)
    joining = Joining(VERSION, platform.python_version(), operations.require_ray(), member, made)
    output.show_json(joining)
    output.say(f"there, as root: pagemill cluster join FILE, and then remove the file ({', '.join(addresses)})")


@verb
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_placing
def join(desk: Desk, file: Path | None, dry_run: bool, root: Path | None) -> int:
    """\b
    sudo pagemill cluster join box2.join
    sudo pagemill cluster join box2.join --dry-run
    pagemill cluster join

    On a node: look whether this machine is fit for it (the same versions, the kernel's sandbox, tesseract and its
    languages); then write keys and unit, and start it. Without FILE only look, as for a node by ssh.
    """
    joining = None if file is None else operations.read_joining(file.read_text(), str(file))
    faults = [] if joining is None else [*operations.faults_of_versions(joining)]
    faults += operations.faults_of_machine(desk.settings)
    if faults:
        raise Refused("; ".join(faults))
    for line in operations.offers_of_machine(desk.settings):
        output.say(line)
    if joining is None:
        if not desk.answered({"fit": True}):
            output.show("this machine is fit to be a node")
            if shutil.which("pagemill", path=_PATH_OF_SSH) is None:
                output.say(f"a head that calls by ssh does not find it: {_TO_BE_FOUND}")
        return 0
    refuse_hidden(extra="[ray]", then=f"cluster join {shlex.quote(str(file))}")
    _refuse_unless_root(dry_run=dry_run, root=root)
    do_steps(desk, [*_node_steps(joining, root)], dry_run=dry_run)
    if not desk.as_json and not dry_run:
        output.say(f"it joins {joining.member.head}; remove {file}; on the head: pagemill cluster")
    return 0


@verb
def start(desk: Desk) -> NoReturn:
    """\b
    systemctl start pagemill-ray
    systemctl start pagemill-node
    pagemill cluster start

    What these two units run: this machine's part of Ray, with its keys, until it is stopped.
    """
    keys = ray_settings.keys_in(os.environ, KEYS)
    if keys is None:
        raise ConfigError(f"there are no keys in {KEYS}: run `pagemill cluster init ray` here, or `join`, for a node")
    member = operations.read_member((keys / "cluster.json").read_text())
    operations.require_ray()
    environment = {**os.environ, **ray_settings.surroundings(keys)}
    os.execve(
        sys.executable,
        [sys.executable, "-m", "ray.scripts.scripts", "start", *operations.ray_words(member)],
        environment,
    )


# ── What is to be done ──────────────────────────────────────────────────────────────────────────────────────────


def _head_steps(address: str, hosts: Sequence[str], root: Path | None) -> Iterator[Step]:
    keys, now = _at(root, KEYS), wall_clock()
    if not (keys / "authority.key").exists():
        ca, authority = operations.make_authority(now)
        yield Write(keys / "authority.key", authority, mode=0o600)
        yield Write(keys / "cluster.ca", ca, mode=0o600)
    else:
        ca, authority = ((keys / name).read_text() for name in ("cluster.ca", "authority.key"))
    certificate, key = operations.certify(ca, authority, socket.gethostname(), hosts, now)
    yield Write(keys / "cluster.cert", certificate, mode=0o600)
    yield Write(keys / "cluster.key", key, mode=0o600)
    yield Write(keys / "cluster.token", operations.make_token(), is_kept=True, mode=0o600)
    member = Member(f"{address}:{ray_settings.PORT}", address, is_head=True)
    yield Write(keys / "cluster.json", operations.written(member), mode=0o600)
    yield from _users(root)
    credentials = "\n".join(f"LoadCredential={name}:{KEYS / name}" for name in ray_settings.KEYS)
    units = Path("/etc/systemd/system")
    yield Write(_at(root, units / "pagemill.service.d" / "cluster.conf"), _DROP_IN.format(credentials=credentials))
    yield from _unit(_HEAD_UNIT, root)


def _node_steps(joining: Joining, root: Path | None) -> Iterator[Step]:
    keys = _at(root, KEYS)
    if (keys / "authority.key").exists():
        raise Refused("this machine is the head: its own cores take part by themselves, as local*N of the setting")
    for name, text in joining.keys.items():
        yield Write(keys / name, text, mode=0o600)
    yield Write(keys / "cluster.json", operations.written(joining.member), mode=0o600)
    yield from _users(root)
    yield from _unit(_NODE_UNIT, root)


def _users(root: Path | None) -> Iterator[Step]:
    below = [] if root is None else [f"--root={root}"]
    for kind, program in (("sysusers", ["systemd-sysusers"]), ("tmpfiles", ["systemd-tmpfiles", "--create"])):
        name = f"pagemill-cluster.{kind}.conf"
        yield Write(_at(root, Path("/etc") / f"{kind}.d" / "pagemill-cluster.conf"), shipped_file(name))
        yield Run([*program, *below, "pagemill-cluster.conf"])


def _unit(name: str, root: Path | None) -> Iterator[Step]:
    yield Write(_at(root, Path("/etc/systemd/system") / name), unit_text(name, sys.executable))
    if root is not None:
        yield Run(["systemctl", f"--root={root}", "enable", name])
        return
    yield Run(["systemctl", "daemon-reload"])
    yield Run(["systemctl", "enable", name])
    yield Run(["systemctl", "restart", name])


def _init_ssh(desk: Desk, *, dry_run: bool, root: Path | None) -> None:
    key = _at(root, _SSH_KEY)
    steps: list[Step] = []
    if key.exists():
        private = key.read_text()
    else:
        private = operations.make_ssh_key()
        steps.append(Write(key, private, mode=0o600))
        if root is None:
            steps.append(Run(["chown", "-R", "pagemill:pagemill", str(key.parent)]))
    do_steps(desk, steps, dry_run=dry_run)
    if desk.as_json or dry_run:
        return
    line = f'restrict,command="pagemill node" {operations.ssh_line(private)} pagemill@{socket.gethostname()}'
    output.show(line)
    output.say("that line lets the head in, for that command alone; on each node, with the same pagemill installed:")
    output.say(f"    {_TO_BE_FOUND}    # unless `pagemill` is found there by everybody")
    output.say("    sudo useradd --system --create-home --shell /bin/sh pagemill-node")
    output.say("    sudo mkdir ~pagemill-node/.ssh, and the line into ~pagemill-node/.ssh/authorized_keys")
    output.say("    sudo -u pagemill-node pagemill cluster join    # is it fit?")
    output.say("then here, to know each again, after a look at what it shows:")
    output.say(f"    ssh-keyscan box2 | sudo -u pagemill tee -a {_SSH_KEY.parent}/known_hosts")
    output.say(f'and in {SERVICE_CONFIGURATION}/pagemill.toml: cluster = "ssh:pagemill-node@box2*8"')
    output.say("and: sudo systemctl restart pagemill && sudo pagemill cluster test && pagemill cluster")


def _at(root: Path | None, path: Path) -> Path:
    return path if root is None else root / str(path).lstrip("/")


def _refuse_unless_root(*, dry_run: bool, root: Path | None) -> None:
    if not dry_run and root is None and os.geteuid() != 0:
        raise NotAllowed("only root can do this: use sudo, or --dry-run to look")
