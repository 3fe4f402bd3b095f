"""The client's verbs for reservations, allocations, sessions and the history."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import EllipsisType
from typing import Any, TypeVar

from sentinel.client.requester import (
    WAIT_S,
    Gpus,
    Verbs,
    named,
    number_of,
    path_part,
    query_of,
    selector_of,
    selectors,
    texts_of,
)
from sentinel.client.transport import describe
from sentinel.errors import ConfigError, SentinelError, ServiceError
from sentinel.protocol import api_types, history_types
from sentinel.protocol.api_types import Sessions, SessionStarted
from sentinel.units import parse_size

T = TypeVar("T")

_PATH = "/v1/allocations"

_PATH_RESERVATIONS = "/v1/reservations"
#: How often the place in the queue is read, in seconds.
_WATCH_EVERY_S = 1.0
#: When a place that stays the same is reported again: after as long as the wait so far, in these
#: bounds.
_MIN_REPEAT_S, _MAX_REPEAT_S = 60.0, 600.0
#: The largest number of GPUs in one request.
_MAX_COUNT = 128
OnWait = Callable[[api_types.ReservationInfo], object]


class HistoryVerbs(Verbs):
    """The verbs for the history.

    ``since`` is a duration before now, such as ``"2h"``, or a date with its offset. A removed GPU
    is named by its full UUID.
    """

    def history(
        self, gpu: str | int, since: str | datetime = "1h", *, points: int | None = None
    ) -> tuple[history_types.PastReading, ...]:
        """List the readings of a GPU, at most ``points`` of them, oldest first.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        return self._query(
            history_types.PastReadings, "readings", gpu=gpu, since=since, points=points
        ).readings

    def recorded_events(
        self,
        gpu: str | int | None = None,
        since: str | datetime = "1d",
        *,
        name: str | None = None,
        limit: int | None = None,
    ) -> tuple[history_types.PastEvent, ...]:
        """List the last events of a GPU, or of all, at most ``limit``, oldest first.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        return self._query(
            history_types.RecordedEvents, "events", gpu=gpu, since=since, name=name, limit=limit
        ).events

    def usage(
        self,
        gpu: str | int | None = None,
        since: str | datetime = "1d",
        *,
        limit: int | None = None,
    ) -> tuple[history_types.PastUse, ...]:
        """List the uses of a GPU, or of all, by processes, oldest first.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        return self._query(history_types.Usage, "usage", gpu=gpu, since=since, limit=limit).usage

    def gpu_hours(
        self, gpu: str | int | None = None, since: str | datetime = "1d"
    ) -> history_types.GpuHours:
        """Sum up the time of a GPU, or of all: allocated and unused by user, and idle.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
            ConfigError: ``since`` is invalid.
        """
        return self._query(history_types.GpuHours, "hours", gpu=gpu, since=since)

    def trend(self, gpu: str | int, minutes: int = 5) -> history_types.TemperatureTrend:
        """Compute the trend of a GPU's temperature over the last minutes, at most 60.

        Raises:
            NoSuchGpuError: The selector matches no GPU, or several.
        """
        back = query_of(minutes=number_of(minutes, "minutes", "a number of minutes", least=1))
        path = f"/v1/gpus/{path_part(selector_of(gpu), 'gpu')}/trend{back}"
        return self.fetch(history_types.TemperatureTrend, "GET", path)

    def _query(self, kind: type[T], resource: str, **parameters: object) -> T:
        return self.fetch(kind, "GET", f"/v1/history/{resource}{query_of(**parameters)}")


class SessionVerbs(Verbs):
    """The verbs for sessions."""

    def sessions(self) -> tuple[api_types.SessionInfo, ...]:
        """List all sessions, in the order in which they were started."""
        return self.fetch(Sessions, "GET", "/v1/sessions").sessions

    def start_session(
        self,
        name: str,
        gpus: Gpus,
        settings: Mapping[str, object] | None = None,
        *,
        seconds: float | None = None,
    ) -> api_types.SessionInfo:
        """Give GPUs settings of their own, until the session ends; it outlives the daemon.

        The same call again changes nothing.

        Args:
            name: The name: letters, digits and ``._:-``.
            gpus: The GPUs, of those that the daemon has; each is in one session at most.
            settings: Settings by key, such as ``{"workload": "hold"}``; those that a single GPU may
                have. The daemon's apply for all others.
            seconds: The duration; the default is until :meth:`stop_session`.

        Raises:
            ConfigError: A setting is invalid, or a single GPU cannot have it.
            NoSuchGpuError: The daemon does not have a GPU.
            ConflictError: There is a session of this name, or another one has a GPU.
        """
        body = {
            "name": name,
            "gpus": named(gpus),
            "settings": texts_of({} if settings is None else settings),
            "seconds": seconds,
        }
        return self.fetch(SessionStarted, "POST", "/v1/sessions", body).session

    def stop_session(self, name: str) -> api_types.Outcome:
        """End a session: its GPUs have the daemon's settings again.

        Raises:
            ServiceError: There is no session of this name.
        """
        return self.fetch(api_types.Outcome, "DELETE", f"/v1/sessions/{path_part(name, 'name')}")


