"""The callbacks of a monitor, by the names of the events that they are for."""

from __future__ import annotations

import inspect
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
            ConfigError: The name is unknown or that of an event about the host, or the callback
                does not take two arguments.
        """
        _check_name(name)
        _check_arguments(name, callback)
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


def _check_name(name: str) -> None:
    """Check that there are events of this name, and that they are about a GPU.

    Raises:
        ConfigError: There are none, or they are about the host.
    """
    from sentinel.protocol.events import EVENTS, HOST_EVENTS  # the whole catalogue

    if name in HOST_EVENTS:
        what = f"{name} is an event about the host, and a callback gets a GPU"
        raise ConfigError(what, "Follow events() for the events about the host.")
    if name not in NAMES and name not in EVENTS:
        allowed = f"The names are: {', '.join(NAMES)}, and those of events about a GPU, such as"
        raise ConfigError(f"there is no callback name {name!r}", f"{allowed} gpu.paused.")


def _check_arguments(name: str, callback: Callback) -> None:
    """Check that a callback can be called with a GPU and an event.

    Raises:
        ConfigError: It cannot.
    """
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # not known, as of some functions in C
        return
    try:
        signature.bind(None, None)
    except TypeError:
        what = (
            f"a callback for {name!r} is called with (gpu, event), and this one takes {signature}"
        )
        raise ConfigError(
            what, "Add the second argument; gpu.temperature_c and others have the figures."
        ) from None
