"""Follow a daemon's events: by an iterator, a thread that calls callbacks, or an event loop."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from sentinel.client.requester import number_of, query_of
from sentinel.client.transport import Address, describe, stream_lines
from sentinel.errors import ConfigError, SentinelError, ServiceError
from sentinel.protocol.api_types import GpuStatus

#: The maximum silence of a live stream; the daemon sends a comment every 15 s.
MAX_SILENCE_S = 45.0

#: The first and the longest pause between attempts to reach the daemon.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
#: The time for a running callback to return when the thread is stopped.
_STOP_TIMEOUT_S = 5.0

#: The health in which work should be slowed down a lot, or stopped.
_UNHEALTHY = {"throttled", "critical"}
_NAME_BY_EVENT = {
    "gpu.overheat": "overheat",
    "gpu.yielding": "yield",
    "gpu.handed_over": "handed_over",
    "gpu.busy": "busy",
    "gpu.idle": "idle",
}
#: Names for callbacks, besides the dotted names of events.
NAMES = ("state_change", "throttle", "resume", "critical", *_NAME_BY_EVENT.values())

_log = logging.getLogger("sentinel.monitor")


@dataclass(frozen=True, kw_only=True)
class EventInfo:
    """One event."""

    #: The event's number, by which a stream is continued.
    id: int | None
    name: str
    #: The event's JSON object.
    fields: Mapping[str, Any]

    @property
    def gpu(self) -> str | None:
        """The UUID of the GPU that the event is about, or None if it is about the host."""
        uuid = self.fields.get("gpu")
        return uuid if isinstance(uuid, str) else None

    @property
    def index(self) -> int | None:
        """nvidia-smi's index of that GPU, or None if it is unknown or there is no such GPU."""
        index = self.fields.get("index")
        return index if isinstance(index, int) else None


class EventStream(Iterator[EventInfo]):
    """The events of a daemon, for ``for`` and ``async for``, until it ends or is closed.

    It connects at the first event, or with :meth:`open`.

    Args:
        address: The daemon's address.
        since: Start with the kept events after this number; the default is from now on.
        daemon: The daemon that assigned that number; for another daemon, all kept events follow.
        timeout: Seconds until the stream must have started.
    """

    #: Identifies the daemon that numbers the events, once the stream has started.
    daemon: str | None = None
    #: The number of the newest event when the stream started, if known.
    newest: int | None = None

    def __init__(
        self,
        address: Address,
        since: int | None,
        daemon: str | None = None,
        *,
        timeout: float,
    ) -> None:
        if since is not None:
            number_of(since, "since", "the number of an event")
        path = f"/v1/events{query_of(since=since, daemon=daemon)}"
        headers = {"Accept": "text/event-stream"}
        lines = stream_lines(address, path, headers, timeout, MAX_SILENCE_S, self._on_connect)
        self._lines = cast("Generator[str, None, None]", lines)
        self._socket: socket.socket | None = None
        self._started = False
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Return once the daemon has started the stream; no later event is missed.

        Raises:
            SentinelError: As for every verb of a client.
        """
        if not self._started:
            self._started = True
            self._read_comment(next(self._lines, ""))  # the first line is a comment
        return self

    def close(self) -> None:
        """End the stream, also for a thread that waits for its next event."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ValueError):  # another thread runs the generator, and ends it now
            self._lines.close()

    def __next__(self) -> EventInfo:
        """Wait for the next event.

        Raises:
            SentinelError: As for every verb of a client; also if the connection breaks.
        """
        fields: dict[str, str] = {}
        try:
            for line in self._lines:
                self._started = True
                if line.startswith(":"):
                    self._read_comment(line)
                elif line:
                    name, _, value = line.partition(":")
                    value = value.removeprefix(" ")
                    fields[name] = f"{fields[name]}\n{value}" if name in fields else value
                elif "data" in fields:
                    return _parse_event(fields)
                else:
                    fields = {}
        except SentinelError:
            if not self._closed:
                raise
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[EventInfo]:
        """Yield the events without blocking the event loop."""
        import asyncio

        try:
            await asyncio.to_thread(self.open)
            # With a default, since a coroutine cannot raise StopIteration.
            while (event := await asyncio.to_thread(next, self, None)) is not None:
                yield event
        finally:
            self.close()  # ends the thread that waits in it

    def _read_comment(self, comment: str) -> None:
        """Read the daemon's identity from the first comment; later ones only show life."""
        for name, _, value in (word.partition("=") for word in comment.split()):
            if name == "daemon":
                self.daemon = value
            elif name == "newest":
                self.newest = int(value) if value.isdecimal() else None

    def _on_connect(self, sock: socket.socket) -> None:
        self._socket = sock
        if self._closed:  # by another thread in the meantime
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _parse_event(fields: Mapping[str, str]) -> EventInfo:
    try:
        data = json.loads(fields["data"])
        number = int(fields["id"]) if "id" in fields else None
    except ValueError:
        data = number = None
    if not isinstance(data, dict):
        raise ServiceError(f"invalid event from the daemon: {fields['data'][:80]!r}")
    name = fields.get("event") or str(data.get("event", "message"))
    return EventInfo(id=number, name=name, fields=data)


