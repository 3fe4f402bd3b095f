"""The supervisor's last views, of the daemon and of each GPU, and waits for a state of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sentinel.api.bodies import ProblemError
from sentinel.api.supervisor_link import Broadcast
from sentinel.config.gpu_selection import gpus_of, select_gpus
from sentinel.errors import GpuHeldError, NoSuchGpuError
from sentinel.host.last_verdicts import LastVerdict
from sentinel.host.verified_store import StoredWork
from sentinel.protocol.gpu import Gpu, HeldGpu
from sentinel.protocol.problem import Code
from sentinel.protocol.views import (
    FaultKind,
    GpuView,
    Grant,
    HostView,
    Phase,
    Reservation,
    Session,
    SessionsView,
    VerifiedCounts,
    View,
)
from sentinel.units import format_duration, format_indices, format_size

T = TypeVar("T", bound=Grant)

#: The maximum age of a healthy supervisor's views: it sends all of them once a second.
STATE_MAX_AGE_S = 5.0

#: The states in which a stressor holds GPU memory, or may hold some.
_HOLDING = {"STARTING", "RUNNING", "STOPPING"}


class Views:
    """The last views, and the wait for new ones.

    Args:
        held: The GPUs that this daemon leaves out.
    """

    def __init__(self, held: Sequence[HeldGpu] = ()) -> None:
        self._held = held
        self._host: HostView | None = None
        self._gpus: dict[str, GpuView] = {}
        #: The sessions, in the order in which they were started.
        self.sessions: tuple[Session, ...] = ()
        #: What each GPU has proved under all daemons, by UUID.
        self.verified: Mapping[str, StoredWork] = {}
        #: The part of it that is on disk.
        self.stored: Mapping[str, VerifiedCounts] = {}
        #: Explains why what was found earlier is not known; returns None if it is.
        self.forgotten: Callable[[], str | None] = lambda: None
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
        """Whether there was an update within the last STATE_MAX_AGE_S seconds."""
        return self._host is not None and self.age_s < STATE_MAX_AGE_S

    @property
    def age_s(self) -> float:
        """The time since the last update."""
        return time.monotonic() - self._updated

    @property
    def host(self) -> HostView:
        """The last view of the daemon.

        Raises:
            ProblemError: There is no view yet.
        """
        if self._host is None:
            raise ProblemError(Code.STARTING, "The daemon has not published its state yet.")
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

    def grant(self, kind: type[T], id_: str) -> T | None:
        """Find a reservation, a request for one, or an allocation by its id."""
        grants = (grant for grant in self.host.grants if isinstance(grant, kind))
        return next((grant for grant in grants if grant.id == id_), None)

    def session(self, name: str) -> Session | None:
        """Find a session by its name."""
        return next((session for session in self.sessions if session.name == name), None)

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
            detail = f"{selector!r} selects {len(selected)} GPUs; name one."
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
        try:
            selected = select_gpus(selectors, self.known(), self._held)
        except GpuHeldError as error:  # to clients, it is a GPU that this daemon does not have
            raise NoSuchGpuError(error.what, error.remedy) from error
        return tuple(gpu.uuid for gpu in selected)

    def known(self) -> tuple[Gpu, ...]:
        """Return the GPUs of the daemon.

        Raises:
            ProblemError: They are not known yet.
        """
        return gpus_of(self.gpus)

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


async def stressors_gone(views: Views, gpus: tuple[str, ...], deadline: float) -> None:
    """Wait until the stressors on these GPUs, or on all, have ended and their memory is free.

    A released driver fulfils this: no memory is held then, and no GPU is read.

    Raises:
        ProblemError: Memory is held at ``deadline``, or the daemon ended.
    """

    def are_gone() -> bool:
        return views.host.phase is Phase.RELEASED or not _filter(views, gpus, _is_held)

    if not await views.until(are_gone, deadline):
        held = _describe(_filter(views, gpus, _is_held))
        raise ProblemError(Code.TIMEOUT, f"Still held: {held}.")


async def gpus_free(views: Views, granted: Reservation, deadline: float) -> None:
    """Wait until a reading shows reserved GPUs without a stressor and without foreign processes.

    Raises:
        ProblemError: A GPU is not free at ``deadline`` or is lost, or the reservation or the daemon
            ended.
    """
    gpus, why = granted.gpus, ""

    def is_settled() -> bool:
        nonlocal why
        why = too_many_lost(views, gpus, len(gpus)) or ""
        if views.grant(Reservation, granted.id) is None:
            why = "The reservation ended, as after its time, before the memory was free."
        return bool(why) or not _filter(views, gpus, _is_used)

    if not await views.until(is_settled, deadline):
        used = _describe(_filter(views, gpus, _is_used))
        raise ProblemError(Code.TIMEOUT, f"{used}: not free yet.")
    if why:
        raise ProblemError(Code.CONFLICT, why)


def too_many_lost(views: Views, gpus: tuple[str, ...], count: int) -> str | None:
    """Explain why ``count`` of these GPUs, or of all, can never be free; None if they can."""
    lost = [
        f"GPU {view.index}: {fault.text}"
        for view in _filter(views, gpus, lambda _: True)
        for fault in view.faults
        if fault.kind is FaultKind.LOST
    ]
    return "; ".join(lost) if len(gpus or views.gpus) - len(lost) < count else None


async def memory_free(views: Views, gpu: str, after: float, deadline: float) -> None:
    """Wait until all outstanding allocations of a GPU are free.

    Args:
        views: The supervisor's state.
        gpu: The GPU's UUID.
        after: The time of the allocation, of the monotonic clock: only later readings count.
        deadline: When to give up.

    Raises:
        ProblemError: The memory is not free at ``deadline``, or the daemon ended.
    """

    def is_free() -> bool:
        return _obstacle(views, gpu, after) is None

    if not await views.until(is_free, deadline):
        why = _obstacle(views, gpu, after)
        raise ProblemError(
            Code.TIMEOUT, f"The memory is not free yet: {why}. Nothing is allocated."
        )


async def driver_released(views: Views, deadline: float) -> None:
    """Wait until the daemon has released the driver.

    Raises:
        ProblemError: The driver is in use at ``deadline``, or the daemon ended.
    """
    if not await views.until(lambda: views.host.phase is Phase.RELEASED, deadline):
        raise ProblemError(Code.TIMEOUT, "The driver is not released yet.")


def _filter(
    views: Views, gpus: tuple[str, ...], predicate: Callable[[GpuView], bool]
) -> list[GpuView]:
    """Filter these GPUs, or all if ``gpus`` is empty."""
    return [view for view in views.gpus if (view.uuid in gpus or not gpus) and predicate(view)]


def _is_held(view: GpuView) -> bool:
    """Check whether a stressor holds memory, may hold some, or left some behind."""
    if view.stressor in _HOLDING:
        return True
    return view.ended is not None and (_is_unread(view) or view.leaked)


def _is_used(view: GpuView) -> bool:
    """Check whether a process uses a GPU, or may use it, or memory is leaked."""
    in_use = view.occupancy != "IDLE" or view.leaked or bool(view.allocated_processes)
    return view.stressor in _HOLDING or in_use or _is_unread(view)


def _is_unread(view: GpuView) -> bool:
    """Check whether a GPU was not read since its last stressor ended."""
    return view.ended is not None and (view.read is None or view.read <= view.ended)


def _describe(views: list[GpuView]) -> str:
    """Describe GPUs by their state, its duration and the memory of their stressors.

    Those of one state are described together, by the longest duration and all of the memory.
    """
    groups: dict[tuple[str, ...], list[GpuView]] = {}
    for view in views:
        groups.setdefault(_words(view), []).append(view)
    return ", ".join(_describe_group(words, group) for words, group in groups.items())


def _describe_group(words: tuple[str, ...], views: list[GpuView]) -> str:
    one = len(views) == 1
    state, *more = words
    since = [view.since for view in views if view.since and view.stressor in _HOLDING]
    if since:
        longest = format_duration(max(0.0, time.monotonic() - min(since)))
        state += f" for {'' if one else 'up to '}{longest}"
    held = sum(view.held or 0 for view in views)
    memory = [f"{format_size(held)}{'' if one else ' in all'}"] if held else []
    indices = format_indices(view.index for view in views)
    return f"GPU{'' if one else 's'} {indices} ({', '.join([state, *memory, *more])})"


def _words(view: GpuView) -> tuple[str, ...]:
    """Name what keeps a GPU from being free: its stressor, or else what was read."""
    if view.stressor in _HOLDING:
        return (view.stressor.lower(),)
    words = ["not read since"] if _is_unread(view) else []
    if view.leaked:
        words.append("memory leaked")
    elif view.occupancy != "IDLE":
        words.append(view.occupancy.lower())
    return tuple(words or ["memory allocated"])


def _obstacle(views: Views, gpu: str, after: float) -> str | None:
    """Describe why the outstanding memory of a GPU may not be free, or None if it is free."""
    view = views.gpu(gpu)
    if view is None:
        return "the state of the GPU is not known"
    name = f"GPU {view.index}"
    missing = _shortage(view)
    if missing is None:
        return f"{name} cannot be read: {view.reason}"
    if missing:
        state = f"{view.occupancy.lower()}, {view.stressor.lower()}"
        return f"{name} ({state}) has {format_size(missing)} too little"
    if min(view.at, view.read or 0.0) <= after:
        return f"{name} was not read since"
    if view.ended is not None and (view.read or 0.0) <= view.ended:
        return f"{name} was not read since its stressor ended"
    if view.stressor == "STARTING" and (view.since or 0.0) <= after:
        # Its size was decided before the allocation.
        age = time.monotonic() - (view.since or 0.0)
        return f"a stressor on {name} started {age:.1f} s ago, and is released first"
    return None


def _shortage(view: GpuView) -> int | None:
    """Compute how many bytes of the outstanding allocations are not free, or None if not known.

    Memory that the holder and its children use already is not outstanding.
    """
    return None if view.memory_free is None else max(0, view.outstanding - view.memory_free)
