"""A node by ssh under the units as they are shipped: what is typed is what `cluster init ssh` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.nodes.lab import SSHD
from tests.system.conftest import wait_until
from tests.systemd.box import Box
from tests.systemd.test_service import PROGRAM, as_if_installed

pytestmark = pytest.mark.skipif(not SSHD.exists(), reason="openssh-server is not installed")

UP_SECONDS = 60.0


def test_the_hardened_daemon_reaches_a_node_by_ssh_with_a_key_of_its_own(box: Box) -> None:
    as_if_installed(box, ["ocr_pages"])
    box.write("/etc/pagemill/pagemill.toml", 'cluster = "ssh:pagemill-node@127.0.0.1*1,local*0"\n')
    box.must("/opt/pagemill/bin/pagemill", "service", "install", "--python", PROGRAM)
    box.must("ip", "link", "set", "lo", "up")
    # What this box has of it knows nothing of a machine that has booted.
    box.must("rm", "-f", "/run/nologin")
    box.must("ssh-keygen", "-A")
    box.must("systemd-run", "--unit=reached", "--property=RuntimeDirectory=sshd", str(SSHD), "-D", "-e")
    said = box.must("pagemill", "cluster", "init", "ssh").splitlines()
    [line] = [one for one in said if one.startswith("restrict,")]

    def node(fact: str) -> str:
        """Nothing is known of it until the daemon has heard from its gateway."""
        found: Sequence[dict[str, str]] = json.loads(box.must("pagemill", "cluster", "--json"))["items"]
        return "".join(one[fact] for one in found)

    # Nobody has let it in yet: ssh says why, and so does the head.
    box.must("systemctl", "restart", "pagemill")
    wait_until(lambda: "Host key verification failed" in node("reason"), "it is not known", seconds=UP_SECONDS)
    known = "ssh-keyscan 127.0.0.1 2>/dev/null | setpriv --reuid=pagemill --regid=pagemill --clear-groups"
    box.must("sh", "-c", f"{known} tee -a /var/lib/pagemill/.ssh/known_hosts")
    wait_until(lambda: "Permission denied" in node("reason"), "it is not let in", seconds=UP_SECONDS)
    box.must(*"useradd --system --create-home --shell /bin/sh pagemill-node".split())
    home = "/home/pagemill-node"
    box.write(f"{home}/.ssh/authorized_keys", f"{line}\n")
    box.must("chown", "-R", "pagemill-node:", f"{home}/.ssh")

    wait_until(lambda: node("state") == "up", "the node is up", seconds=UP_SECONDS)
    assert node("name") == "127.0.0.1", "as it is called there, whoever calls"
    # Root's own key and known hosts are others.
    [tried] = json.loads(box.must("pagemill", "cluster", "test", "--json"))["items"]
    assert (tried["is_good"], tried["reason"]) == (True, "")
    assert box.must("pgrep", "-u", "pagemill-node", "-f", "worker_service.commands node")
