"""Write events to the log and other sinks, from a thread of its own behind a bounded queue.

A terminal that is scrolled back, a pipe without a reader or a full disk must never block the loop.
So the loop only queues events, and counts those that find the queue full.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Sequence

from sentinel.host.event_lines import Sink
from sentinel.protocol.events import Event

#: The most events that wait for a slow reader; about 5 MB.
MAX_QUEUED_EVENTS = 10_000


class EventLog:
    """A bounded queue of events and the thread that passes each to every sink.

    Args:
        sinks: Called with each event in turn. A sink that raises loses that event: the other sinks
            get a warning, and this one the number of lost events once it works again.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._queue: queue.Queue[Event | None] = queue.Queue(MAX_QUEUED_EVENTS)
        self._thread = threading.Thread(target=self._write, name="event-log", daemon=True)
        self._dropped = 0
        self._thread.start()

    def publish(self, events: Iterable[Event]) -> None:
        """Queue events; those that find the queue full are counted as dropped."""
        for event in events:
            try:
                if self._dropped:
                    self._queue.put_nowait(_dropped(self._dropped, event.at))
                    self._dropped = 0
                self._queue.put_nowait(event)
            except queue.Full:
                self._dropped += 1

    def close(self, timeout: float) -> bool:
        """Write what is queued; return whether that took less than ``timeout`` seconds."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _write(self) -> None:
        """Pass each event to the sinks until the end is queued."""
        lost = [0] * len(self._sinks)
        while (event := self._queue.get()) is not None:
            for number, sink in enumerate(self._sinks):
                # A closed pipe or a full disk costs lines, never the sentinel; and a sink that
                # cannot put one event into words does not cost the others all that come.
                try:
                    if lost[number]:
                        sink(_dropped(lost[number], event.at))
                        lost[number] = 0
                    sink(event)
                except Exception as error:  # noqa: BLE001 - without this thread, no event is seen
                    if not lost[number]:
                        self._warn(sink, error, event.at)
                    lost[number] += 1

    def _warn(self, failed: Sink, error: Exception, at: float) -> None:
        """Send the other sinks a warning that one loses events."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if not isinstance(error, OSError | ValueError):
            reason = f"a bug in sentinel: {error!r}"
        fields = {"about": "log", "text": f"events are not written: {reason}"}
        for sink in self._sinks:
            if sink is not failed:
                with contextlib.suppress(Exception):
                    sink(Event(name="service.warning", at=at, fields=fields))


def _dropped(count: int, at: float) -> Event:
    """Build the event that counts lost events."""
    return Event(name="log.dropped", at=at, fields={"events": count})
