"""What clients follow: the last events, and the state with its changes, each encoded once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import TypeAdapter

from sentinel.api import serializers
from sentinel.api.snapshots import Views
from sentinel.api.supervisor_link import Broadcast
from sentinel.protocol.api_types import Changes, Status
from sentinel.protocol.commands import ApiSpec, Level
from sentinel.protocol.places import Places
from sentinel.protocol.views import GpuView, HostView, LogRecord, Session

#: Bounds of the kept events: how far a client may fall behind.
MAX_EVENTS = 1000
MAX_BYTES = 4 * 2**20
#: Time without an event after which a comment shows that the connection lives.
HEARTBEAT_S = 15.0
#: Clients that may follow at once.
SUBSCRIBERS = Places(64, "subscribers", "their clients")
#: The approximate size of one write to a client.
_CHUNK_BYTES = 64 * 1024

#: The interval of changes; people do not read faster.
INTERVAL_S = 1.0
#: Kept changes. A client that falls further behind gets the whole state again.
_MAX_CHANGES = 5
#: Fields that differ between any two views.
_TIMES = {"at", "read"}

_STATUS, _CHANGES = TypeAdapter(Status), TypeAdapter(Changes)


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """An event of the log, with its JSON text for streams and the history."""

    number: int
    fields: Mapping[str, Any]
    text: str

    @classmethod
    def of(cls, record: LogRecord) -> Self:
        """Encode the event of a log record."""
        return cls(number=record.number, fields=record.event, text=json.dumps(record.event))

    @property
    def name(self) -> str:
        """The event's name on one line, by which clients filter."""
        name = str(self.fields.get("event", "message"))
        return name.replace("\n", " ").replace("\r", " ")


class EventBuffer:
    """The last events by number, encoded as server-sent events.

    Args:
        daemon: Identifies the daemon that numbers the events; each daemon starts again at 1.
    """

    def __init__(self, daemon: str = "") -> None:
        self._daemon = daemon
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._broadcast = Broadcast()
        self._has_new = False
        #: The current followers of each user or token; their admission counts them, before they
        #: start to follow.
        self.subscribers: Counter[str] = Counter()

    def why_full(self, user: str, level: Level) -> str | None:
        """Explain why a user or token may not follow now, or return None."""
        return SUBSCRIBERS.why_none(self.subscribers.elements(), user, level, name=user)

    def add(self, event: LoggedEvent) -> None:
        """Keep an event, and drop the oldest ones beyond the bounds."""
        text = f"id: {event.number}\nevent: {event.name}\ndata: {event.text}\n\n".encode()
        self._events.append((event.number, text))
        self._bytes += len(text)
        self._has_new = True
        while len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:
            _, oldest = self._events.popleft()
            self._bytes -= len(oldest)

    def announce(self) -> None:
        """Wake all followers if there are new events."""
        if self._has_new:
            self._has_new = False
            self._broadcast.wake()

    def end(self) -> None:
        """End all streams."""
        self._broadcast.end()

    async def follow(self, since: int | None, daemon: str | None = None) -> AsyncIterator[bytes]:
        """Yield events as server-sent events, until :meth:`end`.

        An event ``lost`` counts events that are not kept any more.

        Args:
            since: Start after this number; the default is the newest.
            daemon: The daemon that assigned that number; for another one, start with all events.
        """
        last = self.newest if since is None else since
        if daemon is not None and daemon != self._daemon:
            last = 0
        newest = "" if self.newest is None else f" newest={self.newest}"
        yield f": these are the events of sentinel; daemon={self._daemon}{newest}\n\n".encode()
        while not self._broadcast.ended:
            chunk, last = self.after(last)
            if chunk:
                yield chunk
            elif not await self._wait_for_event(last):
                yield b":\n\n"

    @property
    def newest(self) -> int | None:
        """The number of the newest event."""
        return self._events[-1][0] if self._events else None

    async def _wait_for_event(self, last: int | None) -> bool:
        """Wait up to HEARTBEAT_S; return whether there is an event after ``last``, or the end."""
        await self._broadcast.wait(HEARTBEAT_S)
        return self._broadcast.ended or self.newest != last

    def after(self, last: int | None) -> tuple[bytes, int | None]:
        """Encode the next events after number ``last``; return also the number of their last."""
        if not self._events or self.newest == last:
            return b"", last
        if last is None or self._events[-1][0] < last:  # none yet; or a new daemon's numbers
            last = self._events[0][0] - 1
        new: list[tuple[int, bytes]] = []
        for event in reversed(self._events):
            if event[0] <= last:
                break
            new.append(event)
        chunk = b""
        for number, text in reversed(new):
            if number > last + 1:
                chunk += _lost(number - 1 - last)
            chunk += text
            last = number
            if len(chunk) > _CHUNK_BYTES:
                break
        return chunk, last