class AllocationVerbs(Verbs):
    """The verbs for allocations."""

    def allocate(
        self,
        id: str,  # noqa: A002 - the usual name
        size: str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
        pid: int | None = None,
    ) -> api_types.AllocationInfo:
        """Allocate GPU memory for this process and its children.

        Returns when the memory is free: the stressor makes room, and does not yield to these
        processes while the allocation exists. The allocation ends with this process at the latest;
        over TCP, where the process is not known, it exists until :meth:`cancel_allocation`. The
        result is a context manager, whose block it ends with.

        Args:
            id: The allocation's name for :meth:`cancel_allocation`; letters, digits and ``._:-``.
            size: The size with its unit, such as ``"40GiB"``, or ``f"{count}B"`` for bytes.
            gpu: The GPU by index, UUID or its unique prefix, or PCI address.
            wait: Seconds until the memory must be free.
            pid: Another process of the same user, for which the memory is allocated instead.

        Raises:
            NoSuchGpuError: The GPU does not exist.
            ConflictError: The id is in use, or the budget is too small; names what is available.
            TimedOutError: The memory was not free in time; nothing is allocated.
            ConfigError: The size is invalid or has no unit, or the process does not exist.
        """
        body: dict[str, Any] = {"gpu": selector_of(gpu), "size": _size_bytes(size)}
        if pid is not None:
            body["pid"] = pid
        made = self.put(api_types.AllocationInfo, f"{_PATH}/{path_part(id, 'id')}", body, wait=wait)
        return made.ended_by(lambda: self._end_same(made))

    def cancel_allocation(self, id: str) -> api_types.Outcome:  # noqa: A002 - the usual name
        """End an allocation.

        Raises:
            ServiceError: There is no allocation with this id.
        """
        return self.fetch(api_types.Outcome, "DELETE", f"{_PATH}/{path_part(id, 'id')}")

    #: The same, for the duration of a ``with`` block.
    allocation = allocate

    def allocations(self) -> tuple[api_types.AllocationInfo, ...]:
        """List all allocations."""
        return self.fetch(api_types.Allocations, "GET", _PATH).allocations

    def _end_same(self, made: api_types.AllocationInfo) -> api_types.Outcome:
        """End an allocation, unless it has ended and another process uses its id.

        Raises:
            ServiceError: It has ended already.
        """
        known = {
            (allocation.id, allocation.gpu, allocation.holder.pid)
            for allocation in self.allocations()
        }
        if (made.id, made.gpu, made.holder.pid) not in known:
            error = ServiceError(f"the allocation {made.id!r} has ended already")
            error.code = "not_found"
            raise error
        return self.cancel_allocation(made.id)

    def budget(self, gpu: str | int = 0) -> api_types.MemoryBudget:
        """Read how much memory of a GPU allocations may use, use, and may still use.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        query = query_of(gpu=selector_of(gpu))
        found = self.fetch(api_types.Allocations, "GET", f"{_PATH}{query}").gpus
        if len(found) != 1:
            raise ServiceError(f"the daemon answers with {len(found)} GPUs instead of one")
        return found[0]

    def available(self, gpu: str | int = 0) -> int:
        """Read how many bytes of a GPU can still be allocated.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        return self.budget(gpu).available


def _size_bytes(size: object) -> int:
    """Parse a size.

    Raises:
        ConfigError: It is a number, which may be MB or bytes, or not text of a size.
    """
    if isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
        what = f"size: {size!r} has no unit"
        raise ConfigError(what, f"Write '{size}MiB' for MB, or '{size}B' for bytes.")
    if not isinstance(size, str):
        raise ConfigError(
            f"size: {describe(size)} is not a size", "Write it as text such as '40GiB'."
        )
    try:
        return parse_size(size)
    except ValueError as error:
        raise ConfigError(f"size: {error}") from None


