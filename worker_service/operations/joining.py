"""Who belongs to a cluster of Ray: an authority of its own, a certificate for each machine, a token; and who is fit.

The head keeps the authority's key, and hands each node a file with all that it needs to join. Whoever has such a file
can join, and run what a node may run: it is as secret as a password. Certificates name machines by their addresses,
because Ray calls them by these.
"""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import msgspec

from worker_service import VERSION
from worker_service.children import jail
from worker_service.config import Settings
from worker_service.errors import BadInput, ProgramAbsent
from worker_service.nodes.ray_settings import DIRECTORY, KEYS, RESOURCE

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    from worker_service.children.messages import Described

VALID = timedelta(days=3650)
_CLOCKS = timedelta(days=1)
"""So far those of two machines may be apart."""
_OBJECT_STORE_BYTES = 256 << 20
_NODE_MANAGER_PORT, _OBJECT_MANAGER_PORT, _WORKER_PORTS = 6380, 6381, (10002, 10999)


class Member(msgspec.Struct, frozen=True):
    """What a machine knows of itself, in its `cluster.json`."""

    head: str
    """Where Ray's own head is: an address and a port."""
    address: str
    """This machine's, as the others call it."""
    is_head: bool = False
    slots: int | None = None
    """None: as many as it has cores."""


class Joining(msgspec.Struct, frozen=True):
    """A file with which a machine joins."""

    pagemill: str
    python: str
    ray: str
    member: Member
    keys: Mapping[str, str]
    """The text of each file by its name."""


def read_joining(text: str, name: str) -> Joining:
    try:
        read = msgspec.json.decode(text, type=Joining)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{name} is no file that `pagemill cluster invite` has written: {error}") from error
    if set(read.keys) != set(KEYS):
        raise BadInput(f"{name} is not whole: write it anew with `pagemill cluster invite`")
    return read


def read_member(text: str) -> Member:
    try:
        return msgspec.json.decode(text, type=Member)
    except msgspec.MsgspecError as error:
        raise BadInput(f"cluster.json cannot be read ({error}): run `pagemill cluster init` or `join` again") from error


def written(value: Member | Joining) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def addresses_of(host: str) -> list[str]:
    """A machine's addresses, by its name or one of them."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{host} has no address that this machine knows: name the machine by its address") from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def address_here(hosts: Sequence[str]) -> str:
    """That of this machine by which others reach it."""
    for host in hosts:
        for address in addresses_of(host):
            if ipaddress.ip_address(address).is_loopback:
                # Ray takes another one by itself then.
                raise BadInput(
                    f"{host} is {address} here, where no other machine finds it: name an address of this one"
                )
            return address
    raise BadInput("name the address by which nodes reach this machine")


def ray_words(member: Member) -> list[str]:
    """How Ray is started here. Ray's own ideas of cores and work are not used: ours is the resource."""
    words = [
        "--block", f"--node-ip-address={member.address}", "--num-cpus=0", "--include-log-monitor=false",
        "--disable-usage-stats", f"--object-store-memory={_OBJECT_STORE_BYTES}",
        f"--node-manager-port={_NODE_MANAGER_PORT}", f"--object-manager-port={_OBJECT_MANAGER_PORT}",
        f"--min-worker-port={_WORKER_PORTS[0]}", f"--max-worker-port={_WORKER_PORTS[1]}",
    ]  # fmt: skip
    if member.is_head:
        port = member.head.rpartition(":")[2]
        return ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={DIRECTORY}", *words]
    slots = member.slots or len(os.sched_getaffinity(0))
    return [f"--address={member.head}", f"--resources={json.dumps({RESOURCE: slots})}", *words]


# ── Certificates ────────────────────────────────────────────────────────────────────────────────────────────────


def make_authority(now: datetime) -> tuple[str, str]:
    """Its certificate, and its key, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _named(f"pagemill cluster {secrets.token_hex(4)}")
    made = _begun(name, name, key.public_key(), now).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    return _pem(made.sign(key, hashes.SHA256())), _pem_of_key(key)


def certify(authority: str, authority_key: str, name: str, hosts: Sequence[str], now: datetime) -> tuple[str, str]:
    """A machine's certificate, which is good for both ends of a line, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.load_pem_x509_certificate(authority.encode())
    signing = serialization.load_pem_private_key(authority_key.encode(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [*dict.fromkeys([name, *(host for host in hosts if not _is_address(host))])]
    addresses = dict.fromkeys(address for host in hosts for address in addresses_of(host))
    known_as = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses)]
    ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    made = (
        _begun(_named(name), issuer.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.SubjectAlternativeName(known_as), False)
        .add_extension(x509.ExtendedKeyUsage(ends), False)
        .sign(signing, hashes.SHA256())
    )
    return _pem(made), _pem_of_key(key)


def valid_until(certificate: str) -> datetime:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def make_token() -> str:
    return secrets.token_urlsafe(32)


def make_ssh_key() -> str:
    """A private key, as `ssh` reads it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    form = serialization.PrivateFormat.OpenSSH
    made = Ed25519PrivateKey.generate()
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def ssh_line(private: str) -> str:
    """Its public half, as it stands in a line of authorized_keys."""
    from cryptography.hazmat.primitives import serialization

    public = serialization.load_ssh_private_key(private.encode(), None).public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _begun(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + VALID)
    )


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# ── Whether this machine is fit to be a node ────────────────────────────────────────────────────────────────────


def ray_version() -> str | None:
    """None: it is not installed."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return None


def require_ray() -> str:
    found = ray_version()
    if found is None:
        raise ProgramAbsent("Ray is not installed beside this pagemill: pip install 'pagemill[ray]'")
    return found


def faults_of_versions(joining: Joining) -> Iterator[str]:
    """Ray wants the same Ray, and the same Python to its last number, on all machines; so do we of pagemill."""
    for what, theirs, ours in (
        ("pagemill", joining.pagemill, VERSION),
        ("Python", joining.python, platform.python_version()),
        ("Ray", joining.ray, ray_version() or "none: pip install 'pagemill[ray]'"),
    ):
        if theirs != ours:
            yield f"the head has {what} {theirs}, and this machine {ours}: install the same on both"


def faults_of_machine(settings: Settings) -> Iterator[str]:
    """Why attempts may not run here: the kernel's sandbox, and what the handlers that travel lack."""
    if settings.sandbox == "strict" and not jail.landlock_version():
        yield "this kernel has no Landlock, and so no sandbox: use Linux 5.13 or newer, with lsm=landlock"
    for one in _installed(settings):
        if one.set_aside is not None:
            # Nobody can ask it whether it travels.
            yield f"{one.facts.job_type} cannot be run here: {one.set_aside.strip().splitlines()[-1]}"
        elif one.travels and one.facts.missing is not None:
            yield f"{one.facts.job_type} cannot be run here: {one.facts.missing_text}"


def offers_of_machine(settings: Settings) -> Sequence[str]:
    """What the handlers that travel have here, for a person to compare."""
    travelling = [one for one in _installed(settings) if one.travels]
    return [f"{one.facts.job_type}: {', '.join(one.identity) or 'nothing beside pagemill'}" for one in travelling]


def _installed(settings: Settings) -> Sequence[Described]:
    from worker_service.operations.handlers import installed  # starts a nursery

    return installed(settings)
