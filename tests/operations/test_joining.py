"""Who belongs to a cluster: certificates that a real handshake takes, and machines that hear why they are unfit."""

from __future__ import annotations

import platform
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from worker_service import VERSION
from worker_service.clock import wall_clock
from worker_service.errors import BadInput
from worker_service.nodes import ray_settings
from worker_service.nodes.ray_settings import Names
from worker_service.operations import joining
from worker_service.operations.joining import Joining, Member

Told = dict[str, object]


@dataclass(frozen=True)
class Keys:
    place: Path

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        made = ssl.create_default_context(purpose, cafile=str(self.place / "cluster.ca"))
        made.load_cert_chain(self.place / "cluster.cert", self.place / "cluster.key")
        made.verify_mode = ssl.CERT_REQUIRED
        return made


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Keys]:
    """A machine with its keys, by its name, its hosts, and its authority."""
    authorities = {name: joining.make_authority(wall_clock()) for name in ("ours", "theirs")}

    def make(name: str, *hosts: str, of: str = "ours") -> Keys:
        ca, key = authorities[of]
        place = tmp_path / name
        place.mkdir()
        certificate, own = joining.certify(ca, key, name, hosts, wall_clock())
        for file, text in (("cluster.ca", ca), ("cluster.cert", certificate), ("cluster.key", own)):
            (place / file).write_text(text)
        (place / "cluster.token").write_text(joining.make_token())
        return Keys(place)

    return make


