"""Sentinel keeps idle NVIDIA GPUs busy and gives each back the instant somebody else needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client import Client as Client
    from sentinel.client import connect as connect
    from sentinel.client.holding import Hold as Hold
    from sentinel.client.holding import hold as hold
    from sentinel.client.monitor import Monitor as Monitor
    from sentinel.config import Config as Config
    from sentinel.core.actions import Event as Event
    from sentinel.discovery import Options as Options
    from sentinel.messages import Gpu as Gpu
    from sentinel.messages import MemoryTarget as MemoryTarget
    from sentinel.supervisor import Parts as Parts
    from sentinel.supervisor import Supervisor as Supervisor
    from sentinel.wiring import supervise as supervise

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Config",
    "Event",
    "Gpu",
    "Hold",
    "MemoryTarget",
    "Monitor",
    "Options",
    "Parts",
    "Supervisor",
    "__version__",
    "connect",
    "hold",
    "supervise",
]

#: What is imported on its first use: every child of a sentinel imports this file, too.
_LATE = {
    "Client": "sentinel.client",
    "Config": "sentinel.config",
    "Event": "sentinel.core.actions",
    "Gpu": "sentinel.messages",
    "Hold": "sentinel.client.holding",
    "MemoryTarget": "sentinel.messages",
    "Monitor": "sentinel.client.monitor",
    "Options": "sentinel.discovery",
    "Parts": "sentinel.supervisor",
    "Supervisor": "sentinel.supervisor",
    "connect": "sentinel.client",
    "hold": "sentinel.client.holding",
    "supervise": "sentinel.wiring",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
