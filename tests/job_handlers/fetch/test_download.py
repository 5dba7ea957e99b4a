"""The download handler, against a real Drive server."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from job_handlers.fetch import download
from job_handlers.fetch.errors import FetchError, Timeouts
from job_handlers.fetch.sources import https, local
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.local import LocalFile, revision_of
from tests.drive_server import DriveServer, Fault
from tests.drive_server.answers import Plain
from tests.drive_server.model import ME
from tests.job_handlers.fetch.kit import Here as HandlerContext
from tests.job_handlers.fetch.kit import pdf
from tests.job_handlers.fetch.quick_handlers import QUICK, quick
from worker_service.handlers import (
    Done,
    HandlerError,
    PauseSource,
    Permanent,
    PublishedFile,
    Snooze,
)
from worker_service.jobs.attempts import Count
from worker_service.runner.messages import Progressed
from worker_service.testing import HandlerRun, How, run_handler

CONTENT = pdf(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()
KNOWN = PublishedFile(7, 3, "original", "old.pdf", "objects/3-1/old.pdf", len(CONTENT), SHA256, MD5)

GOOGLE_DOCUMENT = "application/vnd.google-apps.document"
OCTETS = "application/octet-stream"
PACKED = b"\x78\x9f\x3e\x22" * 9
OUTLOOK = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1024) + "__properties_version1.0".encode("utf-16-le")

InChild = Callable[..., HandlerRun]


@pytest.fixture
def run(tmp_path: Path) -> InChild:
    """Download in a real child with its sandbox."""

    def run(source: str, **more: object) -> HandlerRun:
        return run_handler(quick, {"source": source, **more}, directory=tmp_path / "run")

    return run


class Here:
    """Download in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.known: Sequence[PublishedFile] = ()
        self.timeouts = QUICK
        self.context: Any = None

    def __call__(self, source: str, **more: object) -> Done | HandlerError:
        payload = msgspec.convert({"source": source, **more}, download.DownloadPayload)
        self.context = HandlerContext(payload=payload, directory=self.directory, known=self.known)
        try:
            return download.run(self.context, self.timeouts)
        except HandlerError as error:
            return error

    def done(self, source: str, **more: object) -> Any:
        done = self(source, **more)
        assert isinstance(done, Done), done
        return done


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path / "here")


def code_of(ended: Done | HandlerError) -> str:
    """Of a permanent verdict."""
    assert isinstance(ended, Permanent), ended
    return ended.code


# --- what comes of it ---------------------------------------------------------------------------------


def test_a_file_of_drive_is_published_whole_and_read(server: DriveServer, run: InChild, tmp_path: Path) -> None:
    item = server.store.add("Annual report", CONTENT)

    done = run(f"https://drive.google.com/file/d/{item.id}/view?usp=sharing", read={"languages": ["deu"]})

    assert done.how is How.DONE, done.ended.message
    [file] = done.published
    assert (file.role, file.name, file.sha256, file.md5) == ("original", "Annual report.pdf", SHA256, MD5)
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


def test_the_request_to_read_carries_settings_force_and_tags(server: DriveServer, here: Here) -> None:
    item = server.store.add("a.pdf", CONTENT)

    published = here.done(item.id, ingest=False, name="Mine")
    done = [here.done(item.id, **more) for more in ({"tags": ["Paid"]}, {"read": {"a": 1}}, {"force": True})]

    assert ([Path(file.path).name for file in published.files], published.follow_ups) == (["Mine.pdf"], [])
    first, other, forced = (one.follow_ups[0].document for one in done)
    assert first.settings == forced.settings != other.settings
    assert [first.is_forced, other.is_forced, forced.is_forced] == [False, False, True]
    assert [*first.tags, *other.tags] == ["paid"]


def test_a_published_file_with_the_same_content_is_published_again(server: DriveServer, here: Here) -> None:
    item = server.store.add("again.pdf", CONTENT)
    server.plain["a.pdf"] = Plain(CONTENT)
    here.known = [KNOWN]

    by_digest, without = here.done(item.id), here.done(f"{server.url}/plain/a.pdf")

    # Drive names a digest before a byte is fetched; of a URL it is known afterwards.
    assert server.asked("media") == []
    for done, name in ((by_digest, "again.pdf"), (without, "a.pdf")):
        [file] = done.files
        assert (file.file_id, file.role, file.name) == (7, "original", name)
        assert (done.result["same_as"], done.follow_ups[0].document.content) == (7, SHA256)
    assert list(here.context.keep.rglob("*.*")) == []


