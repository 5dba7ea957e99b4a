"""A Google Drive for tests: a real server on this machine that speaks the parts of Drive v3 that we use, is strict
where Drive is strict, and breaks where it is told to.
"""

from tests.drive_server.faults import Asked, Fault
from tests.drive_server.model import Item, Store
from tests.drive_server.server import DriveServer, serving

__all__ = ["Asked", "DriveServer", "Fault", "Item", "Store", "serving"]
