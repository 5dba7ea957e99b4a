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
from job_handlers.fetch.error_rules import FetchError, Timeouts
from job_handlers.fetch.sources import https, local
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from job_handlers.fetch.sources.local import LocalFile, revision_of
from tests.drive_server import DriveServer, Fault
from tests.drive_server.answers import PlainFile
from tests.drive_server.model import ME
from tests.job_handlers.fetch.kit import LocalContext, pdf
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
PUBLISHED = PublishedFile(7, 3, "original", "old.pdf", "objects/3-1/old.pdf", len(CONTENT), SHA256, MD5)

GOOGLE_DOCUMENT = "application/vnd.google-apps.document"

InChild = Callable[..., HandlerRun]


@pytest.fixture
def run(tmp_path: Path) -> InChild:
    """Download in a real child with its sandbox."""

    def run(source: str, **more: object) -> HandlerRun:
        return run_handler(quick, {"source": source, **more}, directory=tmp_path / "run")

    return run


class Downloader:
    """Downloads in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.published: Sequence[PublishedFile] = ()
        self.timeouts = QUICK
        self.context: Any = None

    def __call__(self, source: str, **more: object) -> Done | HandlerError:
        payload = msgspec.convert({"source": source, **more}, download.DownloadPayload)
        self.context = LocalContext(payload=payload, directory=self.directory, published=self.published)
        try:
            return download.run(self.context, self.timeouts)
        except HandlerError as error:
            return error

    def completed(self, source: str, **more: object) -> Any:
        ended = self(source, **more)
        assert isinstance(ended, Done), ended
        return ended


@pytest.fixture
def downloader(tmp_path: Path) -> Downloader:
    return Downloader(tmp_path / "here")


def code_of(ended: Done | HandlerError) -> str:
    assert isinstance(ended, Permanent), ended
    return ended.code


# --- publication --------------------------------------------------------------------------------------


def test_a_file_of_drive_is_published_and_read(server: DriveServer, run: InChild, tmp_path: Path) -> None:
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


def test_the_request_to_read_carries_settings_force_and_tags(server: DriveServer, downloader: Downloader) -> None:
    item = server.store.add("a.pdf", CONTENT)

    published = downloader.completed(item.id, ingest=False, name="Mine")
    payloads: list[dict[str, Any]] = [{"tags": ["Paid"]}, {"read": {"a": 1}}, {"force": True}]
    requests = [downloader.completed(item.id, **more).follow_ups[0].document for more in payloads]

    assert ([Path(file.path).name for file in published.files], published.follow_ups) == (["Mine.pdf"], [])
    tagged, with_settings, forced = requests
    assert tagged.settings == forced.settings != with_settings.settings
    assert [request.is_forced for request in requests] == [False, False, True]
    assert [*tagged.tags, *with_settings.tags] == ["paid"]


def test_a_published_file_with_the_same_content_is_published_again(server: DriveServer, downloader: Downloader) -> None:
    item = server.store.add("again.pdf", CONTENT)
    server.plain["a.pdf"] = PlainFile(CONTENT)
    downloader.published = [PUBLISHED]

    by_digest, without = downloader.completed(item.id), downloader.completed(f"{server.url}/plain/a.pdf")

    # Drive names a digest before a byte is fetched; of a URL it is known afterwards.
    assert server.requests_for("media") == []
    for done, name in ((by_digest, "again.pdf"), (without, "a.pdf")):
        [file] = done.files
        assert (file.file_id, file.role, file.name) == (7, "original", name)
        assert (done.result["same_as"], done.follow_ups[0].document.content) == (7, SHA256)
    assert list(downloader.context.keep.rglob("*.*")) == []


def test_a_digest_in_the_payload_does_not_give_the_file(server: DriveServer, downloader: Downloader) -> None:
    server.plain["a.pdf"] = PlainFile(CONTENT)
    downloader.published = [PUBLISHED]

    done = downloader.completed(f"{server.url}/plain/a.pdf", expected_sha256=SHA256)

    assert done.result["bytes_fetched"] == len(CONTENT)


# --- failures -----------------------------------------------------------------------------------------


def test_a_used_up_quota_defers_for_hours_and_longer_each_time(server: DriveServer, downloader: Downloader) -> None:
    item = server.store.add("a.pdf", CONTENT)
    server.arm(Fault("status", times=2, status=403, reason="downloadQuotaExceeded"))

    ends = [downloader(item.id) for _ in range(2)]

    assert [ended.after for ended in ends if isinstance(ended, Snooze)] == [3600, 7200]
    assert isinstance(downloader(item.id), Done)


def test_a_revoked_credential_pauses_its_source(server: DriveServer, downloader: Downloader) -> None:
    item = server.store.add("a.pdf", CONTENT)
    server.tokens.is_revoked = True

    ended = downloader(item.id)

    assert isinstance(ended, PauseSource)
    assert "check the key" in str(ended)
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
    ],
)
def test_a_permanent_failure_names_its_remedy(
    server: DriveServer, downloader: Downloader, more: dict[str, object], code: str, words: str
) -> None:
    item = server.store.add(**{"name": "a.pdf", "content": CONTENT, **more})  # type: ignore[arg-type]

    ended = downloader(item.id)

    assert code_of(ended) == code
    assert words in str(ended)


@pytest.mark.parametrize(
    ("item", "more"),
    [({"is_abusive": True}, {"acknowledge_abuse": True}), ({"mime": GOOGLE_DOCUMENT}, {"export": "pdf"})],
    ids=["malware", "a document of Google's own"],
)
def test_the_payload_may_ask_for_malware_and_for_an_export(
    server: DriveServer, downloader: Downloader, item: dict[str, Any], more: dict[str, object]
) -> None:
    minutes = server.store.add("Minutes", CONTENT, **item)

    [file] = downloader.completed(minutes.id, **more).files

    assert (Path(file.path).name, Path(file.path).read_bytes()) == ("Minutes.pdf", CONTENT)


def test_a_file_that_cannot_be_accepted_is_not_fetched(
    server: DriveServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = server.store.add("a.pdf", CONTENT)
    server.plain["a.pdf"] = PlainFile(CONTENT)
    url = f"{server.url}/plain/a.pdf"

    assert code_of(downloader(item.id, expected_md5="0" * 32)) == "NOT_AS_EXPECTED"
    assert server.requests_for("media") == []
    monkeypatch.setenv(download.BYTES_MAX.variable, "1000")
    assert code_of(downloader(url)) == "TOO_LARGE"
    assert len(server.requests_for("plain")) == 1
    monkeypatch.setenv(https.ALLOW.variable, "")
    assert code_of(downloader(url)) == "ADDRESS_REFUSED"
    assert len(server.requests_for("plain")) == 1


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
def test_an_invalid_payload_is_refused(downloader: Downloader, payload: dict[str, str]) -> None:
    ended = downloader(**payload)

    assert code_of(ended) in ("SOURCE_UNKNOWN", "PAYLOAD_INVALID")


def test_resource_keys_open_old_links_and_shortcuts(server: DriveServer, downloader: Downloader) -> None:
    shared = server.store.shared_drive("Team")
    item = server.store.add("a.pdf", CONTENT, drive_id=shared.drive_id, resource_key="0-abc")
    link = f"https://drive.google.com/open?id={item.id}"

    assert code_of(downloader(link)) == "NOT_FOUND"
    assert isinstance(downloader(f"{link}&resourcekey=0-abc"), Done)
    assert isinstance(downloader(link, resource_key="0-abc"), Done)
    assert isinstance(downloader(server.store.shortcut("to a", item.id, target_key="0-abc").id), Done)


# --- secrets ------------------------------------------------------------------------------------------


def write_credential(tmp_path: Path, name: str, text: str, mode: int = 0o600) -> None:
    file = tmp_path / "credentials" / name
    file.write_text(text)
    file.chmod(mode)


def test_messages_and_logs_contain_no_secret(server: DriveServer, downloader: Downloader, tmp_path: Path) -> None:
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
        ended = downloader(item.id, credential=credential)
        assert isinstance(ended, HandlerError)
        shown += "\n".join(traceback.format_exception(ended) + downloader.context.lines)

    for secret in ("SECRET", "BEGIN PRIVATE", "Bearer", "assertion", "client_secret"):
        assert secret not in shown


@pytest.mark.parametrize("kind", ["user", "subject"])
def test_user_credentials_and_impersonation_work(
    server: DriveServer, downloader: Downloader, tmp_path: Path, kind: str
) -> None:
    anna = "anna@example.com"
    item = server.store.add("a.pdf", CONTENT, readers={anna} if kind == "subject" else {ME})
    key = server.tokens.service_account(subject=anna) if kind == "subject" else server.tokens.user()
    write_credential(tmp_path, "drive_other", key)

    assert downloader.completed(item.id, credential="drive_other")


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
def test_an_invalid_credential_is_refused(
    downloader: Downloader, tmp_path: Path, text: str | None, mode: int, code: str
) -> None:
    if text is not None:
        write_credential(tmp_path, "drive_odd", text, mode)

    ended = downloader("1234567890abc", credential="drive_odd")

    assert code_of(ended) == code
    assert "SECRET" not in str(ended)


def test_application_default_credentials_work(
    server: DriveServer, run: InChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = server.store.add("a.pdf", CONTENT)
    key = tmp_path / "elsewhere.json"
    key.write_text(server.tokens.service_account())
    monkeypatch.setenv(drive_credentials.ADC_FILE, str(key))

    assert run(item.id, credential="adc").how is How.DONE


@pytest.mark.usefixtures("server")
def test_the_drive_endpoint_can_only_be_this_machine(downloader: Downloader, monkeypatch: pytest.MonkeyPatch) -> None:
    for elsewhere in ("http://127.0.0.1.example.com:80", "https://drive.example.com", "http://127.0.0.1:80/x"):
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, elsewhere)

        assert code_of(downloader("1234567890abc")) == "SETTING_INVALID"


# --- local files --------------------------------------------------------------------------------------


def test_a_local_file_is_read_once_it_is_stable_and_known_once_it_has_settled(
    downloader: Downloader, tmp_path: Path
) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(CONTENT)

    with pytest.raises(FetchError) as written:
        LocalFile(str(file), Timeouts(stable_seconds=60)).facts()
    fresh = downloader.completed(str(file)).follow_ups[0].document
    downloader.timeouts = replace(QUICK, settled_seconds=-1.0)
    settled = downloader.completed(str(file)).follow_ups[0].document

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


def test_a_write_changes_the_revision_even_if_the_time_is_set_back(tmp_path: Path) -> None:
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
def test_a_path_that_jobs_may_not_read_is_refused(
    server: DriveServer, downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    secret = tmp_path / "credentials" / "drive"
    (tmp_path / "a directory").mkdir()
    os.mkfifo(tmp_path / "a pipe")
    (tmp_path / "a link to one").symlink_to(secret)
    (tmp_path / "outside").write_bytes(CONTENT)
    if what == "outside":
        monkeypatch.setenv(local.ROOTS.variable, f"{tmp_path}/out:{tmp_path}/elsewhere")

    ended = downloader(str({"a device": "/dev/zero", "a credential": secret}.get(what, tmp_path / what)))

    assert code_of(ended) in ("UNREADABLE", "NO_FILE", "PATH_REFUSED")
    assert "PRIVATE" not in str(ended)


def test_a_file_that_is_replaced_after_the_attempt_began_is_read_by_the_next_attempt(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    file.write_bytes(CONTENT)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from job_handlers.fetch.error_rules import Timeouts\n"
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
        output, _ = reader.communicate("go\n", timeout=30)

    assert output == "CHANGED\n"