class ReservationVerbs(Verbs):
    """The verbs for reservations."""

    def reservations(self) -> tuple[api_types.ReservationInfo, ...]:
        """List all reservations."""
        return tuple(map(self._with_end, self._listed().reservations))

    def queue(self) -> tuple[api_types.ReservationInfo, ...]:
        """List the requests that wait for GPUs, in the order of the queue."""
        return self._listed().queue

    def reserve(
        self,
        gpus: Gpus,
        *,
        among: Gpus | None = None,
        reason: str = "",
        seconds: float | EllipsisType | None = ...,
        wait: float = WAIT_S,
        bound: bool = False,
        on_wait: OnWait | None = None,
    ) -> api_types.ReservationInfo:
        """Keep GPUs free for you; returns when their memory is free.

        While too few GPUs are available, the request waits in a queue: first come, first served.
        The result is a context manager: the reservation ends with its ``with`` block. Without a
        block it lasts until :meth:`cancel_reservation`, for ``seconds``, or while this process
        runs, if it is ``bound``.

        Args:
            gpus: The GPUs, or their number.
            among: The GPUs from which that number is taken; the default is all.
            reason: Shown to other users.
            seconds: The maximum duration, or None for no limit; required unless ``bound``.
            wait: Seconds until enough GPUs must be available and free; 0 does not wait,
                ``math.inf`` waits without a limit.
            bound: End the reservation with this process at the latest, even if that is killed; not
                over TCP.
            on_wait: Called in another thread with the request after a second, when its place in the
                queue has changed, and every one to ten minutes. The place is 0 once it has GPUs
                that are not free yet.

        Raises:
            NoSuchGpuError: A GPU does not exist.
            ConflictError: The GPUs are not available; names their holders.
            ConfigError: Nothing ends the reservation, ``among`` is given without a number, or
                ``on_wait`` is not a function.
            TimedOutError: The GPUs were not free in time; nothing is reserved.
        """
        called: object = on_wait  # of a script, which may give anything
        if called is not None and not callable(called):
            what = f"on_wait: {describe(on_wait)} is not a function"
            raise ConfigError(what, "Give a function of a reservation, or leave it out.")
        # Short, since people type it to end the reservation.
        id_ = secrets.token_hex(4)
        body: dict[str, Any] = {"reason": reason, "bound": bound}
        if isinstance(gpus, int) and not isinstance(gpus, bool):
            if not 1 <= gpus <= _MAX_COUNT:
                what = f"gpus: {gpus} is not a number of GPUs from 1 to {_MAX_COUNT}"
                raise ConfigError(what, "An index of a GPU is text here, such as '0'.")
            body["count"] = gpus
            if among is not None:
                body["gpus"] = selectors(among, "among")
        else:
            body["gpus"] = named(gpus, remedy="Give a number of GPUs, or their names.")
            if among is not None:
                what = f"among: {','.join(body['gpus'])!r} names GPUs, and is no number of them"
                raise ConfigError(what, "Give a number of GPUs with among, or leave it out.")
        if not isinstance(seconds, EllipsisType):
            body["seconds"] = seconds
        path = f"{_PATH_RESERVATIONS}/{id_}"
        with self._watched(id_, on_wait if wait else None):
            return self._with_end(self.put(api_types.ReservationInfo, path, body, wait=wait))

    def cancel_reservation(self, id: str) -> api_types.Outcome:  # noqa: A002 - the usual name
        """End a reservation.

        Raises:
            ServiceError: There is no reservation with this id.
        """
        return self.fetch(
            api_types.Outcome, "DELETE", f"{_PATH_RESERVATIONS}/{path_part(id, 'id')}"
        )

    def _listed(self) -> api_types.Reservations:
        return self.fetch(api_types.Reservations, "GET", _PATH_RESERVATIONS)

    def _with_end(self, one: api_types.ReservationInfo) -> api_types.ReservationInfo:
        return one.ended_by(lambda: self.cancel_reservation(one.id))

    @contextlib.contextmanager
    def _watched(self, id_: str, on_wait: OnWait | None) -> Iterator[None]:
        """Report the place of a request while the block waits for it.

        Args:
            id_: The id of the request.
            on_wait: As for :meth:`reserve`; None to read nothing.
        """
        if on_wait is None:
            yield
            return
        over = threading.Event()

        def watch() -> None:
            place, began = -1, time.monotonic()
            repeat_at = began
            while not over.wait(_WATCH_EVERY_S):
                request = None
                with contextlib.suppress(SentinelError):  # the request itself has the error
                    listed = self._listed()
                    known = (*listed.queue, *listed.reservations)
                    request = next((found for found in known if found.id == id_), None)
                if request is None or over.is_set():
                    continue
                now = time.monotonic()
                if request.place != place or now >= repeat_at:
                    place = request.place
                    repeat_at = now + min(max(now - began, _MIN_REPEAT_S), _MAX_REPEAT_S)
                    on_wait(request)

        # A daemon thread: it may be in a request when the wait is over.
        threading.Thread(target=watch, name="queue-watch", daemon=True).start()
        try:
            yield
        finally:
            over.set()
