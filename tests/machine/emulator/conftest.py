import pytest
from lesson.machine import emulator


@pytest.fixture(scope="package")
def backend():
    """The emulated backend, with a limit that an endless loop meets soon."""
    return emulator.HostBackend(limit_s=1.0)
