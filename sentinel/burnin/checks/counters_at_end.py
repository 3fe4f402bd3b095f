"""Read the counters of each GPU as soon as it is done, while others of the run still work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from sentinel.diagnostics.counters import CountersResult
from sentinel.protocol.counters import Counters

#: The event after which a GPU does no more of a run.
_ENDED = "burnin.ended"


class CountersAtEnd:
    """A thread that reads the counters of GPUs that are done, one after the other.

    What comes after a GPU was done, such as the use by others, is so not taken for its own.

    Args:
        read: Reads the counters of one GPU, given its UUID; it may take a minute.
    """

    def __init__(self, read: Callable[[str], CountersResult]) -> None:
        self._read = read
        self._found: dict[str, Counters] = {}
        self._done: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._stuck = False
        self._thread = threading.Thread(target=self._work, name="counters", daemon=True)
        self._thread.start()

    def take(self, event: str, uuid: str | None) -> None:
        """Take an event of the run, by its name and GPU."""
        if event == _ENDED and uuid is not None:
            self._done.put(uuid)

    def close(self, last: Callable[[], CountersResult]) -> CountersResult:
        """Return the counters of all GPUs at their ends.

        Args:
            last: Reads those of all GPUs at the end of the run; it stands for each GPU whose own
                were not read yet.
        """
        self._closing.set()
        self._done.put(None)
        self._thread.join()
        return merged(last(), self._found, stuck=self._stuck)

    def _work(self) -> None:
        while (uuid := self._done.get()) is not None and not self._closing.is_set():
            result = self._read(uuid)
            self._stuck = self._stuck or result.stuck
            for counter in result.counters:
                if counter.uuid == uuid and counter.lost is None:
                    self._found[uuid] = counter


def merged(
    last: CountersResult, at_end: Mapping[str, Counters], *, stuck: bool = False
) -> CountersResult:
    """Replace the last counters of GPUs by those that were read when each was done.

    A GPU that is lost by now has its last counters: that is a fault in any case.
    """
    counters = tuple(
        at_end.get(counter.uuid, counter) if counter.lost is None else counter
        for counter in last.counters
    )
    return replace(last, counters=counters, stuck=last.stuck or stuck)