def shakes_hands(server: Keys, client: Keys, called: str) -> bool:
    """A real server that wants a certificate, and a client that calls it by this name."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            with accepted:
                try:
                    with server.context(ssl.Purpose.CLIENT_AUTH).wrap_socket(accepted, server_side=True) as line:
                        line.sendall(b"in")
                except (ssl.SSLError, OSError):
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=10) as line,
                client.context(ssl.Purpose.SERVER_AUTH).wrap_socket(line, server_hostname=called) as safe,
            ):
                return safe.recv(2) == b"in"
        except (ssl.SSLError, OSError):
            return False
        finally:
            thread.join()


def test_two_machines_of_one_authority_know_each_other_by_name_and_by_address(machine: Callable[..., Keys]) -> None:
    head, node = machine("head", "10.0.0.1", "127.0.0.1"), machine("box2", "10.0.0.2")

    assert shakes_hands(head, node, "127.0.0.1")
    assert shakes_hands(head, node, "10.0.0.1")
    assert shakes_hands(node, head, "box2")
    assert not shakes_hands(node, head, "10.0.0.1")


def test_a_machine_of_another_authority_is_let_in_nowhere(machine: Callable[..., Keys]) -> None:
    ours, theirs = machine("head", "10.0.0.1"), machine("stranger", "10.0.0.1", of="theirs")

    assert not shakes_hands(ours, theirs, "10.0.0.1")
    assert not shakes_hands(theirs, ours, "10.0.0.1")


def test_a_file_to_join_with_is_read_as_it_was_written_and_anything_else_is_refused(tmp_path: Path) -> None:
    made = Joining(
        "1", "3.11.7", "2.60.0", Member("10.0.0.1:6379", "10.0.0.2", slots=8), dict.fromkeys(ray_settings.KEYS, "x")
    )

    assert joining.read_joining(joining.written(made), "f") == made
    for text in ("", "{}", '{"pagemill": 1}', joining.written(made).replace("cluster.ca", "../ca")):
        with pytest.raises(BadInput, match="pagemill cluster invite"):
            joining.read_joining(text, "box2.join")


def test_other_versions_are_named_each_in_a_sentence() -> None:
    def faults(**other: str) -> list[str]:
        same = {"pagemill": VERSION, "python": platform.python_version(), "ray": joining.ray_version() or ""}
        return list(joining.faults_of_versions(Joining(**(same | other), member=Member("h:1", "a"), keys={})))

    assert [one for one in faults() if not one.startswith("the head has Ray")] == []
    [wrong] = [one for one in faults(pagemill="0.0.1") if "Ray" not in one]
    assert wrong == f"the head has pagemill 0.0.1, and this machine {VERSION}: install the same on both"
    assert any("Python 3.9.0" in one for one in faults(python="3.9.0"))
    assert any("Ray 1.0" in one for one in faults(ray="1.0"))


def test_a_head_is_not_found_at_a_loopback_address_or_where_there_is_none() -> None:
    with pytest.raises(BadInput, match="no other machine finds it"):
        joining.address_here(["127.0.0.1"])
    with pytest.raises(BadInput, match="has no address"):
        joining.address_here(["no-such-host.invalid"])
    with pytest.raises(BadInput, match="no address that this machine knows"):
        joining.address_here(["ev\x9bil"])
    assert joining.address_here(["10.1.2.3"]) == "10.1.2.3"


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_the_public_half_of_a_key_is_what_ssh_itself_tells(tmp_path: Path) -> None:
    private = joining.make_ssh_key()
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(private)

    told = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], capture_output=True, text=True, check=True).stdout

    assert told.split()[:2] == joining.ssh_line(private).split()


# ── What Ray finds in its environment ───────────────────────────────────────────────────────────────────────────


def test_off_loopback_nobody_talks_to_ray_without_tls_and_token(machine: Callable[..., Keys]) -> None:
    environ: dict[str, str] = {}
    assert ray_settings.fault_of("localhost:6379", environ) is None
    assert ray_settings.fault_of("127.0.0.1:6379", environ) is None
    for address in ("head.example:6379", "10.0.0.1:6379", "[fd00::1]:6379", "10.0.0.1"):
        assert "without TLS and token" in str(ray_settings.fault_of(address, environ)), address
    for half in ({"RAY_USE_TLS": "1"}, {"RAY_AUTH_MODE": "token"}, {"RAY_USE_TLS": "0", "RAY_AUTH_MODE": "token"}):
        assert "without TLS and token" in str(ray_settings.fault_of("10.0.0.1:6379", half))

    keys = machine("head", "10.0.0.1").place
    whole: Mapping[str, str] = ray_settings.surroundings(keys)
    assert ray_settings.fault_of("10.0.0.1:6379", whole) is None
    (keys / "cluster.key").unlink()
    assert "RAY_TLS_SERVER_KEY names no file" in str(ray_settings.fault_of("10.0.0.1:6379", whole))


def tells(number: str, name: str, address: str = "10.0.0.1", *, alive: bool = True, **resources: float) -> Told:
    said = {"NodeID": number * 14, "Alive": alive, "NodeManagerHostname": name, "NodeManagerAddress": address}
    return said | {"Resources": resources or {"pagemill": 1.0}}


def numbers(names: Names, *told: Told) -> dict[str, str]:
    return {name: number[:2] for name, (number, _) in names.ours(told).items()}


def test_a_machine_of_ray_is_known_by_a_plain_name_and_never_taken_for_this_one() -> None:
    told = [
        tells("c1", "box2", pagemill=8.0),
        tells("c2", "local", pagemill=4.0),
        tells("c3", "../../\x1b[31m" + "x" * 300, pagemill=1e9),
        tells("c4", "twin", pagemill=0.5),
        tells("c5", "twin", "10.0.0.2"),
        tells("c6", "\n"),
        tells("c7", "another", CPU=8.0),
        tells("c8", "dead", alive=False),
    ]

    assert {name: slots for name, (_, slots) in Names().ours(told).items()} == {
        "box2": 8,
        "local-c2c2c2": 4,
        "..-..-31m" + "x" * 51: 1000,
        "twin-c4c4c4": 1,
        "twin-c5c5c5": 1,
        "c6c6c6": 1,
    }


def test_a_node_of_ray_keeps_its_name_whoever_comes_beside_it() -> None:
    names = Names()
    assert numbers(names, tells("b1", "box2")) == {"box2": "b1"}

    # What runs on the one would be taken for gone when the other one begins.
    assert numbers(names, tells("a1", "box2"), tells("b1", "box2")) == {"box2": "b1", "box2-a1a1a1": "a1"}
    assert numbers(names, tells("a1", "box2")) == {"box2-a1a1a1": "a1"}


def test_the_name_of_a_node_of_ray_that_is_gone_is_its_own_machines() -> None:
    names = Names()
    numbers(names, tells("b1", "box2", "10.0.0.2"))

    assert numbers(names, tells("b2", "box2", "10.0.0.3")) == {"box2-b2b2b2": "b2"}
    assert numbers(names, tells("b3", "box2", "10.0.0.2")) == {"box2": "b3"}


def test_the_next_gateway_gives_no_machine_the_name_of_one_that_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    first = Names(file)
    numbers(first, tells("a1", "box", "10.0.0.1"))
    numbers(first, tells("a1", "box", "10.0.0.1"), tells("b1", "box", "10.0.0.2"))

    # What runs on the one would be taken for gone when the other one begins by its name.
    assert numbers(Names(file), tells("b1", "box", "10.0.0.2")) == {"box-b1b1b1": "b1"}
    assert numbers(Names(file), tells("a2", "box", "10.0.0.1")) == {"box": "a2"}


def test_a_name_that_cannot_be_given_keeps_no_other_node_away() -> None:
    names = Names()
    both = [f"box-{'a1' * length}" for length in (3, 14)]
    numbers(names, *(tells(f"c{at}", name, f"10.0.0.{at}") for at, name in enumerate(["box", *both])))

    assert numbers(names, tells("a1", "box", "10.0.0.9"), tells("d1", "other")) == {"other": "d1"}


def test_the_keys_of_a_unit_come_first_and_what_somebody_has_said_stays(
    machine: Callable[..., Keys], tmp_path: Path
) -> None:
    given, other = machine("given").place, machine("other").place

    assert ray_settings.keys_in({"CREDENTIALS_DIRECTORY": str(given)}, other) == given
    assert ray_settings.keys_in({"CREDENTIALS_DIRECTORY": str(tmp_path)}, other) == other
    assert ray_settings.keys_in({}, tmp_path) is None
    environ = {"CREDENTIALS_DIRECTORY": str(given), "RAY_health_check_period_ms": "5"}
    ray_settings.take(environ)
    assert (environ["RAY_USE_TLS"], environ["RAY_health_check_period_ms"]) == ("1", "5")
