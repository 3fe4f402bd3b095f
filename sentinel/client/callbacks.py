"""Who is to be called when something happens to a GPU; what they do wrong is counted, and no more.

Which names an event has for them is worked out here, from the event alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from sentinel.client.types import EventInfo
from sentinel.errors import ConfigError
from sentinel.protocol.api_types import GpuStatus

Callback = Callable[[GpuStatus, EventInfo], object]

_log = logging.getLogger("sentinel.monitor")

#: The conditions in which work is to be slowed down a lot, or stopped.
_WORSE = {"throttled", "critical"}
#: What callbacks are registered for, besides the dotted names of events themselves.
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
_BY_EVENT = {
    "gpu.overheat": "overheat",
    "gpu.yielding": "yield",
    "gpu.handed_over": "handed_over",
    "gpu.busy": "busy",
    "gpu.idle": "idle",
}


def names_of(event: EventInfo) -> Iterator[str]:
    """Yield the names by which an event is known to callbacks."""
    yield event.name
    if event.name in _BY_EVENT:
        yield _BY_EVENT[event.name]
    if event.name != "gpu.health_changed":
        return
    yield "state_change"
    before, health = event.fields.get("before"), event.fields.get("health")
    if health == "throttled":
        yield "throttle"
    elif health == "critical":
        yield "critical"
    elif before in _WORSE:
        yield "resume"


class Callbacks:
    """The callbacks by what they are for; safe to use from many threads.

    Attributes:
        errors: How many calls have ended with an exception.
    """

    def __init__(self) -> None:
        self.errors = 0
        self._by_name: dict[str, tuple[Callback, ...]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, callback: Callback) -> None:
        """Have it called at each event of this name.

        Raises:
            ConfigError: There is no such name.
        """
        if name not in NAMES and not ("." in name and name.isprintable()):
            raise ConfigError(
                f"there is nothing called {name!r} that a callback could be for",
                f"There are: {', '.join(NAMES)}, and every event by its name, such as gpu.paused.",
            )
        with self._lock:
            self._by_name[name] = (*self._by_name.get(name, ()), callback)

    def remove(self, name: str, callback: Callback) -> None:
        """Have it not called any more; nothing happens where it was not to be."""
        with self._lock:
            left = [one for one in self._by_name.get(name, ()) if one != callback]
            self._by_name[name] = tuple(left)

    def wanted(self, event: EventInfo) -> bool:
        """Return whether anybody is to be called."""
        return any(self._by_name.get(name) for name in names_of(event))

    def call(self, gpu: GpuStatus, event: EventInfo) -> None:
        """Call all who want it, one after the other; what one raises is no matter to the others."""
        for name in names_of(event):
            for callback in self._by_name.get(name, ()):
                try:
                    callback(gpu, event)
                except (Exception, SystemExit):  # noqa: BLE001 - whatever others wrote
                    with self._lock:
                        self.errors += 1
                    _log.exception("a callback for %r failed at %s", name, event.name)