def test_a_digest_in_the_payload_does_not_give_the_file(server: DriveServer, here: Here) -> None:
    server.plain["a.pdf"] = Plain(CONTENT)
    here.known = [KNOWN]

    done = here.done(f"{server.url}/plain/a.pdf", expected_sha256=SHA256)

    assert done.result["bytes_fetched"] == len(CONTENT)


# --- verdicts -----------------------------------------------------------------------------------------


def test_a_quota_defers_for_hours_and_longer_each_time(server: DriveServer, here: Here) -> None:
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
    server: DriveServer, here: Here, on: str, fault: str, words: str
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
        ({"mime": GOOGLE_DOCUMENT}, "NATIVE_DOCUMENT", "export"),
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
    server: DriveServer, here: Here, more: dict[str, object], code: str, words: str
) -> None:
    item = server.store.add(**{"name": "a.pdf", "content": CONTENT, **more})  # type: ignore[arg-type]

    ended = here(item.id)

    assert code_of(ended) == code
    assert words in str(ended)


@pytest.mark.parametrize(
    ("item", "more"),
    [({"is_abusive": True}, {"acknowledge_abuse": True}), ({"mime": GOOGLE_DOCUMENT}, {"export": "pdf"})],
    ids=["malware", "a document of Google's own"],
)
def test_what_is_refused_may_be_asked_for(
    server: DriveServer, here: Here, item: dict[str, Any], more: dict[str, object]
) -> None:
    minutes = server.store.add("Minutes", CONTENT, **item)

    [file] = here.done(minutes.id, **more).files

    assert (Path(file.path).name, Path(file.path).read_bytes()) == ("Minutes.pdf", CONTENT)


def test_an_impossible_file_costs_no_byte(server: DriveServer, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    item = server.store.add("a.pdf", CONTENT)
    server.plain["a.pdf"] = Plain(CONTENT)
    url = f"{server.url}/plain/a.pdf"

    assert code_of(here(item.id, expected_md5="0" * 32)) == "NOT_AS_EXPECTED"
    assert server.asked("media") == []
    monkeypatch.setenv(download.BYTES_MAX.variable, "1000")
    assert code_of(here(url)) == "TOO_LARGE"
    assert len(server.asked("plain")) == 1
    monkeypatch.setenv(https.ALLOW.variable, "")
    assert code_of(here(url)) == "ADDRESS_REFUSED"
    assert len(server.asked("plain")) == 1


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
def test_a_payload_that_makes_no_sense_is_refused(here: Here, payload: dict[str, str]) -> None:
    ended = here(**payload)

    assert code_of(ended) in ("SOURCE_UNKNOWN", "PAYLOAD_INVALID")


def test_an_old_link_shows_its_resource_key_and_a_shortcut_leads_into_a_shared_drive(
    server: DriveServer, here: Here
) -> None:
    shared = server.store.shared_drive("Team")
    item = server.store.add("a.pdf", CONTENT, drive_id=shared.drive_id, resource_key="0-abc")
    link = f"https://drive.google.com/open?id={item.id}"

    assert code_of(here(link)) == "NOT_FOUND"
    assert isinstance(here(f"{link}&resourcekey=0-abc"), Done)
    assert isinstance(here(link, resource_key="0-abc"), Done)
    assert isinstance(here(server.store.shortcut("to a", item.id, target_key="0-abc").id), Done)


# --- secrets ------------------------------------------------------------------------------------------


def write_credential(tmp_path: Path, name: str, text: str, mode: int = 0o600) -> None:
    file = tmp_path / "credentials" / name
    file.write_text(text)
    file.chmod(mode)


def test_messages_and_logs_contain_no_secret(server: DriveServer, here: Here, tmp_path: Path) -> None:
    item = server.store.add("a.pdf", CONTENT)
    write_credential(tmp_path, "drive_user", server.tokens.user())
    shown = ""
    for credential, secret, *faults in (
        ("drive", "", Fault("status", status=401, reason="authError", on="metadata", times=9)),
        ("drive", "", Fault("garbage", on="metadata", times=9)),
        ("drive_user", "", Fault("page", status=403, on="media", times=9)),
        ("drive_user", "another"),
    ):
        server.faults.clear()
        server.tokens.client_secret = secret or server.tokens.client_secret
        server.arm(*faults)
        ended = here(item.id, credential=credential)
        assert isinstance(ended, HandlerError)
        shown += "\n".join(traceback.format_exception(ended) + here.context.lines)

    for secret in ("SECRET", "BEGIN PRIVATE", "Bearer", "assertion", "client_secret"):
        assert secret not in shown


@pytest.mark.parametrize("kind", ["user", "subject"])
def test_other_credentials_work_as_well(server: DriveServer, here: Here, tmp_path: Path, kind: str) -> None:
    anna = "anna@example.com"
    item = server.store.add("a.pdf", CONTENT, readers={anna} if kind == "subject" else {ME})
    key = server.tokens.service_account(subject=anna) if kind == "subject" else server.tokens.user()
    write_credential(tmp_path, "drive_other", key)

    assert here.done(item.id, credential="drive_other")


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
    here: Here, tmp_path: Path, text: str | None, mode: int, code: str
) -> None:
    if text is not None:
        write_credential(tmp_path, "drive_odd", text, mode)

    ended = here("1234567890abc", credential="drive_odd")

    assert code_of(ended) == code
    assert "SECRET" not in str(ended)


