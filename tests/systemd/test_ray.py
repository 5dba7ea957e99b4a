"""Two machines with real systemds, a wire between them, and a real Ray: `./run test --ray` installs it."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.job_handlers.reading.documents import picture, prose, scan
from tests.system.conftest import wait_until
from tests.systemd.box import PYTHONPATH, Box, NoBox, reason_against
from tests.systemd.test_service import PROGRAM, as_if_installed

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: ./run test --ray"),
    pytest.mark.skipif(reason_against() is not None, reason=str(reason_against())),
    pytest.mark.timeout(300),
]

HEAD, NODE = "10.9.9.1", "10.9.9.2"
BACK_SECONDS = 90.0


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[dict[str, Box]]:
    made: dict[str, Box] = {}
    try:
        for address in (HEAD, NODE):
            place = tmp_path / address
            place.mkdir()
            made[address] = Box(place)
        _wire(made)
        yield made
    except NoBox as error:
        pytest.skip(str(error))
    finally:
        for box in made.values():
            box.close()


def _wire(boxes: dict[str, Box]) -> None:
    inits = [box.init for box in boxes.values()]
    first, second = (["netns", str(pid)] for pid in inits)
    subprocess.run(["ip", "link", "add", "wire", *first, "type", "veth", "peer", "name", "wire", *second], check=True)
    for address, box in boxes.items():
        for words in (f"addr add {address}/24 dev wire", "link set wire up", "link set lo up"):
            subprocess.run(["nsenter", "-t", str(box.init), "-n", "ip", *words.split()], check=True)


def _install(box: Box) -> None:
    as_if_installed(box, ["ingest", "ocr_pages", "assemble", "download"])
    for unit in ("pagemill", "pagemill-commands", "pagemill-ray", "pagemill-node"):
        box.write(
            f"/etc/systemd/system/{unit}.service.d/00-program.conf",
            f"[Service]\nEnvironment=PYTHONPATH=/opt/chosen:{PYTHONPATH}\n",
        )


def test_a_machine_is_made_a_head_and_another_one_joins_and_reads(boxes: dict[str, Box], tmp_path: Path) -> None:
    head, node = boxes[HEAD], boxes[NODE]
    _install(head)
    _install(node)
    pagemill = [PROGRAM, "-m", "worker_service.commands"]
    head.write("/etc/pagemill/pagemill.toml", f'cluster = "ray:{HEAD}:6379,local*0"\n')
    head.must(*pagemill, "service", "install", "--python", PROGRAM)

    head.must(*pagemill, "cluster", "init", "ray", HEAD)
    head.must("systemctl", "restart", "pagemill")
    node.write("/root/n.join", head.must(*pagemill, "cluster", "invite", NODE, "--slots", "1"))
    node.must(*pagemill, "cluster", "join", "/root/n.join")

    def states() -> list[str]:
        return [one["state"] for one in json.loads(head.must(*pagemill, "cluster", "--json"))["items"]]

    wait_until(lambda: states() == ["up"], "the node is up", seconds=BACK_SECONDS)
    file = scan(tmp_path / "scan.pdf", [picture(prose(1, 60))])
    head.must("sh", "-c", "base64 -d >/srv/scan.pdf", stdin=base64.b64encode(file.read_bytes()).decode())
    head.must(*pagemill, "ingest", "/srv/scan.pdf", "--owner", "ann")
    read = (
        "SELECT group_concat(a.node) FROM worker_job_attempt a JOIN worker_job_queue q ON q.id = a.job_id WHERE a.node"
    )
    asked = ["sqlite3", "/var/lib/pagemill/pagemill.db", f"{read} IS NOT NULL AND a.outcome = 'completed'"]
    wait_until(lambda: head.must(*asked).strip(), "it was read on the node", seconds=BACK_SECONDS)
    # The daemon's database is nothing that Ray's user can open.
    who = ["setpriv", "--reuid=pagemill-ray", "--regid=pagemill-ray", "--clear-groups"]
    assert head.run(*who, "cat", "/var/lib/pagemill/pagemill.db").returncode != 0
    assert head.run(*who, "cat", "/etc/pagemill/cluster/cluster.key").returncode != 0