class Follower:
    """A thread that receives every event, also those of a restarted daemon.

    Args:
        events: Opens the stream after an event's number and the daemon that assigned it.
        on_event: Called with each event; exceptions are logged.
    """

    def __init__(
        self,
        events: Callable[[int | None, str | None], EventStream],
        on_event: Callable[[EventInfo], None],
    ) -> None:
        self._events = events
        self._on_event = on_event
        #: The last event's number, and the daemon that assigned it.
        self._last: int | None = None
        self._daemon: str | None = None
        self._stopping = threading.Event()
        self._stream: EventStream | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; no later event is missed.

        Raises:
            SentinelError: The daemon cannot be reached.
        """
        stream = self._stream = self._events(None, None).open()
        self._last, self._daemon = stream.newest, stream.daemon
        self._thread = threading.Thread(
            target=self._follow, args=(stream,), name="sentinel-monitor", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for it unless a callback calls this."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    def _follow(self, stream: EventStream) -> None:
        pause = _MIN_PAUSE_S
        while not self._stopping.is_set():
            try:
                for event in stream:
                    pause = _MIN_PAUSE_S
                    if event.id is not None:
                        self._last, self._daemon = event.id, stream.daemon
                    self._deliver(event)
                    if self._stopping.is_set():
                        return
            except SentinelError as error:
                _log.warning("the daemon's events are interrupted: %s", error.what)
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, _MAX_PAUSE_S)
            stream = self._stream = self._events(self._last, self._daemon)
            if self._stopping.is_set():  # stop() closed the previous stream
                return

    def _deliver(self, event: EventInfo) -> None:
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - a callback is foreign code
            _log.exception("event %s was not processed", event.name)


Callback = Callable[[GpuStatus, EventInfo], object]


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
        """Remove a callback, if it was added.

        Raises:
            ConfigError: As for :meth:`add`, for the name.
        """
        _check_name(name)
        with self._lock:
            left = [known for known in self._by_name.get(name, ()) if known != callback]
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


def _check_name(name: object) -> None:
    """Check that there are events of this name, and that they are about a GPU.

    Raises:
        ConfigError: There are none, or they are about the host.
    """
    from sentinel.protocol.events import EVENTS, HOST_EVENTS  # the whole catalogue

    known = name if isinstance(name, str) else None
    if known in HOST_EVENTS:
        what = f"{name} is an event of the host; callbacks are for events of a GPU"
        raise ConfigError(what, "Follow events() for the events about the host.")
    if known not in NAMES and known not in EVENTS:
        allowed = f"The names are: {', '.join(NAMES)}, and those of events about a GPU, such as"
        raise ConfigError(f"there is no callback name {describe(name)}", f"{allowed} gpu.paused.")


def _check_arguments(name: str, callback: Callback) -> None:
    """Check that a callback can be called with a GPU and an event.

    Raises:
        ConfigError: It cannot.
    """
    if not callable(callback):
        raise ConfigError(
            f"a callback for {name!r} is a function, and {describe(callback)} is none"
        )
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
