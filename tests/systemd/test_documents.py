from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job_handlers.reading.ocr.tesseract import DATA
from tests.kit.system import wait_until
from tests.systemd.booted_systemd import PYTHON, PYTHONPATH, Box
from tests.systemd.conftest import FILES, Service, booted
from tests.systemd.document_servers import TEXTS

# In a directory that children with a network may read: there lies the authority as well.
PLACE = "/etc/ssl/sources"
CREDENTIAL = f"LoadCredential=drive:{PLACE}/drive.json"
READING_SECONDS = 120.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box for the tests with sources."""
    with booted(tmp_path_factory.mktemp("shared")) as made:
        yield made


@pytest.fixture(scope="module")
def sources(shared: Box) -> dict[str, str]:
    """Start a Drive and a web server in the box; return their URLs and the path of a scan."""
    box = shared
    box.check("mkdir", "-p", PLACE)
    run = f"--unit=sources --setenv=PYTHONPATH={PYTHONPATH} {PYTHON} -m tests.systemd.document_servers {PLACE}"
    box.check("systemd-run", *run.split())
    wait_until(lambda: box.run("test", "-e", f"{PLACE}/addresses.json").returncode == 0, "the sources are up")
    found: dict[str, str] = json.loads(box.check("cat", f"{PLACE}/addresses.json"))
    return found


@pytest.fixture(scope="module")
def shipped(shared: Box, sources: dict[str, str]) -> Service:
    """pagemill.service as it is shipped, with a key and the way to the sources."""
    service = Service(shared)
    service.drop_in(
        "sources",
        f"{CREDENTIAL}\nEnvironment=WORKER_DRIVE_ENDPOINT={sources['endpoint']} WORKER_DOWNLOAD_ALLOW=127.0.0.0/8 "
        f"SSL_CERT_FILE={PLACE}/authority.pem",
    )
    return service


@pytest.fixture
def reader(shipped: Service) -> Iterator[Service]:
    """The service, not started. Drop-ins of a test are removed after it."""
    before = shipped.drop_ins()
    yield shipped
    shipped.systemctl("stop")
    for file in shipped.drop_ins() - before:
        file.unlink()
    shipped.box.check("systemctl", "daemon-reload")


def listed(service: Service, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(service.pagemill(*words, "--json"))["items"]
    return found


def read(service: Service, owner: str, count: int = 1) -> list[str]:
    """Wait until the owner's documents have been read; return their texts."""
    of_owner = f"owner = '{owner}'"
    failures = (
        f"SELECT job_type, error_code, error_message FROM worker_job_queue WHERE status = 'failed' AND {of_owner}"
    )
    successes = f"SELECT count(*) FROM document WHERE index_status = 'success' AND {of_owner}"

    def is_over() -> bool:
        assert service.query(failures) == ""
        return service.query(successes) == str(count)

    wait_until(is_over, "all have been read", seconds=READING_SECONDS)
    return [service.pagemill("text", str(item["id"])) for item in listed(service, "documents", "--owner", owner)]


def units_of(service: Service, owner: str, job_type: str) -> set[str]:
    """Return the units that started the owner's jobs of this type."""
    jobs = [f"PAGEMILL_JOB_ID={job['id']}" for job in listed(service, "ls", "--owner", owner, "--type", job_type)]
    entries = service.journal("PAGEMILL_EVENT=job.claimed", *jobs) if jobs else []
    return {entry["_SYSTEMD_UNIT"] for entry in entries}


def assert_exposure(box: Box, unit: str, most: int) -> None:
    """Check the unit as systemd has loaded it. `most` is ten times the figure that it prints."""
    done = box.run("systemd-analyze", "security", f"--threshold={most}", unit)
    assert done.returncode == 0, done.stdout


def test_the_hardened_service_finds_fetches_and_reads_documents(reader: Service, sources: dict[str, str]) -> None:
    reader.systemctl("start")

    # Of a folder in Drive a scan and a spreadsheet, and a scan behind a URL.
    reader.pagemill("crawl", sources["folder"], "--owner", "ann")
    reader.enqueue("download", "--set", f"source={sources['web']}", "--owner", "ann")
    texts = read(reader, "ann", 3)

    for name in ("drive", "web"):
        [text] = [text for text in texts if TEXTS[name] in text]
        assert text.count(TEXTS[name]) == 2
    assert sum("north" in text and "41" in text for text in texts) == 1
    entries = reader.journal("PAGEMILL_EVENT=job.started")
    assert {entry["PAGEMILL_SANDBOX"] for entry in entries} == {"landlock+seccomp"}
    assert_exposure(reader.box, reader.unit, 15)
    assert_pages_are_drawn_by_the_web(reader)


