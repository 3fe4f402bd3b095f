"""Keep idle NVIDIA GPUs busy, and yield each one the moment a foreign process appears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client import Client as Client
    from sentinel.client import connect as connect
    from sentinel.client.hold import Hold as Hold
    from sentinel.client.hold import hold as hold
    from sentinel.client.monitor import Monitor as Monitor
    from sentinel.config.model import Config as Config
    from sentinel.core.state import Orders as Orders
    from sentinel.protocol import __version__ as __version__
    from sentinel.protocol.events import Event as Event
    from sentinel.protocol.gpu import Gpu as Gpu
    from sentinel.protocol.stressor import MemoryTarget as MemoryTarget
    from sentinel.supervisor.bootstrap import supervise as supervise
    from sentinel.supervisor.discovery import Options as Options
    from sentinel.supervisor.loop import Supervisor as Supervisor
    from sentinel.supervisor.ports import Parts as Parts

__all__ = [
    "Client",
    "Config",
    "Event",
    "Gpu",
    "Hold",
    "MemoryTarget",
    "Monitor",
    "Options",
    "Orders",
    "Parts",
    "Supervisor",
    "__version__",
    "connect",
    "hold",
    "supervise",
]

#: Names that are imported at their first use, since every child process imports this file.
_LAZY = {
    "Client": "sentinel.client",
    "Config": "sentinel.config.model",
    "Event": "sentinel.protocol.events",
    "Gpu": "sentinel.protocol.gpu",
    "Hold": "sentinel.client.hold",
    "MemoryTarget": "sentinel.protocol.stressor",
    "Monitor": "sentinel.client.monitor",
    "Options": "sentinel.supervisor.discovery",
    "Orders": "sentinel.core.state",
    "Parts": "sentinel.supervisor.ports",
    "Supervisor": "sentinel.supervisor.loop",
    "__version__": "sentinel.protocol",
    "connect": "sentinel.client",
    "hold": "sentinel.client.hold",
    "supervise": "sentinel.supervisor.bootstrap",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
