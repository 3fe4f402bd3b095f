"""memtest on a simulated GPU with a cache that is larger than its memory."""

from __future__ import annotations

from typing import Any

from sentinel.stressor import memtest as module
from sentinel.stressor.memtest import memtest

__all__ = ["memtest"]


def _cache_of(device: Any) -> int:
    del device
    return 2**24


module._cache_of = _cache_of