def assert_pages_are_drawn_by_the_web(service: Service) -> None:
    """Check that pagemill-web draws pages in its own sandboxed child. It uses the same boot, which is dear."""
    unit = "pagemill-web.service"
    service.box.write(f"/etc/systemd/system/{unit}", (FILES / unit).read_text())
    program = f"ExecStart=\nExecStart={PYTHON} -m worker_service.cli serve\nEnvironment=PYTHONPATH={PYTHONPATH}"
    service.box.write(
        f"/etc/systemd/system/{unit}.d/00-program.conf", f"[Service]\n{program}\nEnvironment=WORKER_SANDBOX=strict\n"
    )
    service.box.check("systemctl", "daemon-reload")
    started = service.box.run("systemctl", "start", unit)
    assert started.returncode == 0, service.box.run("journalctl", "--no-pager", "-n", "40").stdout

    ask = "import sys, urllib.request as u, urllib.error\n"
    ask += "r = u.Request('http://127.0.0.1:8470' + sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[2]})\n"
    ask += "try:\n    a = u.urlopen(r, timeout=60)\n"
    ask += "    print(a.headers['Content-Type'], a.read()[:4])\n"
    ask += "except urllib.error.HTTPError as e:\n    print(e.read().decode())"
    scans = [item for item in listed(service, "documents", "--owner", "ann") if item["kind"] != "sheet"]
    assert len(scans) == 2
    token = service.run_as(
        "pagemill", "pagemill", PYTHON, "-m", "worker_service.cli", "token", "make", "viewer"
    ).strip()
    for document in scans:
        image = f"/api/documents/{document['id']}/pages/1/image?width=600"
        assert service.run_as("pagemill", "pagemill", PYTHON, "-c", ask, image, token) == "image/webp b'RIFF'\n"


def test_the_offline_worker_recognises_pages_without_a_network(reader: Service, sources: dict[str, str]) -> None:
    offline = Service(reader.box, "pagemill-offline@.service", instance="ocr_pages")
    reader.drop_in("offline", "Environment=WORKER_TYPES=!@commands,!ocr_pages")
    reader.systemctl("start")
    reader.enqueue("download", "--set", f"source={sources['offline']}", "--owner", "bob")

    # The other one has done its part, and leaves this to whom it is for.
    completed = "SELECT count(*) FROM worker_job_queue WHERE status = 'completed' AND owner = 'bob'"
    wait_until(lambda: reader.query(completed) == "2", "the file has been looked at")
    assert listed(reader, "ls", "--status", "pending", "--type", "ocr_pages", "--owner", "bob")
    assert units_of(reader, "bob", "ocr_pages") == set()
    offline.systemctl("start")

    [text] = read(reader, "bob")
    assert text.count(TEXTS["offline"]) == 2
    assert units_of(reader, "bob", "ocr_pages") == {"pagemill-offline@ocr_pages.service"}
    assert units_of(reader, "bob", "download") | units_of(reader, "bob", "assemble") == {"pagemill.service"}
    # Neither an interface to go out by, nor the key.
    devices = reader.box.check("nsenter", "-t", str(offline.main_pid), "-n", "cat", "/proc/self/net/dev")
    assert [line.split(":")[0].strip() for line in devices.splitlines()[2:]] == ["lo"]
    assert reader.box.run("test", "-e", "/run/credentials/pagemill-offline@ocr_pages.service").returncode == 1
    assert_exposure(reader.box, offline.unit, 5)
    offline.systemctl("stop")


