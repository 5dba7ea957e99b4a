"""The download handler as it runs: in a real child with its sandbox, against a real Drive server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from job_handlers.fetch import download
from job_handlers.fetch.errors import FetchError, Timeouts
from job_handlers.fetch.sources import https, local
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.local import LocalFile, revision_of
from tests.drive_server import DriveServer, Fault
from tests.drive_server.answers import Plain
from tests.job_handlers.fetch.kit import Here, pdf
from tests.job_handlers.fetch.quick_handlers import QUICK, quick, sure
from worker_service.handlers import (
    Done,
    File,
    HandlerError,
    PauseSource,
    Permanent,
    PublishedFile,
    SameContent,
    Snooze,
)
from worker_service.jobs.attempts import Count
from worker_service.jobs.documents import Files
from worker_service.runner.messages import Progressed
from worker_service.testing import HandlerRun, How, run_handler

CONTENT = pdf(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()

OCTETS = "application/octet-stream"
PACKED = b"\x78\x9f\x3e\x22" * 9
OUTLOOK = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1024) + "__properties_version1.0".encode("utf-16-le")

Download = Callable[..., HandlerRun]
Here_ = Callable[..., Done | HandlerError]


@pytest.fixture
def run(tmp_path: Path) -> Download:
    def run(source: str, *, fence: int = 1, answers: object = None, **more: object) -> HandlerRun:
        return run_handler(
            quick,
            {"source": source, **more},
            directory=tmp_path / "run",
            fence=fence,
            answers=answers,  # type: ignore[arg-type]
        )

    return run


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., Done | HandlerError]:
    """The same in this process, for the many verdicts."""

    def here(source: str, **more: object) -> Done | HandlerError:
        payload = msgspec.convert({"source": source, **more}, download.DownloadPayload)
        context: Any = Here(payload=payload, directory=tmp_path / "here")
        try:
            return download.run(context, QUICK)
        except HandlerError as error:
            return error

    return here


def code_of(ended: Done | HandlerError) -> str:
    """Of a permanent verdict."""
    assert isinstance(ended, Permanent), ended
    return ended.code


def verdict(run: HandlerRun) -> tuple[How, str]:
    return run.how, run.ended.code


# --- what comes of it ---------------------------------------------------------------------------------


def test_a_file_of_drive_is_published_whole_and_read(server: DriveServer, run: Download, tmp_path: Path) -> None:
    item = server.store.add("Annual report", CONTENT)

    done = run(f"https://drive.google.com/file/d/{item.id}/view?usp=sharing", read={"languages": ["deu"]})

    assert done.how is How.DONE, done.ended.message
    [published] = done.published
    assert (published.role, published.name, published.sha256, published.md5) == (
        "original",
        "Annual report.pdf",
        SHA256,
        MD5,
    )
    assert done.files[0].read_bytes() == CONTENT
    assert done.progress[-1] == (100.0, "0.2 MB")
    counts = [one.count for one in done.events if isinstance(one, Progressed)]
    assert counts[-1] == Count(len(CONTENT), len(CONTENT), "bytes")
    [ingest] = done.follow_ups
    assert (ingest.job_type, ingest.platform, ingest.payload) == ("ingest", "gdrive", None)
    assert ingest.document is not None
    assert (ingest.document.source_key, ingest.document.content) == (item.id, SHA256)
    assert json.loads(ingest.document.settings) == {"languages": ["deu"]}
    assert list((tmp_path / "run" / "keep").rglob("*.*")) == []


def test_without_ingest_it_is_published_and_no_more(server: DriveServer, run: Download) -> None:
    item = server.store.add("a.pdf", CONTENT)

    done = run(item.id, ingest=False, name="Mine")

    assert [one.name for one in done.published] == ["Mine.pdf"]
    assert done.follow_ups == []


def test_other_settings_are_another_wish_and_force_is_told(server: DriveServer, here: Here_) -> None:
    item = server.store.add("a.pdf", CONTENT)

    done = [here(item.id, **more) for more in ({}, {"read": {"a": 1}}, {"force": True})]

    first, other, forced = (one.follow_ups[0].document for one in done if isinstance(one, Done))
    assert first is not None
    assert other is not None
    assert forced is not None
    assert first.settings == forced.settings != other.settings
    assert [first.is_forced, other.is_forced, forced.is_forced] == [False, False, True]


def test_a_file_that_somebody_has_is_published_again_without_a_byte(server: DriveServer, run: Download) -> None:
    item = server.store.add("again.pdf", CONTENT)
    known = PublishedFile(7, 3, "original", "old.pdf", "objects/3-1/old.pdf", len(CONTENT), SHA256, MD5)

    done = run(item.id, answers={SameContent: Files([known])})

    assert done.how is How.DONE, done.ended.message
    assert [(one.file_id, one.role, one.name) for one in done.published_again] == [(7, "original", "again.pdf")]
    assert done.follow_ups[0].document is not None
    assert done.follow_ups[0].document.content == SHA256
    assert server.asked("media") == []
    assert done.questions == [SameContent(SHA256, MD5, len(CONTENT))]


def test_what_only_the_payload_says_of_the_content_proves_nothing(server: DriveServer, run: Download) -> None:
    """Who knows the digest of a file must not get the file without having fetched it."""
    server.plain["a.pdf"] = Plain(CONTENT)
    known = PublishedFile(7, 3, "original", "old.pdf", "objects/3-1/old.pdf", len(CONTENT), SHA256, MD5)

    done = run(f"{server.url}/plain/a.pdf", expected_sha256=SHA256, answers={SameContent: Files([known])})

    assert (done.how, done.result["bytes_fetched"]) == (How.DONE, len(CONTENT))


def test_of_a_file_without_digests_that_somebody_has_no_second_copy_is_kept(
    server: DriveServer, run: Download, tmp_path: Path
) -> None:
    server.plain["a.pdf"] = Plain(CONTENT)
    known = PublishedFile(7, 3, "original", "old.pdf", "objects/3-1/old.pdf", len(CONTENT), SHA256, MD5)

    done = run(f"{server.url}/plain/a.pdf", answers={SameContent: Files([known])})

    assert [(one.file_id, one.role, one.name) for one in done.published_again] == [(7, "original", "a.pdf")]
    assert done.result["same_as"] == 7
    assert [done.files, *(tmp_path / "run" / "keep").rglob("*.*")] == [[]]
    assert [one.document.content for one in done.follow_ups if one.document] == [SHA256]


# --- it goes on where it was stopped ------------------------------------------------------------------


def test_an_attempt_that_gives_up_keeps_its_bytes_for_the_next(server: DriveServer, run: Download) -> None:
    item = server.store.add("a.pdf", CONTENT)
    server.arm(Fault("status", skip=1, times=6, status=503))

    first = run(item.id)
    asked = len(server.asked("media"))
    second = run(item.id, fence=2)

    assert verdict(first) == (How.RETRYABLE, "SERVER_ERROR")
    assert second.files[0].read_bytes() == CONTENT
    assert server.asked("media")[asked].begin == QUICK.chunk_bytes
    assert second.result["bytes_fetched"] == len(CONTENT) - QUICK.chunk_bytes


# --- verdicts -----------------------------------------------------------------------------------------


def test_a_quota_defers_for_hours_and_longer_each_time(server: DriveServer, here: Here_) -> None:
    item = server.store.add("a.pdf", CONTENT)
    server.arm(Fault("status", times=2, status=403, reason="downloadQuotaExceeded"))

    waits = [one.after for _ in range(2) if isinstance(one := here(item.id), Snooze)]

    assert waits == [3600, 7200]
    assert isinstance(here(item.id), Done)


@pytest.mark.parametrize(
    ("on", "fault", "words"),
    [
        ("token", "revoked", "check the key"),
        ("media", "accessNotConfigured", "API is not enabled"),
        ("media", "insufficientPermissions", "drive.readonly"),
        ("media", "domainPolicy", "administrator"),
    ],
)
def test_trouble_with_the_credential_rests_all_that_use_it(
    server: DriveServer, here: Here_, on: str, fault: str, words: str
) -> None:
    item = server.store.add("a.pdf", CONTENT)
    if on == "token":
        server.tokens.is_revoked = True
    else:
        server.arm(Fault("status", status=403, reason=fault))

    ended = here(item.id)

    assert isinstance(ended, PauseSource)
    assert words in str(ended)
    assert ended.after == 3600


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"readers": set()}, "NOT_FOUND", "share it with robot@project.iam.gserviceaccount.com"),
        ({"is_trashed": True}, "IN_TRASH", "trash"),
        ({"can_download": False}, "DOWNLOAD_FORBIDDEN", "robot@project"),
        ({"is_abusive": True}, "ABUSE_NOT_ACKNOWLEDGED", "acknowledge_abuse"),
        ({"mime": "application/vnd.google-apps.document"}, "NATIVE_DOCUMENT", "export"),
        ({"mime": "application/vnd.google-apps.folder"}, "NO_FILE", "folder"),
        ({"content": b""}, "EMPTY", "empty"),
        ({"content": b"MZ" * 5000}, "NOT_WHAT_IT_SAYS", "a PDF"),
        ({"content": b"<html>no report</html>"}, "NOT_WHAT_IT_SAYS", "a web page"),
        ({"content": b"RIFF" * 9, "mime": "image/webp", "name": "a.webp"}, "KIND_REFUSED", "WebP"),
        ({"content": PACKED, "mime": OCTETS, "name": "winmail.dat"}, "KIND_REFUSED", "have it sent as plain text"),
        ({"content": OUTLOOK, "mime": OCTETS, "name": "a.msg"}, "KIND_REFUSED", "save it as .eml"),
    ],
)
def test_what_no_attempt_can_change_says_what_a_person_can(
    server: DriveServer, here: Here_, more: dict[str, object], code: str, words: str
) -> None:
    item = server.store.add(**{"name": "a.pdf", "content": CONTENT, **more})  # type: ignore[arg-type]

    ended = here(item.id)

    assert code_of(ended) == code
    assert words in str(ended)


def test_a_person_may_take_what_google_holds_for_malware(server: DriveServer, here: Here_) -> None:
    item = server.store.add("a.pdf", CONTENT, is_abusive=True)

    assert isinstance(here(item.id, acknowledge_abuse=True), Done)


def test_a_document_of_googles_own_is_exported(server: DriveServer, here: Here_) -> None:
    item = server.store.add("Minutes", CONTENT, mime="application/vnd.google-apps.document")

    done = here(item.id, export="pdf")

    assert isinstance(done, Done)
    [file] = done.files
    assert isinstance(file, File)
    assert (Path(file.path).name, Path(file.path).read_bytes()) == ("Minutes.pdf", CONTENT)


def test_an_expectation_that_drive_contradicts_costs_no_byte(server: DriveServer, here: Here_) -> None:
    item = server.store.add("a.pdf", CONTENT)

    ended = here(item.id, expected_md5="0" * 32)

    assert code_of(ended) == "NOT_AS_EXPECTED"
    assert server.asked("media") == []


@pytest.mark.parametrize(
    "payload",
    [
        {"source": "what is this"},
        {"source": "https://drive.google.com/drive/my-drive"},
        {"source": "https://drive.google.com/drive/folders/1234567890abc"},
        {"source": "1234567890abc", "expected_md5": "zz"},
        {"source": "1234567890abc", "credential": "webhook"},
        {"source": "1234567890abc", "credential": "drive/../webhook"},
    ],
)
@pytest.mark.usefixtures("server")
def test_a_payload_that_makes_no_sense_is_refused(here: Here_, payload: dict[str, str]) -> None:
    ended = here(**payload)

    assert code_of(ended) in ("SOURCE_UNKNOWN", "PAYLOAD_INVALID")


def test_an_old_link_shows_its_resource_key(server: DriveServer, here: Here_) -> None:
    item = server.store.add("a.pdf", CONTENT, resource_key="0-abc")
    link = f"https://drive.google.com/open?id={item.id}"

    assert code_of(here(link)) == "NOT_FOUND"
    assert isinstance(here(f"{link}&resourcekey=0-abc"), Done)
    assert isinstance(here(link, resource_key="0-abc"), Done)


def test_a_shortcut_is_followed_and_a_shared_drive_is_seen(server: DriveServer, here: Here_) -> None:
    shared = server.store.shared_drive("Team")
    item = server.store.add("a.pdf", CONTENT, drive_id=shared.drive_id, resource_key="0-key")
    shortcut = server.store.shortcut("to a", item.id, target_key="0-key")

    assert isinstance(here(shortcut.id), Done)


# --- secrets ------------------------------------------------------------------------------------------


def test_no_secret_is_ever_told(server: DriveServer, run: Download, tmp_path: Path) -> None:
    item = server.store.add("a.pdf", CONTENT)
    user = tmp_path / "credentials" / "drive_user"
    user.write_text(server.tokens.user())
    user.chmod(0o600)
    told = ""
    for credential, fault in (
        ("drive", Fault("status", status=401, reason="authError", on="metadata", times=9)),
        ("drive", Fault("garbage", on="metadata", times=9)),
        ("drive_user", Fault("page", status=403, on="media", times=9)),
    ):
        server.faults.clear()
        server.arm(fault)
        told += repr(run(item.id, credential=credential))
    server.faults.clear()
    server.tokens.client_secret = "another"
    told += repr(run(item.id, credential="drive_user"))

    assert "ended=" in told
    for secret in ("SECRET", "BEGIN PRIVATE", "Bearer", "assertion", "client_secret"):
        assert secret not in told


@pytest.mark.parametrize(
    ("text", "mode", "code"),
    [
        (None, 0o600, "CREDENTIAL_ABSENT"),
        ("not json SECRET", 0o600, "CREDENTIAL_INVALID"),
        ('{"type": "service_account", "private_key": "SECRET"}', 0o600, "CREDENTIAL_INVALID"),
        ('["SECRET"]', 0o600, "CREDENTIAL_INVALID"),
        ('{"type": "service_account"}', 0o644, "CREDENTIAL_EXPOSED"),
        ('{"type": "service_account"}', 0o640, "CREDENTIAL_EXPOSED"),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_credential_that_is_not_right_is_refused(
    here: Here_, tmp_path: Path, text: str | None, mode: int, code: str
) -> None:
    if text is not None:
        file = tmp_path / "credentials" / "drive_odd"
        file.write_text(text)
        file.chmod(mode)

    ended = here("1234567890abc", credential="drive_odd")

    assert code_of(ended) == code
    assert "SECRET" not in str(ended)


def test_a_user_token_serves_as_well(server: DriveServer, here: Here_, tmp_path: Path) -> None:
    item = server.store.add("a.pdf", CONTENT)
    file = tmp_path / "credentials" / "drive_user"
    file.write_text(server.tokens.user())
    file.chmod(0o600)

    assert isinstance(here(item.id, credential="drive_user"), Done)


def test_application_default_credentials_serve_as_well(
    server: DriveServer, run: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = server.store.add("a.pdf", CONTENT)
    key = tmp_path / "elsewhere.json"
    key.write_text(server.tokens.service_account())
    monkeypatch.setenv(drive_credentials.ADC_FILE, str(key))

    assert run(item.id, credential="adc").how is How.DONE


def test_a_subject_is_whom_google_sees(server: DriveServer, here: Here_, tmp_path: Path) -> None:
    item = server.store.add("a.pdf", CONTENT, readers={"anna@example.com"})
    (tmp_path / "credentials" / "drive").write_text(server.tokens.service_account(subject="anna@example.com"))

    assert isinstance(here(item.id), Done)


@pytest.mark.usefixtures("server")
def test_another_drive_is_only_ever_this_machine(here: Here_, monkeypatch: pytest.MonkeyPatch) -> None:
    for elsewhere in ("http://127.0.0.1.example.com:80", "https://drive.example.com", "http://127.0.0.1:80/x"):
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, elsewhere)

        assert code_of(here("1234567890abc")) == "SETTING_INVALID"


# --- local files --------------------------------------------------------------------------------------


def test_a_local_file_is_copied_and_left_where_it_is(run: Download, tmp_path: Path) -> None:
    file = tmp_path / "scans" / "a report.pdf"
    file.parent.mkdir()
    file.write_bytes(CONTENT)

    done = run(str(file))

    assert done.how is How.DONE, done.ended.message
    assert done.files[0].read_bytes() == file.read_bytes() == CONTENT
    assert done.published[0].sha256 == SHA256
    assert done.follow_ups[0].document is not None
    assert done.follow_ups[0].document.source_key == str(file)


def test_a_local_file_is_known_by_its_revision_once_it_has_been_left_alone(run: Download, tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(CONTENT)

    fresh = run(str(file)).follow_ups[0].document
    settled = run_handler(sure, {"source": str(file)}, directory=tmp_path / "later").follow_ups[0].document

    assert fresh is not None
    assert fresh.revision == ""
    assert settled is not None
    assert settled.revision == revision_of(file.stat())


def test_who_writes_into_a_file_and_sets_its_time_back_leaves_another_revision(tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(b"first")
    before = file.stat()

    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_bytes(b"other")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    now = file.stat()
    assert (now.st_ino, now.st_size, now.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert revision_of(now) != revision_of(before)


@pytest.mark.parametrize(
    "what", ["absent", "a directory", "a pipe", "a device", "a credential", "a link to one", "outside"]
)
def test_a_path_that_is_no_file_for_jobs_is_refused(
    server: DriveServer, here: Here_, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = tmp_path / "file.pdf"
    if what == "a directory":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a device":
        path = Path("/dev/zero")
    elif what == "a credential":
        path = tmp_path / "credentials" / "drive"
    elif what == "a link to one":
        path.symlink_to(tmp_path / "credentials" / "drive")
    elif what == "outside":
        path.write_bytes(CONTENT)
        monkeypatch.setenv(local.ROOTS.variable, f"{tmp_path}/fi:{tmp_path}/elsewhere")

    ended = here(str(path))

    assert code_of(ended) in ("UNREADABLE", "NO_FILE", "PATH_REFUSED")
    assert "PRIVATE" not in str(ended)


def test_a_local_file_that_is_still_written_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(CONTENT)
    source = LocalFile(str(file), Timeouts(stable_seconds=60))

    with pytest.raises(FetchError) as told:
        source.facts()
    os.utime(file, (1, 1))

    assert told.value.code == "STILL_WRITTEN"
    assert source.facts().size == len(CONTENT)


# --- https --------------------------------------------------------------------------------------------


def test_a_private_address_is_refused_and_so_is_plain_http(
    server: DriveServer, here: Here_, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.plain["a.pdf"] = Plain(CONTENT)
    monkeypatch.setenv(https.ALLOW.variable, "")

    ended = here(f"{server.url}/plain/a.pdf")

    assert code_of(ended) == "ADDRESS_REFUSED"
    assert server.log == []


def test_too_large_a_file_is_refused_before_it_is_fetched(
    server: DriveServer, here: Here_, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.plain["a.pdf"] = Plain(CONTENT)
    monkeypatch.setenv(download.BYTES_MAX.variable, "1000")

    assert code_of(here(f"{server.url}/plain/a.pdf")) == "TOO_LARGE"
    assert len(server.log) == 1
