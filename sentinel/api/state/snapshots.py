"""What the supervisor showed last: of the daemon, and of each GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

from sentinel.api.http.errors import ProblemError
from sentinel.api.state.event_buffer import Broadcast
from sentinel.config.gpu_selection import select_gpus
from sentinel.protocol.api_types import Code
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.views import Allocation, GpuView, HostView, Reservation

#: Views that are older, in seconds, tell of a supervisor that does not get on: it sends all of them
#: at least once a second.
FRESH = 5.0


class Views:
    """The last views, and the way to wait for others."""

    def __init__(self) -> None:
        self._host: HostView | None = None
        self._gpus: dict[str, GpuView] = {}
        self._heard = 0.0
        self._ended = False
        self._broadcast = Broadcast()

    def take(self, view: HostView | GpuView) -> None:
        """Keep a view in place of the one before it."""
        if isinstance(view, HostView):
            self._host = view
        else:
            self._gpus[view.uuid] = view
        self._heard = time.monotonic()

    def announce(self) -> None:
        """Wake those who wait, after some views were taken."""
        self._broadcast.wake()

    def end(self) -> None:
        """Let nobody wait any more: there will be no further view."""
        self._ended = True
        self._broadcast.wake()

    @property
    def fresh(self) -> bool:
        """Whether anything was shown within the last FRESH seconds."""
        return self._host is not None and time.monotonic() - self._heard < FRESH

    @property
    def host(self) -> HostView:
        """The last view of the daemon.

        Raises:
            ProblemError: There was none yet.
        """
        if self._host is None:
            raise ProblemError(Code.UNAVAILABLE, "The daemon has not shown its state yet.")
        return self._host

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """The last views of the GPUs, in the daemon's order.

        Raises:
            ProblemError: There was none yet.
        """
        return tuple(self._gpus[uuid] for uuid in self.host.gpus if uuid in self._gpus)

    def reservation(self, name: str) -> Reservation | None:
        """Return the reservation of this id, if there is one."""
        return next((held for held in self.host.reservations if held.id == name), None)

    def allocation(self, name: str) -> Allocation | None:
        """Return the memory that was promised by this id, if there is some."""
        return next((one for one in self.host.allocations if one.id == name), None)

    def gpu(self, uuid: str) -> GpuView | None:
        """Return the last view of a GPU, if there is one."""
        return self._gpus.get(uuid)

    def one(self, selector: str) -> GpuView:
        """Return the last view of the one GPU that somebody named.

        Raises:
            NoSuchGpuError: The selector names no GPU, or several.
            ProblemError: It means several, or it is not known yet which GPUs there are.
        """
        chosen = self.select([selector])
        if len(chosen) != 1:
            detail = f"{selector!r} means {len(chosen)} GPUs; name one, or ask for /v1/status."
            raise ProblemError(Code.INVALID, detail)
        return self._gpus[chosen[0]]

    def select(self, selectors: list[str] | None) -> tuple[str, ...]:
        """Return the UUIDs that people named, none where nobody named any.

        Raises:
            NoSuchGpuError: A selector names no GPU, or several.
            ProblemError: It is not known yet which GPUs there are.
        """
        if selectors is None:
            return ()
        known = tuple(
            Gpu(
                uuid=view.uuid,
                index=view.index,
                name=view.name,
                pci_bus_id=view.pci_bus_id,
                memory_total=view.memory_total,
            )
            for view in self.gpus
        )
        return tuple(gpu.uuid for gpu in select_gpus(selectors, known))

    async def until(self, met: Callable[[], bool], deadline: float) -> bool:
        """Return whether ``met`` was so before ``deadline``, of the monotonic clock.

        Raises:
            ProblemError: The daemon ended first.
        """
        while not met():
            left = deadline - time.monotonic()
            if self._ended:
                raise ProblemError(Code.UNAVAILABLE, "The daemon ended while this was waited for.")
            if left <= 0:
                return False
            await self._broadcast.wait(left)
        return True
