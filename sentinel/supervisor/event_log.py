"""Fan events out to whoever listens, from a thread of its own behind a bounded queue.

A terminal that is scrolled back, a pipe that nobody reads or a full disk must never hold up the
loop; so it only puts events into a queue, and counts those that found it full.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from io import TextIOBase
from typing import Any, TextIO, cast

import structlog

from sentinel.core.actions import Event
from sentinel.protocol.gpu import Gpu

#: Events that may wait for a slow reader; about 5 MB of them.
MOST_WAITING = 10_000

Sink = Callable[[Event], None]


class Journal:
    """A bounded queue of events and the thread that hands each to every sink.

    Args:
        sinks: Called with each event, one after the other. One that raises loses that event.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._queue: queue.Queue[Event | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._lost = 0
        self._thread.start()

    def publish(self, events: Iterable[Event]) -> None:
        """Queue events; the oldest stay, and what finds the queue full is counted as lost."""
        for event in events:
            try:
                if self._lost:
                    lost = Event(name="log.dropped", at=event.at, fields={"events": self._lost})
                    self._queue.put_nowait(lost)
                    self._lost = 0
                self._queue.put_nowait(event)
            except queue.Full:
                self._lost += 1

    def close(self, timeout: float) -> bool:
        """Write what is queued; return whether that was done within ``timeout`` seconds."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _write(self) -> None:
        """Hand on each event until the end is queued."""
        while (event := self._queue.get()) is not None:
            for sink in self._sinks:
                # A closed pipe or a full disk costs this line, never the sentinel.
                with contextlib.suppress(OSError, ValueError):
                    sink(event)


def json_lines(stream: TextIO | TextIOBase, gpus: Mapping[str, Gpu]) -> Sink:
    """Return a sink that writes one JSON object a line: event, time, at, gpu, index and fields.

    ``at`` is monotonic seconds, ``time`` the local time with its offset.
    """
    log = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", stream)),
        processors=[structlog.processors.JSONRenderer(default=str)],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )

    def write(event: Event) -> None:
        fields: dict[str, Any] = {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "at": event.at,
        }
        if event.gpu is not None:
            fields["gpu"] = event.gpu
            fields["index"] = gpus[event.gpu].index if event.gpu in gpus else None
        log.info(event.name, **fields, **event.fields)

    return write
