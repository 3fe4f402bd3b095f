"""The callbacks of a monitor, by the names of the events that they are for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from sentinel.client.types import EventInfo
from sentinel.errors import ConfigError
from sentinel.protocol.api_types import GpuStatus

Callback = Callable[[GpuStatus, EventInfo], object]

_log = logging.getLogger("sentinel.monitor")

#: The health in which work should be slowed down a lot, or stopped.
_UNHEALTHY = {"throttled", "critical"}
#: Names for callbacks, besides the dotted names of events.
NAMES = (
    "state_change",
    "throttle",
    "resume",
    "critical",
    "overheat",
    "yield",
    "handed_over",
    "busy",
    "idle",
)
_NAME_BY_EVENT = {
    "gpu.overheat": "overheat",
    "gpu.yielding": "yield",
    "gpu.handed_over": "handed_over",
    "gpu.busy": "busy",
    "gpu.idle": "idle",
}


def names_of(event: EventInfo) -> Iterator[str]:
    """Yield the names by which an event calls callbacks."""
    yield event.name
    if event.name in _NAME_BY_EVENT:
        yield _NAME_BY_EVENT[event.name]
    if event.name != "gpu.health_changed":
        return
    yield "state_change"
    before, health = event.fields.get("before"), event.fields.get("health")
    if health == "throttled":
        yield "throttle"
    elif health == "critical":
        yield "critical"
    elif before in _UNHEALTHY:
        yield "resume"


class Callbacks:
    """The callbacks by name; safe to use from many threads."""

    def __init__(self) -> None:
        #: Calls that raised an exception.
        self.errors = 0
        self._by_name: dict[str, tuple[Callback, ...]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, callback: Callback) -> None:
        """Call a callback at each event with this name.

        Raises:
            ConfigError: The name is unknown.
        """
        if name not in NAMES and not ("." in name and name.isprintable()):
            raise ConfigError(
                f"there is no callback name {name!r}",
                f"The names are: {', '.join(NAMES)}, and those of events, such as gpu.paused.",
            )
        with self._lock:
            self._by_name[name] = (*self._by_name.get(name, ()), callback)

    def remove(self, name: str, callback: Callback) -> None:
        """Remove a callback, if it was added."""
        with self._lock:
            left = [one for one in self._by_name.get(name, ()) if one != callback]
            self._by_name[name] = tuple(left)

    def has_any(self, event: EventInfo) -> bool:
        """Check whether an event has callbacks."""
        return any(self._by_name.get(name) for name in names_of(event))

    def call(self, gpu: GpuStatus, event: EventInfo) -> None:
        """Call all callbacks of an event in turn; exceptions are logged and counted."""
        for name in names_of(event):
            for callback in self._by_name.get(name, ()):
                try:
                    callback(gpu, event)
                except (Exception, SystemExit):  # noqa: BLE001 - a callback is foreign code
                    with self._lock:
                        self.errors += 1
                    _log.exception("a callback for %r failed at %s", name, event.name)
