"""The supervisor's last views, of the daemon and of each GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sentinel.api.http.errors import ProblemError
from sentinel.api.state.event_buffer import Broadcast
from sentinel.config.gpu_selection import select_gpus
from sentinel.host.stores.run_reports import LastVerdict
from sentinel.host.stores.verified_store import StoredWork
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.problem import Code
from sentinel.protocol.views import (
    Allocation,
    GpuView,
    HostView,
    Reservation,
    Session,
    SessionsView,
    View,
)

#: The maximum age of a healthy supervisor's views: it sends all of them once a second.
MAX_AGE_S = 5.0


class Views:
    """The last views, and the wait for new ones."""

    def __init__(self) -> None:
        self._host: HostView | None = None
        self._gpus: dict[str, GpuView] = {}
        #: The sessions, in the order in which they were started.
        self.sessions: tuple[Session, ...] = ()
        #: What each GPU has proved under all daemons, by UUID.
        self.verified: Mapping[str, StoredWork] = {}
        #: The verdict of each GPU's last burn-in, by UUID.
        self.verdicts: Mapping[str, LastVerdict] = {}
        self._updated = 0.0
        self._broadcast = Broadcast()

    def update(self, view: View) -> None:
        """Replace a view."""
        match view:
            case HostView():
                self._host = view
            case SessionsView(sessions=sessions):
                self.sessions = sessions
            case GpuView():
                self._gpus[view.uuid] = view
        self._updated = time.monotonic()

    def announce(self) -> None:
        """Wake all waiters after updates."""
        self._broadcast.wake()

    def end(self) -> None:
        """End all waits: there will be no further view."""
        self._broadcast.end()

    @property
    def fresh(self) -> bool:
        """Whether there was an update within the last MAX_AGE_S seconds."""
        return self._host is not None and time.monotonic() - self._updated < MAX_AGE_S

    @property
    def host(self) -> HostView:
        """The last view of the daemon.

        Raises:
            ProblemError: There is no view yet.
        """
        if self._host is None:
            raise ProblemError(Code.UNAVAILABLE, "The daemon has not published its state yet.")
        return self._host

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """The last views of the GPUs, in the daemon's order.

        Raises:
            ProblemError: There is no view yet.
        """
        return tuple(self._gpus[uuid] for uuid in self.host.gpus if uuid in self._gpus)

    @property
    def queue(self) -> tuple[Reservation, ...]:
        """The requests that wait for GPUs, in the order of the queue."""
        return tuple(request for request in self.host.reservations if not request.gpus)

    def reservation(self, id_: str) -> Reservation | None:
        """Find a reservation, or a request for one, by its id."""
        return next(
            (reservation for reservation in self.host.reservations if reservation.id == id_), None
        )

    def session(self, name: str) -> Session | None:
        """Find a session by its name."""
        return next((session for session in self.sessions if session.name == name), None)

    def allocation(self, id_: str) -> Allocation | None:
        """Find an allocation by its id."""
        return next(
            (allocation for allocation in self.host.allocations if allocation.id == id_), None
        )

    def gpu(self, uuid: str) -> GpuView | None:
        """Find the last view of a GPU."""
        return self._gpus.get(uuid)

    def one(self, selector: str) -> GpuView:
        """Find the view of exactly one GPU.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or is ambiguous.
            ProblemError: The selector means several GPUs, or the GPUs are not known yet.
        """
        selected = self.select([selector])
        if len(selected) != 1:
            detail = f"{selector!r} means {len(selected)} GPUs; name one, or use /v1/status."
            raise ProblemError(Code.INVALID, detail)
        return self._gpus[selected[0]]

    def select(self, selectors: list[str] | None) -> tuple[str, ...]:
        """Resolve selectors to UUIDs; None resolves to an empty selection.

        Raises:
            NoSuchGpuError: A selector matches no GPU, or is ambiguous.
            ProblemError: The GPUs are not known yet.
        """
        if selectors is None:
            return ()
        return tuple(gpu.uuid for gpu in select_gpus(selectors, self.known()))

    def known(self) -> tuple[Gpu, ...]:
        """Return the GPUs of the daemon.

        Raises:
            ProblemError: They are not known yet.
        """
        return tuple(
            Gpu(
                uuid=view.uuid,
                index=view.index,
                name=view.name,
                pci_bus_id=view.pci_bus_id,
                memory_total=view.memory_total,
            )
            for view in self.gpus
        )

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``condition`` is true; return False at ``deadline``, of the monotonic clock.

        Raises:
            ProblemError: The daemon ended first.
        """
        while not condition():
            remaining = deadline - time.monotonic()
            if self._broadcast.ended:
                raise ProblemError(Code.UNAVAILABLE, "The daemon ended during this request.")
            if remaining <= 0:
                return False
            await self._broadcast.wait(remaining)
        return True
