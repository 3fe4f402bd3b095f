"""Wait in the queue of reservations: report the place, and keep it if the connection is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from sentinel.errors import ConnectionLostError, SentinelError
from sentinel.protocol.api_types import QueueEntry, Reservations

T = TypeVar("T")

OnWait = Callable[[QueueEntry], object]

#: How often the place is read, in seconds.
_EVERY_S = 1.0
#: How often a lost request is sent again, and the pause before; the daemon keeps its place for
#: half a minute.
_MAX_RETRIES, _RETRY_PAUSE_S = 5, 0.5


def send_again(send: Callable[[float], T], wait: float) -> T:
    """Send a request that waits, again if the daemon's API process ends meanwhile.

    Args:
        send: Sends the request; its argument is the time to wait, in seconds.
        wait: The time to wait in all.

    Raises:
        SentinelError: As for every verb.
    """
    deadline, left, retries = time.monotonic() + wait, wait, 0
    while True:
        try:
            return send(left)
        except ConnectionLostError:
            retries += 1
            left = deadline - time.monotonic() - _RETRY_PAUSE_S
            if retries > _MAX_RETRIES or left <= 0:
                raise
            time.sleep(_RETRY_PAUSE_S)


@contextlib.contextmanager
def watch_queue(
    read: Callable[[], Reservations], id_: str, on_wait: OnWait | None
) -> Iterator[None]:
    """Report the place of a request while the block waits for it.

    Args:
        read: Reads the queue.
        id_: The id of the request.
        on_wait: Called in another thread, at first and when the place has changed; None to read
            nothing.
    """
    if on_wait is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        last = 0
        while not over.wait(_EVERY_S):
            found: QueueEntry | None = None
            with contextlib.suppress(SentinelError):  # the request itself has the error
                found = next((one for one in read().queue if one.id == id_), None)
            if found is not None and found.place != last and not over.is_set():
                last = found.place
                on_wait(found)

    # A daemon thread: it may be in a request when the wait is over.
    threading.Thread(target=watch, name="queue-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()