def test_application_default_credentials_serve_as_well(
    server: DriveServer, run: InChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = server.store.add("a.pdf", CONTENT)
    key = tmp_path / "elsewhere.json"
    key.write_text(server.tokens.service_account())
    monkeypatch.setenv(drive_credentials.ADC_FILE, str(key))

    assert run(item.id, credential="adc").how is How.DONE


@pytest.mark.usefixtures("server")
def test_another_drive_is_only_ever_this_machine(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for elsewhere in ("http://127.0.0.1.example.com:80", "https://drive.example.com", "http://127.0.0.1:80/x"):
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, elsewhere)

        assert code_of(here("1234567890abc")) == "SETTING_INVALID"


# --- local files --------------------------------------------------------------------------------------


def test_a_local_file_is_read_once_it_is_stable_and_known_once_it_has_settled(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(CONTENT)

    with pytest.raises(FetchError) as written:
        LocalFile(str(file), Timeouts(stable_seconds=60)).facts()
    fresh = here.done(str(file)).follow_ups[0].document
    here.timeouts = replace(QUICK, settled_seconds=-1.0)
    settled = here.done(str(file)).follow_ups[0].document

    assert written.value.code == "STILL_WRITTEN"
    assert (fresh.revision, settled.revision) == ("", revision_of(file.stat()))


def test_a_local_file_is_copied_and_left_where_it_is(run: InChild, tmp_path: Path) -> None:
    file = tmp_path / "scans" / "a report.pdf"
    file.parent.mkdir()
    file.write_bytes(CONTENT)

    done = run(str(file))

    assert done.how is How.DONE, done.ended.message
    assert done.files[0].read_bytes() == file.read_bytes() == CONTENT
    assert done.published[0].sha256 == SHA256
    assert done.follow_ups[0].document is not None
    assert done.follow_ups[0].document.source_key == str(file)


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
    server: DriveServer, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    secret = tmp_path / "credentials" / "drive"
    (tmp_path / "a directory").mkdir()
    os.mkfifo(tmp_path / "a pipe")
    (tmp_path / "a link to one").symlink_to(secret)
    (tmp_path / "outside").write_bytes(CONTENT)
    if what == "outside":
        monkeypatch.setenv(local.ROOTS.variable, f"{tmp_path}/out:{tmp_path}/elsewhere")

    ended = here(str({"a device": "/dev/zero", "a credential": secret}.get(what, tmp_path / what)))

    assert code_of(ended) in ("UNREADABLE", "NO_FILE", "PATH_REFUSED")
    assert "PRIVATE" not in str(ended)


def test_a_file_that_is_replaced_after_the_attempt_began_is_read_by_the_next_attempt(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    file.write_bytes(CONTENT)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from job_handlers.fetch.errors import Timeouts\n"
        "from job_handlers.fetch.sources.local import LocalFile\n"
        "from worker_service.handlers import Retryable\n"
        "from worker_service.runner import sandbox\n"
        "sandbox.prepare()\n"
        "sandbox.apply(sandbox.SandboxRules([Path(sys.argv[1])], [], network=False), 'best-effort')\n"
        "print('sandboxed', flush=True)\n"
        "sys.stdin.readline()\n"
        "file = LocalFile(sys.argv[1], Timeouts(stable_seconds=0))\n"
        "try:\n"
        "    next(file.download_into(None, file.facts(), 1))\n"
        "except Retryable as error:\n"
        "    print(error.code)\n"
    )
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "sandboxed\n"
        (tmp_path / "new").write_bytes(CONTENT)
        (tmp_path / "new").rename(file)
        said, _ = reader.communicate("go\n", timeout=30)

    assert said == "CHANGED\n"
