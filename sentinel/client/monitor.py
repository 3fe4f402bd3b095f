"""One object that watches the GPUs of a host, with a daemon or without, and calls back."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar, overload

from sentinel.client.callbacks import Callback, Callbacks
from sentinel.client.client import Client, connect
from sentinel.client.follower import Events, Follower
from sentinel.client.hold import own_sentinel
from sentinel.client.types import EventInfo
from sentinel.errors import ConfigError, NotRunningError, SentinelError, ServiceError, TimedOutError
from sentinel.protocol.api_types import AllocationInfo, GpuStatus, MemoryBudget, Outcome
from sentinel.protocol.history_types import PastReading, TemperatureTrend
from sentinel.units import format_duration

C = TypeVar("C", bound=Callback)

#: How long a sentinel of our own may take until it shows every GPU, in seconds: a driver without
#: persistence mode takes up to 3 s for each.
_PATIENCE = 60.0
#: How often progress is checked, and after what time a failed start is retried.
_EVERY, _AGAIN = 0.05, 30.0


class Monitor:
    """The GPUs of this host, as a daemon sees them, or a sentinel of its own that occupies nothing.

    Nothing is started or asked before the first verb. Safe to use from many threads. Its thread and
    its sentinel end with the ``with`` block, by :meth:`close`, or with the script.

    Every verb but :meth:`is_available` raises a :class:`~sentinel.errors.SentinelError` where there
    is nothing to ask: no daemon, no driver, no GPU. A GPU is named by nvidia-smi's index, by a UUID
    or its unique beginning, or by a PCI address.

    Args:
        socket: The daemon's socket; otherwise ``$SENTINEL_SOCKET``, or the usual place.
        embedded: Whether to have a sentinel of its own; ``None`` means where no daemon runs, and
            none was named by ``socket`` or ``tcp``.
        tcp: ``host:port`` of a daemon.
        token: The file with the token for ``tcp``.
        simulate: Pretend so many GPUs in a sentinel of its own.
        flags: More flags of ``sentinel run`` for it.
        timeout: Seconds that an answer may take.
    """

    def __init__(
        self,
        socket: str | Path | None = None,
        *,
        embedded: bool | None = None,
        tcp: str | None = None,
        token: str | Path | None = None,
        simulate: int | None = None,
        flags: Sequence[str] = (),
        timeout: float = 10.0,
    ) -> None:
        named = socket is not None or tcp is not None
        if embedded and named:
            raise ConfigError("embedded: a sentinel of its own has no place that could be named")
        self._embedded = False if embedded is None and named else embedded
        self._connect: Callable[[], Client] = lambda: connect(
            socket, tcp=tcp, token=token, timeout=timeout
        )
        self._flags = [*([] if simulate is None else ["--simulate", str(simulate)]), *flags]
        self._lock = threading.RLock()
        self._own = contextlib.ExitStack()
        weakref.finalize(self, self._own.close)  # also at the end of the script
        self._client: Client | None = None
        self._failed: tuple[float, SentinelError] | None = None
        self._follower: Follower | None = None
        self._callbacks = Callbacks()
        self._seen: dict[str, GpuStatus] = {}
        self.reason = ""
        """Why :meth:`is_available` said no last; empty where it said yes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self.stop()
        with self._lock:
            self._client = self._failed = None
            self._own.close()

    @property
    def client(self) -> Client:
        """What talks to the sentinel that is asked, with all the other verbs.

        Raises:
            SentinelError: There is none, and none can be started; says why.
        """
        with self._lock:
            if self._client is None:
                self._client = self._begin()
            return self._client

    # --- looking -----------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Return whether there is a GPU that can be read; where not, ``reason`` says why.

        It never raises: a host without a GPU or without a driver is one where this is false.
        """
        try:
            gpus = self.status_all()
        except (SentinelError, OSError) as error:
            self.reason = str(error)
            return False
        unread = [f"GPU {gpu.index}: {gpu.reason}" for gpu in gpus if gpu.occupancy == "UNKNOWN"]
        if len(unread) == len(gpus):
            self.reason = "; ".join(unread) or "there is no GPU"
            return False
        self.reason = ""
        return True

    def status(self, gpu: str | int = 0) -> GpuStatus:
        """Return one GPU.

        Raises:
            NoSuchGpuError: It is not there.
        """
        return self.client.gpu(gpu)

    def status_all(self) -> tuple[GpuStatus, ...]:
        """Return all GPUs."""
        return self.client.status().gpus

    def history(self, gpu: str | int = 0, minutes: float = 10) -> tuple[PastReading, ...]:
        """Return the readings of a GPU in the last minutes, the oldest first.

        Raises:
            NoSuchGpuError: It is not there.
        """
        return self.client.history(gpu, f"{round(60 * minutes)}s")

    def trend(self, gpu: str | int = 0, minutes: int = 5) -> TemperatureTrend:
        """Return where the temperature of a GPU went: rising, falling, stable or unknown.

        Raises:
            NoSuchGpuError: It is not there.
        """
        return self.client.trend(gpu, minutes)

    def speed_multiplier(self, gpu: str | int = 0) -> float:
        """Return the share of its speed that a GPU's health leaves: 1, 0.8, 0.5 or 0.

        Raises:
            NoSuchGpuError: It is not there.
        """
        return self.status(gpu).multiplier

    def should_throttle(self, gpu: str | int = 0) -> bool:
        """Return whether work on a GPU is to be slowed down.

        Raises:
            NoSuchGpuError: It is not there.
        """
        return self.speed_multiplier(gpu) < 1

    # --- memory ------------------------------------------------------------------------------

    def allocate(
        self,
        id: str,  # noqa: A002 - as it is called everywhere
        size: int | str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
    ) -> AllocationInfo:
        """Have memory kept for this process, as :meth:`sentinel.Client.allocate` does."""
        return self.client.allocate(id, size, gpu, wait=wait)

    def deallocate(self, id: str) -> Outcome:  # noqa: A002 - as it is called everywhere
        """Give memory back."""
        return self.client.deallocate(id)

    def allocation(
        self,
        id: str,  # noqa: A002 - as it is called everywhere
        size: int | str,
        gpu: str | int = 0,
        *,
        wait: float = 30.0,
    ) -> contextlib.AbstractContextManager[AllocationInfo]:
        """Have memory while a ``with`` block lasts."""
        return self.client.allocation(id, size, gpu, wait=wait)

    def available(self, gpu: str | int = 0) -> int:
        """Return how many bytes of a GPU may be allocated yet."""
        return self.client.available(gpu)

    def budget(self, gpu: str | int = 0) -> MemoryBudget:
        """Return how much of a GPU may be allocated in all, is, and may be yet."""
        return self.client.budget(gpu)

    # --- settings ----------------------------------------------------------------------------

    def update_config(self, settings: Mapping[str, object]) -> Outcome:
        """Change single settings, all of them or none, and keep the others.

        Args:
            settings: What is to hold, by key, such as ``{"throttle.temp_throttle": 80}``; ``None``
                takes back what a flag or an earlier call has set.

        Raises:
            ConfigError: There is no such setting, or a value is not allowed; nothing has changed.
        """
        texts = {key: None if value is None else str(value) for key, value in settings.items()}
        return self.client.configure(texts)

    # --- events ------------------------------------------------------------------------------

    @overload
    def on(self, name: str) -> Callable[[C], C]: ...
    @overload
    def on(self, name: str, callback: C) -> C: ...
    def on(self, name: str, callback: C | None = None) -> C | Callable[[C], C]:
        """Have a callback called at each event of a kind, while :meth:`start` holds; a decorator.

        It gets the GPU as it is shown then and the event, in a thread that calls one after the
        other: a slow one delays the next. What it raises is logged and counted in ``errors``.

        Args:
            name: ``state_change``, ``throttle``, ``resume``, ``critical`` or ``overheat`` of a
                GPU's health; ``yield`` where a newcomer comes to a GPU that is held,
                ``handed_over`` once it has it; ``busy`` and ``idle``; or any event by its name.
            callback: What is called; without it, what is decorated.

        Raises:
            ConfigError: There is no such name.
        """

        def register(function: C) -> C:
            self._callbacks.add(name, function)
            return function

        return register if callback is None else register(callback)

    def off(self, name: str, callback: Callback) -> None:
        """Have a callback not called any more."""
        self._callbacks.remove(name, callback)

    @property
    def errors(self) -> int:
        """How many calls of callbacks have ended with an exception."""
        return self._callbacks.errors

    @property
    def running(self) -> bool:
        """Whether callbacks are called."""
        return self._follower is not None and self._follower.alive

    def start(self) -> None:
        """Begin to call callbacks; no event from here on is missed. Nothing happens where it runs.

        It goes on over a restart of the daemon.
        """
        with self._lock:
            if self.running:
                return
            client = self.client
            self._seen = {gpu.uuid: gpu for gpu in client.status().gpus}
            follower = Follower(client.events, functools.partial(self._hear, client))
            follower.start()
            self._follower = follower

    def stop(self) -> None:
        """End it; a callback that is at work is waited for, for some seconds."""
        with self._lock:
            follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()

    def events(self, since: int | None = None) -> Events:
        """Return events as they happen, for ``for`` as well as ``async for``.

        Args:
            since: Begin with those still known that follow this number.
        """
        return Events(self.client.events(since))

    def _hear(self, client: Client, event: EventInfo) -> None:
        """Call back for an event of a GPU, with what is shown of that by now."""
        uuid = event.fields.get("gpu")
        if not isinstance(uuid, str) or not self._callbacks.wanted(event):
            return
        with contextlib.suppress(SentinelError):  # it may be gone by now: then as it was seen last
            self._seen[uuid] = client.gpu(uuid)
        gpu = self._seen.get(uuid)
        if gpu is not None:
            self._callbacks.call(gpu, event)

    # --- beginning ---------------------------------------------------------------------------

    def _begin(self) -> Client:
        """Return what talks to a daemon that runs, or to a sentinel that is started for it."""
        client = self._connect()
        if self._embedded is None:
            with contextlib.suppress(NotRunningError):
                client.health()
                return client
        elif not self._embedded:
            return client
        if self._failed is not None and time.monotonic() - self._failed[0] < _AGAIN:
            raise self._failed[1]
        try:
            return self._embed()
        except (SentinelError, OSError) as error:
            self._own.close()
            known = error if isinstance(error, SentinelError) else ServiceError(str(error))
            self._failed = time.monotonic(), known
            raise known from error

    def _embed(self) -> Client:
        """Start a sentinel that only watches, and return once it has read every GPU."""
        held = self._own.enter_context(own_sentinel(["--monitor", *self._flags]))
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(NotRunningError, TimedOutError, ServiceError):
                gpus = held.status().gpus
                if gpus and all(gpu.read_s is not None for gpu in gpus):
                    return held.client
            held.check()
            time.sleep(_EVERY)
        raise TimedOutError(f"no GPU could be read within {format_duration(_PATIENCE)}")
