"""A Drive and a web server in a box: `python -m tests.systemd.document_servers DIRECTORY`

Writes the credential, the authority of the certificate and, last, `addresses.json`; then serves until it is stopped.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.drive_server import serving
from tests.drive_server.answers import PlainFile
from tests.job_handlers.certificates import certificate_in
from tests.job_handlers.reading.documents import picture, scan, workbook

TEXTS = {
    "drive": "Quarterly revenue rose to twelve million dollars",
    "web": "The supply of water depends on the climate",
    "local": "Shareholders approved the annual dividend",
    "offline": "The auditors have read this without a network",
    "later": "The committee met when all was in its place",
}
SHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


def scanned(directory: Path, name: str) -> Path:
    """Write a scan of two small pages; the second says its name as well."""
    text = TEXTS[name]
    images = [picture(text, dpi=200) for text in (text, f"{text}, and this is page two")]
    heads = [image.crop((0, 0, image.width, image.height // 6)) for image in images]
    return scan(directory / f"{name}.pdf", heads, dpi=200)


def main(directory: Path) -> None:
    authority, context = certificate_in(directory)
    # Children that have a network read this place.
    authority.chmod(0o644)
    with serving() as drive, serving(tls=context) as web:
        folder = drive.store.folder("reports")
        drive.store.add("quarter.pdf", scanned(directory, "drive").read_bytes(), parents=[folder.id])
        other_files = {
            name: drive.store.add(f"{name}.pdf", scanned(directory, name).read_bytes()) for name in ("offline", "later")
        }
        table = workbook(directory / "table.xlsx", {"Regions": [["region", "revenue"], ["north", 41]]})
        drive.store.add("table.xlsx", table.read_bytes(), mime=SHEET, parents=[folder.id])
        web.plain["water.pdf"] = PlainFile(scanned(directory, "web").read_bytes())
        scanned(directory, "local")
        key = directory / "drive.json"
        key.touch(mode=0o600)
        key.write_text(drive.tokens.service_account())
        addresses = {
            "endpoint": drive.url,
            **{name: f"https://drive.google.com/file/d/{item.id}/view" for name, item in other_files.items()},
            "folder": f"https://drive.google.com/drive/folders/{folder.id}",
            "web": f"https://localhost:{web.port}/plain/water.pdf",
        }
        (directory / "addresses.new").write_text(json.dumps(addresses))
        (directory / "addresses.new").rename(directory / "addresses.json")
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
