"""The state and its changes for clients that watch: all of it once, then differences."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from pydantic import TypeAdapter

from sentinel.api import serializers
from sentinel.api.event_buffer import HEARTBEAT_S, Broadcast, EventBuffer
from sentinel.api.snapshots import Views
from sentinel.protocol.api_types import Changes, Status
from sentinel.protocol.commands import ApiSpec
from sentinel.protocol.views import GpuView, HostView, Session

#: The interval of changes; people do not read faster.
INTERVAL_S = 1.0
#: Kept changes. A client that falls further behind gets the whole state again.
_MAX_CHANGES = 5
#: Fields that differ between any two views.
_TIMES = {"at", "read"}

_STATUS, _CHANGES = TypeAdapter(Status), TypeAdapter(Changes)


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
        return Changes(
            age_s=daemon.age_s or 0.0,
            daemon=daemon if _differ(host, before) else None,
            gpus=tuple(
                serializers.gpu_status(view, views, now)
                for view in views.gpus
                if _differ(view, self._gpus.get(view.uuid))
            ),
            reservations=None
            if host.reservations == before.reservations
            else serializers.reservations(views, now),
            queue=None
            if host.reservations == before.reservations
            else serializers.queue(views, now),
            allocations=None
            if host.allocations == before.allocations
            else tuple(
                serializers.allocation(allocation, views, now) for allocation in host.allocations
            ),
            sessions=None
            if views.sessions == self._sessions
            else tuple(serializers.session(session, views, now) for session in views.sessions),
        )


def _differ(one: HostView | GpuView, other: HostView | GpuView | None) -> bool:
    """Compare two views without their times."""
    if other is None:
        return True
    others = vars(other)
    return any(value != others[key] for key, value in vars(one).items() if key not in _TIMES)


def _event(name: str, body: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), body)
