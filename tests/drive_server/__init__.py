"""A Google Drive for tests: a real server on this machine with the part of Drive v3 that pagemill uses.

It refuses what Drive refuses, and fails as a test tells it to.
"""

from tests.drive_server.faults import Fault, LoggedRequest
from tests.drive_server.model import Item, Store
from tests.drive_server.server import DriveServer, serving

__all__ = ["DriveServer", "Fault", "Item", "LoggedRequest", "Store", "serving"]
