"""A real daemon, beside the server."""

from tests.system.conftest import system as system
