from tests.system.conftest import system as system