def _lost(count: int) -> bytes:
    """Encode the event that counts missing events."""
    body = json.dumps({"schema_version": 1, "count": count})
    return f"event: lost\ndata: {body}\n\n".encode()


class ChangeFeed:
    """The changes of each interval, encoded once for all watchers; idle without watchers.

    Args:
        spec: The specification of this process.
        views: The supervisor's state.
        event_buffer: The events, which are sent as they come.
        report_warning: Called at the first internal error.
    """

    def __init__(
        self,
        spec: ApiSpec,
        views: Views,
        event_buffer: EventBuffer,
        report_warning: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._views = views
        self._event_buffer = event_buffer
        self._report_warning = report_warning
        self._warning_reported = False
        self._broadcast = Broadcast()
        self._watchers = 0
        self._host: HostView | None = None
        self._gpus: dict[str, GpuView] = {}
        self._sessions: tuple[Session, ...] = ()
        self._number = 0
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=_MAX_CHANGES)

    def announce(self) -> None:
        """Wake the watchers, since there may be new events."""
        if self._watchers:
            self._broadcast.wake()

    def end(self) -> None:
        """End all streams."""
        self._broadcast.end()

    async def run(self) -> None:
        """Compute the changes of each interval while there are watchers, forever."""
        while True:
            if not self._watchers:
                self._host, self._gpus = None, {}
                await self._broadcast.wait(HEARTBEAT_S)
                continue
            try:
                self._compare()
            except Exception as error:  # noqa: BLE001 - a bug costs one interval, not the feed
                self._reset(error)
            self._broadcast.wake()
            await asyncio.sleep(INTERVAL_S)

    async def follow(self, since: int | None) -> AsyncIterator[bytes]:
        """Yield the state, then changes and events, as server-sent events, until :meth:`end`.

        Args:
            since: The number of the event to start after; the default is the newest.
        """
        last = self._event_buffer.newest if since is None else since
        number: int | None = None
        self._watchers += 1
        self._broadcast.wake()
        try:
            while not self._broadcast.ended:
                chunk, number = self._after(number)
                events, last = self._event_buffer.after(last)
                if chunk or events:
                    yield chunk + events
                else:
                    await self._broadcast.wait(HEARTBEAT_S)
        finally:
            self._watchers -= 1

    def _compare(self) -> None:
        """Keep the changes since the last comparison, if there was one."""
        if self._host is not None:
            change = _event("changes", _CHANGES.dump_json(self._difference(self._host)))
            self._number += 1
            self._changes.append((self._number, change))
        self._host = self._views.host
        self._gpus = {view.uuid: view for view in self._views.gpus}
        self._sessions = self._views.sessions

    def _reset(self, error: Exception) -> None:
        """Send the whole state to all watchers, since the changes are not known."""
        self._host, self._gpus = None, {}
        self._number += 1
        self._changes.clear()
        if not self._warning_reported:
            self._warning_reported = True
            self._report_warning(f"a bug in sentinel, a change was not published: {error!r}")

    def _after(self, number: int | None) -> tuple[bytes, int]:
        """Encode the changes after ``number``, or the state; return also the newest number."""
        oldest = self._changes[0][0] if self._changes else self._number + 1
        if number is None or number < oldest - 1:
            status = serializers.status(self._spec, self._views)
            return _event("status", _STATUS.dump_json(status)), self._number
        return b"".join(text for one, text in self._changes if one > number), self._number

    def _difference(self, before: HostView) -> Changes:
        """Describe the differences from the last comparison."""
        views, now = self._views, time.monotonic()
        host = views.host
        daemon = serializers.daemon(self._spec, views, now)
        reserved = host.reservations != before.reservations
        allocated = host.allocations != before.allocations
        return Changes(
            age_s=daemon.age_s or 0.0,
            daemon=daemon if _differ(host, before) else None,
            gpus=tuple(
                serializers.gpu_status(view, views, now)
                for view in views.gpus
                if _differ(view, self._gpus.get(view.uuid))
            ),
            reservations=serializers.reservations(views) if reserved else None,
            queue=serializers.queue(views) if reserved else None,
            allocations=serializers.allocations(views) if allocated else None,
            sessions=None if views.sessions == self._sessions else serializers.sessions(views),
        )


def _differ(one: HostView | GpuView, other: HostView | GpuView | None) -> bool:
    """Compare two views without their times."""
    if other is None:
        return True
    others = vars(other)
    return any(value != others[key] for key, value in vars(one).items() if key not in _TIMES)


def _event(name: str, body: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), body)
