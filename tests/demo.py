"""The Google Drive of `./run demo`: `python -m tests.demo DIRECTORY`

Writes settings and a credential there, serves reports with faults armed, and prints at its end what was asked of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.drive_server.faults import Fault
from tests.drive_server.model import Store
from tests.drive_server.server import DriveServer, serving
from tests.job_handlers.reading import documents

FOLDER_ID = "folder-of-reports"
SETTINGS = """\
[commands.scrape_account]
argv = ["/bin/echo", "scraping", "{account}", "{payload.scrape_type}"]

[retries.ocr_pages]
first = "1s"
"""
_CLIMATE = (
    "Water stress is the climate risk that our sites in the south are most exposed to.",
    "The board reviewed each climate risk twice, and set a target for scope 3 emissions.",
    "No site reported a spill. Withdrawal of water fell by four per cent.",
)


def main(directory: Path) -> None:
    (directory / "pagemill.toml").write_text(SETTINGS)
    credentials = directory / "credentials"
    credentials.mkdir(mode=0o700)
    with serving() as drive:
        _fill(drive.store, directory)
        key = credentials / "drive"
        key.touch(mode=0o600)
        key.write_text(drive.tokens.service_account())
        drive.arm(
            Fault("status", on="media", status=503, headers={"Retry-After": "1"}),
            Fault("reset", on="media", skip=1, at=1000),
        )
        (directory / "ready.part").write_text(drive.url)
        (directory / "ready.part").rename(directory / "ready")
        sys.stdin.read()
        _tell(drive)


def _fill(store: Store, directory: Path) -> None:
    reports = store.folder("Reports", id=FOLDER_ID)
    older = store.folder("2024", parents=[reports.id])
    made = directory / "made.pdf"

    pages = [f"{_CLIMATE[at % 3]}\n\n{documents.prose(at)}" for at in range(6)]
    store.add("Annual report 2025.pdf", documents.digital(made, pages).read_bytes(), parents=[reports.id])
    texts = [f"{line}\n\n{documents.prose(at, 100)}" for at, line in enumerate(_CLIMATE[1:])]
    scanned = documents.scan(made, [documents.picture(text, dpi=200) for text in texts], dpi=200)
    store.add("Audit, scanned.pdf", scanned.read_bytes(), parents=[reports.id])
    store.add(
        "Water 2024.pdf",
        documents.digital(made, [f"{_CLIMATE[2]}\n\n{documents.prose(9)}"]).read_bytes(),
        parents=[older.id],
    )
    store.add("Minutes", mime="application/vnd.google-apps.document", parents=[reports.id])
    made.unlink()


def _tell(drive: DriveServer) -> None:
    media = drive.requests_for("media")
    resumed = [request.begin for request in media if request.begin]
    left = drive.faults.armed()
    print(
        f"the Drive: {len(drive.log)} requests, {len(media)} for bytes; answered one with 503, reset one half way"
        f"{'' if not left else ' (not met: ' + ', '.join(fault.kind for fault in left) + ')'}; "
        f"{len(resumed)} went on in the middle of a file"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
