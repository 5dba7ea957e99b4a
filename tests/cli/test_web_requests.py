"""`pagemill doctor --online` with a Drive server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from job_handlers.fetch.sources.drive import credentials as drive_credentials
from tests.cli.conftest import Daemon, Run, items
from tests.drive_server import DriveServer, Fault, serving
from tests.drive_server.model import ME


@pytest.fixture
def server(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DriveServer]:
    directory = tmp_path / "credentials"
    directory.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(directory))
    with serving() as server:
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, server.url)
        yield server


def _write_credential(name: str, text: str, place: Path, mode: int = 0o600) -> None:
    file = place / "credentials" / name
    file.write_text(text)
    file.chmod(mode)


def _lines(run: Run, **more: int) -> list[str]:
    lines: list[str] = run("doctor", "--online", **more).stdout.splitlines()
    return lines[next(index for index, line in enumerate(lines) if " credential drive" in line) :]


def test_each_credential_is_listed_with_its_permissions(server: DriveServer, run: Run, tmp_path: Path) -> None:
    server.store.folder("reports", is_shared_with_me=True)
    _write_credential("drive", server.tokens.service_account(), tmp_path)
    _write_credential("drive-of-anna", server.tokens.service_account(subject="anna@example.com"), tmp_path)
    _write_credential("other", "not asked", tmp_path)

    assert _lines(run) == [
        f"✓ credential drive: {ME} (service account) can read Drive; shared with it: 1",
        "! credential drive-of-anna: anna@example.com (service account as anna@example.com) can read Drive, "
        "but nothing is shared with it",
        "    share a folder with anna@example.com",
    ]


def test_a_problem_of_a_credential_is_shown_with_its_remedy(server: DriveServer, run: Run, tmp_path: Path) -> None:
    _write_credential("drive", server.tokens.service_account(), tmp_path)
    _write_credential("drive-open", server.tokens.service_account(), tmp_path, mode=0o644)
    _write_credential("drive-torn", server.tokens.service_account()[:100], tmp_path)
    server.arm(Fault("status", on="metadata", status=403, reason="accessNotConfigured"))

    lines = _lines(run, fails=1)

    assert lines[0].startswith("✗ credential drive: the Google Drive API is not enabled")
    assert lines[1] == "    enable it: https://console.cloud.google.com/apis/library/drive.googleapis.com"
    assert lines[2:4] == [
        "✗ credential drive-open: other users can read the credential drive-open",
        "    chmod 600 its file",
    ]
    assert lines[4].startswith("✗ credential drive-torn: the credential drive-torn is not a JSON file")
    assert "PRIVATE" not in "\n".join(lines)


def test_a_key_that_google_refuses_is_reported(server: DriveServer, run: Run, tmp_path: Path) -> None:
    _write_credential("drive", server.tokens.service_account(), tmp_path)
    server.tokens.is_revoked = True

    [finding] = [
        finding
        for finding in items(run("doctor", "--online", "--json", fails=1))
        if finding["name"] == "credential drive"
    ]

    assert finding["level"] == "critical"
    assert "invalid_grant" in finding["detail"]
    assert "check the key" in finding["fix"]


def test_without_a_credential_doctor_says_where_it_looks(server: DriveServer, run: Run) -> None:
    stdout = run("doctor", "--online", "--json").stdout

    assert "no credential for Google Drive was found" in stdout
    assert "CREDENTIALS_DIRECTORY" in stdout
