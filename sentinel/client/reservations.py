"""Verbs for reservations: GPUs that are kept free for a user, also for a ``with`` block."""

from __future__ import annotations

import contextlib
import secrets
from urllib.parse import quote

from sentinel.client.handle import Handle
from sentinel.client.requester import WAIT_S, Gpus, Requester, selectors
from sentinel.client.waiting import OnWait, send_again, watch_queue
from sentinel.errors import NotRunningError, ServiceError
from sentinel.protocol.api_types import (
    Outcome,
    QueueEntry,
    ReservationInfo,
    Reservations,
    Reserved,
)


class ReservationVerbs(Requester):
    """The verbs for reservations."""

    def reservations(self) -> tuple[Reservation, ...]:
        """List all reservations."""
        return tuple(Reservation.of(one, self) for one in self._reservations().reservations)

    def queue(self) -> tuple[QueueEntry, ...]:
        """List the requests that wait for a reservation, in the order of the queue."""
        return self._reservations().queue

    def _reservations(self) -> Reservations:
        return self.fetch(Reservations, "GET", "/v1/reservations")

    def reserve(
        self,
        gpus: Gpus,
        *,
        reason: str = "",
        seconds: float | None = None,
        wait: float = WAIT_S,
        bound: bool = False,
        on_wait: OnWait | None = None,
    ) -> Reservation:
        """Keep GPUs free for you; returns when their memory is free.

        While too few GPUs are available, the request waits in a queue: first come, first served.
        The result is a context manager: the reservation ends with its ``with`` block. Without a
        block it lasts until :meth:`cancel_reservation`.

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
        id_ = secrets.token_hex(4)
        body = {**selection, "id": id_, "reason": reason, "seconds": seconds, "bound": bound}
        body = {key: value for key, value in body.items() if value is not None}

        def send(left: float) -> Reserved:
            sent = {**body, "wait_s": left}
            return self.fetch(Reserved, "POST", "/v1/reservations", sent, wait=left)

        with watch_queue(self._reservations, id_, on_wait if wait else None):
            return Reservation.of(send_again(send, wait).reservation, self)

    def cancel_reservation(self, id: str) -> Outcome:  # noqa: A002 - the usual name
        """End a reservation.

        Raises:
            ServiceError: There is no reservation with this id.
        """
        return self.fetch(Outcome, "DELETE", f"/v1/reservations/{quote(id, safe='')}")


class Reservation(Handle[ReservationVerbs], ReservationInfo):
    """A reservation that can be ended, also by the end of a ``with`` block."""

    @property
    def cuda_visible_devices(self) -> str:
        """The value of the variable of this name by which CUDA uses these GPUs only."""
        return ",".join(self.gpus)

    def end(self) -> Outcome:
        """End the reservation.

        Raises:
            ServiceError: It has ended already.
        """
        return self._verbs.cancel_reservation(self.id)

    def __exit__(self, *_: object) -> None:
        """End the reservation, unless it or its daemon has ended already.

        Raises:
            SentinelError: The daemon refuses or does not answer; the GPUs are still reserved.
        """
        with contextlib.suppress(NotRunningError):
            try:
                self.end()
            except ServiceError:
                if any(one.id == self.id for one in self._verbs.reservations()):
                    raise