def test_group_members_can_add_files_that_the_service_can_read(reader: Service, sources: dict[str, str]) -> None:
    box = reader.box
    for place in ("/srv/reports", "/home/ann/reports"):
        box.check("install", "-D", "-m", "644", f"{PLACE}/local.pdf", f"{place}/annual.pdf")
        box.check("touch", "-d", "1 minute ago", f"{place}/annual.pdf")
    box.check("chmod", "755", "/home", "/home/ann")
    box.check("install", "-o", "nobody", "-m", "600", f"{PLACE}/local.pdf", "/srv/reports/private.pdf")
    box.check("touch", "-d", "1 minute ago", "/srv/reports/private.pdf")
    reader.systemctl("start")

    def ingest(path: str) -> int:
        # As a member of the group who is not the user of the service.
        words = [PYTHON, "-m", "worker_service.cli", "add", path, "--owner", "eve", "--json"]
        return int(json.loads(reader.run_as("nobody", "nogroup", *words))["items"][0]["job_id"])

    def failure(job_id: int) -> tuple[str, str, str]:
        wait_until(lambda: reader.status(job_id) == "failed", "it has failed")
        job = reader.job(job_id)
        return job["error_code"], job["error_message"], job["error_remedy"]

    ingest("/srv/reports/annual.pdf")
    [text] = read(reader, "eve")
    assert text.count(TEXTS["local"]) == 2

    code, sentence, remedy = failure(private := ingest("/srv/reports/private.pdf"))
    assert code == "UNREADABLE"
    assert sentence.startswith("/srv/reports/private.pdf cannot be read: Permission denied")
    assert "chgrp pagemill /srv/reports/private.pdf && chmod g+r /srv/reports/private.pdf" in remedy
    code, sentence, remedy = failure(hidden := ingest("/home/ann/reports/annual.pdf"))
    assert code == "UNREADABLE"
    assert sentence.startswith("/home/ann/reports/annual.pdf cannot be read")
    assert "as pagemill.service explains" in remedy

    # What the sentences and the unit say to do.
    box.check("chgrp", "pagemill", "/srv/reports/private.pdf")
    box.check("chmod", "g+r", "/srv/reports/private.pdf")
    reader.drop_in("homes", "ProtectHome=tmpfs\nBindReadOnlyPaths=/home/ann/reports")
    reader.systemctl("restart")
    reader.pagemill("retry", str(private), str(hidden), "--yes")

    assert [text.count(TEXTS["local"]) for text in read(reader, "eve", 3)] == [2, 2, 2]

    assert_exposure(box, reader.unit, 15)


def test_a_credential_is_readable_only_by_handlers_that_declare_it(box: Box) -> None:
    service = Service(box, types="", shipped=["command", "download"])
    key = "/run/credentials/pagemill.service/drive"
    service.settings(f"""
        [commands.peek]
        argv = ["/bin/cat", "{key}"]
        sandbox = "strict"
        permanent = [1]
        [commands.look]
        argv = ["/bin/ls", "{key}"]
        permanent = [1]
    """)
    box.write(f"{PLACE}/drive.json", '{"private_key": "PRIVATE"}')
    box.check("chmod", "600", f"{PLACE}/drive.json")
    service.drop_in("key", CREDENTIAL)
    service.systemctl("start")

    peek, look = service.enqueue("peek"), service.enqueue("look")
    download = service.enqueue("download", "--set", "source=https://drive.google.com/file/d/1a2b3c4d5e6f7g8h9i0j/view")

    ended = {"completed", "failed"}
    wait_until(lambda: {service.status(job_id) for job_id in (peek, look, download)} <= ended, "all have ended")
    # It is there, as systemd writes it; the sandbox of another job hides it.
    assert service.job(look)["status"] == "completed", service.job(look)["log"]
    assert service.job(peek)["status"] == "failed"
    assert "Permission denied" in json.dumps(service.job(peek))
    assert "PRIVATE" not in json.dumps(service.job(peek))
    # The handler that it is for has read it, and found it closed to others, but no key.
    assert service.job(download)["error_code"] == "CREDENTIAL_INVALID", service.job(download)
    # Nor does anybody else on the machine read it, the group included.
    for user, code in (("pagemill", 0), ("nobody", 1)):
        done = box.run("setpriv", f"--reuid={user}", "--regid=pagemill", "--clear-groups", "cat", key)
        assert done.returncode == code, done.stderr


def test_without_trained_data_pages_wait_and_commands_name_the_package(
    reader: Service, sources: dict[str, str]
) -> None:
    hidden = [place for place in DATA["fast"] if Path(place).is_dir()]
    reader.drop_in("data", "".join(f"TemporaryFileSystem={place}\n" for place in hidden))
    reader.systemctl("start")
    reader.enqueue("download", "--set", f"source={sources['later']}", "--owner", "fay")
    pages = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ocr_pages' AND owner = 'fay'"
    wait_until(lambda: reader.query(pages) != "0", "the file has been looked at")

    page = listed(reader, "ls", "--type", "ocr_pages", "--owner", "fay")[0]
    assert "apt-get install tesseract-ocr-eng" in reader.pagemill_output("why", str(page["id"]))
    lines = reader.pagemill_output("doctor").splitlines()
    at = lines.index("! handler ocr_pages: it starts no jobs: there is no trained data for OCR")
    assert lines[at + 1].strip().startswith("apt-get install tesseract-ocr-eng")
    assert reader.job(page["id"])["status"] == "pending"

    reader.drop_in("data", "")
    reader.systemctl("restart")
    [text] = read(reader, "fay")
    assert text.count(TEXTS["later"]) == 2
