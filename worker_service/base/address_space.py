from __future__ import annotations

import resource

from worker_service.base.errors import ConfigError

_ADDRESS_SPACE_BYTES_MIN = 192 << 20  # The daemon uses about 150 MB.


class TooLittleMemory(ConfigError, code="too_little_memory"): ...


def require_address_space() -> None:
    """Call before importing large libraries, whose import would fail in a traceback."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE_BYTES_MIN:
        raise TooLittleMemory(
            f"the limit of address space is {limit >> 20} MiB, and the daemon needs {_ADDRESS_SPACE_BYTES_MIN >> 20}",
            "raise the limit: ulimit -v unlimited, or LimitAS=infinity in the unit",
        )
