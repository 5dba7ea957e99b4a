"""Where a database may be, and where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_service.errors import StoreUnusable
from worker_service.store import opening
from worker_service.store.opening import NETWORK_FILE_SYSTEMS, file_system_of, initialise, open_store

MOUNTS = """\
21 1 253:0 / / rw,relatime - ext4 /dev/vda rw
30 21 0:40 / /srv rw,relatime shared:1 - nfs4 box:/srv rw
31 30 253:1 / /srv/local\\040disk rw - xfs /dev/vdb rw
32 21 0:41 / /mnt rw - cifs //box/mnt rw
33 32 253:2 / /mnt rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/deep/down", "nfs4"),
        ("/srv/local disk/x", "xfs"),
        ("/srvx", "ext4"),
        ("/mnt/x", "ext4"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_and_last_mount(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


def test_this_machines_own_mounts_can_be_read(tmp_path: Path) -> None:
    kind = file_system_of(tmp_path.resolve(), Path("/proc/self/mountinfo").read_text())

    assert kind
    assert kind not in NETWORK_FILE_SYSTEMS


def test_a_database_on_a_network_file_system_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No network file system can be mounted here: the folder's own kind is called one."""
    kind = file_system_of(tmp_path.resolve(), Path("/proc/self/mountinfo").read_text())
    path = tmp_path / "queue.db"
    monkeypatch.setattr(opening, "NETWORK_FILE_SYSTEMS", (kind,))

    with pytest.raises(StoreUnusable, match="network file system"):
        initialise(path)
    with pytest.raises(StoreUnusable, match="WORKER_DATABASE"):
        open_store(path)

    assert not path.exists()
