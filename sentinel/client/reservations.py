"""Verbs for reservations: GPUs that are kept free for a user, also for a ``with`` block."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote

from sentinel.client.requester import WAIT_S, Gpus, Requester, selectors
from sentinel.errors import SentinelError
from sentinel.protocol.api_types import Outcome, ReservationInfo, Reservations

OnWait = Callable[[ReservationInfo], object]

_PATH = "/v1/reservations"
#: How often the place in the queue is read, in seconds.
_WATCH_EVERY_S = 1.0


class ReservationVerbs(Requester):
    """The verbs for reservations."""

    def reservations(self) -> tuple[ReservationInfo, ...]:
        """List all reservations."""
        return tuple(map(self._with_end, self._listed().reservations))

    def queue(self) -> tuple[ReservationInfo, ...]:
        """List the requests that wait for GPUs, in the order of the queue."""
        return self._listed().queue

    def reserve(
        self,
        gpus: Gpus,
        *,
        reason: str = "",
        seconds: float | None = None,
        wait: float = WAIT_S,
        bound: bool = False,
        on_wait: OnWait | None = None,
    ) -> ReservationInfo:
        """Keep GPUs free for you; returns when their memory is free.

        While too few GPUs are available, the request waits in a queue: first come, first served.
        The result is a context manager: the reservation ends with its ``with`` block. Without a
        block it lasts until :meth:`unreserve`.

        Args:
            gpus: The GPUs, or their number.
            reason: Shown to other users.
            seconds: The maximum duration; the default is no limit.
            wait: Seconds until enough GPUs must be available and free; 0 does not wait.
            bound: End the reservation with this process at the latest, even if that is killed; not
                over TCP.
            on_wait: Called in another thread with the place in the queue after a second, and when
                it has changed.

        Raises:
            NoSuchGpuError: A GPU does not exist.
            ConflictError: The GPUs are not available; names their holders.
            TimedOutError: The GPUs were not free in time; nothing is reserved.
        """
        selection = {"count": gpus} if isinstance(gpus, int) else {"gpus": selectors(gpus)}
        # Short, since people type it to end the reservation.
        id_ = secrets.token_hex(4)
        body = {**selection, "reason": reason, "seconds": seconds, "bound": bound}
        body = {key: value for key, value in body.items() if value is not None}
        with self._watched(id_, on_wait if wait else None):
            return self._with_end(self.put(ReservationInfo, f"{_PATH}/{id_}", body, wait=wait))

    def unreserve(self, id: str) -> Outcome:  # noqa: A002 - the usual name
        """End a reservation.

        Raises:
            ServiceError: There is no reservation with this id.
        """
        return self.fetch(Outcome, "DELETE", f"{_PATH}/{quote(id, safe='')}")

    def _listed(self) -> Reservations:
        return self.fetch(Reservations, "GET", _PATH)

    def _with_end(self, one: ReservationInfo) -> ReservationInfo:
        return one.ended_by(lambda: self.unreserve(one.id))

    @contextlib.contextmanager
    def _watched(self, id_: str, on_wait: OnWait | None) -> Iterator[None]:
        """Report the place of a request while the block waits for it.

        Args:
            id_: The id of the request.
            on_wait: Called in another thread, at first and when the place has changed; None to read
                nothing.
        """
        if on_wait is None:
            yield
            return
        over = threading.Event()

        def watch() -> None:
            place = 0
            while not over.wait(_WATCH_EVERY_S):
                request = None
                with contextlib.suppress(SentinelError):  # the request itself has the error
                    request = next((one for one in self.queue() if one.id == id_), None)
                if request is not None and request.place != place and not over.is_set():
                    place = request.place
                    on_wait(request)

        # A daemon thread: it may be in a request when the wait is over.
        threading.Thread(target=watch, name="queue-watch", daemon=True).start()
        try:
            yield
        finally:
            over.set()
