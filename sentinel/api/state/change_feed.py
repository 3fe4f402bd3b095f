"""What the supervisor shows, for clients that watch: all of it once, then what has changed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from pydantic import TypeAdapter

from sentinel.api.state import serializers
from sentinel.api.state.event_buffer import HEARTBEAT, Broadcast, EventBuffer
from sentinel.api.state.snapshots import Views
from sentinel.protocol.api_types import Changes, Status
from sentinel.protocol.commands import ServiceSpec
from sentinel.protocol.views import GpuView, HostView

#: What changed is told so often, in seconds: people do not read faster.
EVERY = 1.0
#: So many of the last changes are kept; who falls further behind is shown everything anew.
_MOST_KEPT = 5
#: What is another at each look, though nothing has changed.
_RESTLESS = {"at", "read"}

_STATUS, _CHANGES = TypeAdapter(Status), TypeAdapter(Changes)


class Watch:
    """The changes of each second, encoded once for all who watch, and only while somebody does.

    Args:
        spec: What is served.
        views: What the supervisor shows.
        ring: The events, which are passed on as they come.
        complain: Called once with what went wrong in here.
    """

    def __init__(
        self,
        spec: ServiceSpec,
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
        self._ended = False
        self._host: HostView | None = None
        self._gpus: dict[str, GpuView] = {}
        self._number = 0
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=_MOST_KEPT)

    def announce(self) -> None:
        """Wake those who watch, since there may be an event for them."""
        if self._watchers:
            self._broadcast.wake()

    def end(self) -> None:
        """Let everybody's stream end."""
        self._ended = True
        self._broadcast.wake()

    async def keep(self) -> None:
        """Work out what changed, once every EVERY seconds while anybody watches, for ever."""
        while True:
            if not self._watchers:
                self._host, self._gpus = None, {}
                await self._broadcast.wait(HEARTBEAT)
                continue
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - a bug here is to cost one look, not all
                self._start_over(error)
            self._broadcast.wake()
            await asyncio.sleep(EVERY)

    async def follow(self, since: int | None) -> AsyncIterator[bytes]:
        """Yield everything, then what changes and the events after number ``since``, for ever.

        Without ``since``, the events from now on. The format is that of server-sent events.
        """
        last = self._event_buffer.newest if since is None else since
        number: int | None = None
        self._watchers += 1
        self._broadcast.wake()
        try:
            while not self._ended:
                piece, number = self._after(number)
                events, last = self._event_buffer.after(last)
                if piece or events:
                    yield piece + events
                else:
                    await self._broadcast.wait(HEARTBEAT)
        finally:
            self._watchers -= 1

    def _look(self) -> None:
        """Keep what changed since the last look, if there was one."""
        if self._host is not None:
            change = _event("changes", _CHANGES.dump_json(self._changed()))
            self._number += 1
            self._changes.append((self._number, change))
        self._remember()

    def _start_over(self, error: Exception) -> None:
        """Have everybody shown everything anew, since what changed is not known."""
        self._host, self._gpus = None, {}
        self._number += 1
        self._changes.clear()
        if not self._warning_reported:
            self._warning_reported = True
            self._report_warning(f"a bug in sentinel, a change was not shown: {error!r}")

    def _after(self, number: int | None) -> tuple[bytes, int]:
        """Return what is to be sent after the changes of this number, and the last one's number."""
        oldest = self._changes[0][0] if self._changes else self._number + 1
        if number is None or number < oldest - 1:
            whole = serializers.status(self._spec, self._views)
            return _event("status", _STATUS.dump_json(whole)), self._number
        return b"".join(text for one, text in self._changes if one > number), self._number

    def _changed(self) -> Changes:
        """Return what is not as it was remembered."""
        views, now = self._views, time.monotonic()
        host, before = views.host, self._host
        if before is None:
            raise AssertionError("nothing was remembered")
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
            else tuple(serializers.reservation(one, views, now) for one in host.reservations),
            allocations=None
            if host.allocations == before.allocations
            else tuple(serializers.allocation(one, views, now) for one in host.allocations),
        )

    def _remember(self) -> None:
        self._host = self._views.host
        self._gpus = {view.uuid: view for view in self._views.gpus}


def _differ(one: HostView | GpuView, other: HostView | GpuView | None) -> bool:
    """Return whether two views show something else, but for when they were made."""
    if other is None:
        return True
    others = vars(other)
    return any(value != others[key] for key, value in vars(one).items() if key not in _RESTLESS)


def _event(name: str, body: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), body)
