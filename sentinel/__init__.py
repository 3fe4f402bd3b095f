"""Sentinel keeps idle NVIDIA GPUs busy and gives each back the instant somebody else needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client import Client as Client
    from sentinel.client import connect as connect
    from sentinel.client.holding import Hold as Hold
    from sentinel.client.holding import hold as hold

__version__ = "0.1.0"

__all__ = ["Client", "Hold", "__version__", "connect", "hold"]

#: What is imported on its first use: every child of a sentinel imports this file, too.
_LATE = {
    "Client": "sentinel.client",
    "Hold": "sentinel.client.holding",
    "connect": "sentinel.client",
    "hold": "sentinel.client.holding",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
