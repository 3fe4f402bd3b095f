"""Monitor the GPUs of a host, with or without a daemon, with callbacks for events."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from sentinel.client.client import Client, connect
from sentinel.client.event_stream import Callback, Callbacks, EventInfo, EventStream, Follower
from sentinel.client.hold import Hold, flags_of
from sentinel.client.requester import number_of, text_of
from sentinel.client.verbs import AllocationVerbs
from sentinel.errors import ConfigError, NotRunningError, SentinelError, ServiceError
from sentinel.protocol.api_types import GpuStatus, Outcome
from sentinel.protocol.history_types import PastReading, TemperatureTrend
from sentinel.protocol.views import is_throttled

C = TypeVar("C", bound=Callback)

#: The time for a private sentinel to read every GPU: a driver without persistence mode takes up to
#: 3 s for each.
_START_TIMEOUT_S = 60.0
#: Ten years, further back than any history.
_MAX_MINUTES = 3650 * 24 * 60
#: The pause after a failed start.
_RETRY_S = 30.0


class Monitor(AllocationVerbs):
    """The GPUs of this host, read by a daemon or by a private sentinel that occupies none.

    Starts and connects at the first verb. Safe to use from many threads. Its thread and its private
    sentinel end with the ``with`` block, by :meth:`close`, or with the script.

    Every verb except :meth:`is_available` raises a :class:`~sentinel.errors.SentinelError` if there
    is no daemon, no driver or no GPU. A GPU is selected by nvidia-smi's index, by a UUID or its
    unique prefix, or by a PCI address.

    Args:
        socket: The path of the daemon's socket; the default is ``$SENTINEL_SOCKET``, or the
            standard path.
        embedded: Whether to start a private sentinel; ``None`` means if no daemon runs, and none
            is given by ``socket`` or ``tcp``.
        tcp: ``host:port`` of a daemon.
        token: The file with the token for ``tcp``.
        simulate: The number of simulated GPUs for a private sentinel.
        flags: Further flags of ``sentinel run`` for a private sentinel.
        timeout: Seconds until a response must be complete.
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
        has_address = socket is not None or tcp is not None
        if embedded and has_address:
            raise ConfigError("embedded: a private sentinel cannot be combined with socket or tcp")
        self._embedded = False if embedded is None and has_address else embedded
        self._connect: Callable[[], Client] = lambda: connect(
            socket, tcp=tcp, token=token, timeout=timeout
        )
        simulated = [] if simulate is None else ["--simulate", text_of(simulate, "simulate")]
        self._flags = [*simulated, *flags_of(flags)]
        self._lock = threading.RLock()
        self._resources = contextlib.ExitStack()
        weakref.finalize(self, self._resources.close)  # also at the end of the script
        self._client: Client | None = None
        self._failed: tuple[float, SentinelError] | None = None
        self._follower: Follower | None = None
        self._callbacks = Callbacks()
        self._last_states: dict[str, GpuStatus] = {}
        self.reason = ""
        """Why the last :meth:`is_available` was False; empty if it was True."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and the private sentinel; the next verb starts again."""
        self.stop()
        with self._lock:
            self._client = self._failed = None
            self._resources.close()

    @property
    def client(self) -> Client:
        """The client of the daemon or the private sentinel, with all other verbs.

        Raises:
            SentinelError: There is no daemon, and no sentinel can be started.
        """
        with self._lock:
            if self._client is None:
                self._client = self._start_client()
            return self._client

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Send a request to the daemon or the private sentinel; see :class:`sentinel.Client`."""
        return self.client.request(method, path, body, wait=wait)

    # --- state -------------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Check whether a GPU can be read; if not, ``reason`` has the cause.

        It never raises: without a GPU or a driver, the result is False.
        """
        try:
            gpus = self.status_all()
        except (SentinelError, OSError) as error:
            self.reason = str(error)
            return False
        unreadable = [
            f"GPU {gpu.index}: {gpu.reason}" for gpu in gpus if gpu.occupancy == "UNKNOWN"
        ]
        if len(unreadable) == len(gpus):
            self.reason = "; ".join(unreadable) or "there is no GPU"
            return False
        self.reason = ""
        return True

    def status(self, gpu: str | int = 0) -> GpuStatus:
        """Read the state of one GPU.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        return self.client.gpu(gpu)

    def status_all(self) -> tuple[GpuStatus, ...]:
        """Read the state of all GPUs."""
        return self.client.status().gpus

    def history(self, gpu: str | int = 0, minutes: float = 10) -> tuple[PastReading, ...]:
        """List the readings of a GPU in the last minutes, oldest first.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        number_of(minutes, "minutes", "a number of minutes")
        return self.client.history(gpu, f"{max(1, round(60 * min(minutes, _MAX_MINUTES)))}s")

    def trend(self, gpu: str | int = 0, minutes: int = 5) -> TemperatureTrend:
        """Compute the trend of a GPU's temperature: rising, falling, stable, varying or unknown.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        return self.client.trend(gpu, minutes)

    def speed_multiplier(self, gpu: str | int = 0) -> float:
        """Read the share of full speed that a GPU's health permits: 1, 0.8, 0.5 or 0.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        return self.status(gpu).multiplier

    def should_throttle(self, gpu: str | int = 0) -> bool:
        """Check whether work on a GPU should be slowed down: its multiplier is 0.5 or 0.

        A normal GPU, with 0.8, is not throttled: under load it may stay normal, so that a loop that
        waits for ``should_throttle`` would not end.

        Raises:
            NoSuchGpuError: The GPU does not exist.
        """
        return is_throttled(self.speed_multiplier(gpu))

    # --- settings ----------------------------------------------------------------------------

    def update_config(self, settings: Mapping[str, object]) -> Outcome:
        """Change single settings, all of them or none, and keep the others.

        Args:
            settings: New values by key, such as ``{"throttle.temp_critical_from": 80}``; ``None``
                removes the value of a flag or of an earlier call.

        Raises:
            ConfigError: A setting is unknown or a value is invalid; nothing has changed.
        """
        return self.client.set(settings)

    # --- events ------------------------------------------------------------------------------

    @overload
    def on(self, name: str) -> Callable[[C], C]: ...
    @overload
    def on(self, name: str, callback: C) -> C: ...
    def on(self, name: str, callback: C | None = None) -> C | Callable[[C], C]:
        """Call a callback at each event with a name, after :meth:`start`; also a decorator.

        Its arguments are the GPU's current state and the event. One thread makes all calls in turn,
        so a slow callback delays the next. Exceptions are logged and counted in ``errors``.

        Args:
            name: ``state_change``, ``throttle``, ``resume``, ``critical`` or ``overheat`` of a
                GPU's health; ``yield`` when a newcomer appears on an occupied GPU,
                ``handed_over`` when the GPU is free for it; ``busy`` and ``idle``; or the name of
                any event about a GPU. Events about the host are in :meth:`events`.
            callback: The callback; without it, the decorated function.

        Raises:
            ConfigError: The name is unknown or that of an event about the host, or the callback
                does not take a GPU and an event.
        """

        def register(function: C) -> C:
            self._callbacks.add(name, function)
            return function

        return register if callback is None else register(callback)

    def off(self, name: str, callback: Callback) -> None:
        """Remove a callback, if it was added.

        Raises:
            ConfigError: As for :meth:`on`, for the name.
        """
        self._callbacks.remove(name, callback)

    @property
    def errors(self) -> int:
        """The number of callbacks that raised an exception."""
        return self._callbacks.errors

    @property
    def running(self) -> bool:
        """Whether events call callbacks."""
        return self._follower is not None and self._follower.alive

    def start(self) -> None:
        """Start to call callbacks; no later event is missed. Has no effect if it runs already.

        It continues after a restart of the daemon.
        """
        with self._lock:
            if self.running:
                return
            client = self.client
            self._last_states = {gpu.uuid: gpu for gpu in client.status().gpus}
            follower = Follower(client.events, functools.partial(self._dispatch, client))
            follower.start()
            self._follower = follower

    def stop(self) -> None:
        """Stop to call callbacks; waits some seconds for a running one."""
        with self._lock:
            follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()

    def events(self, since: int | None = None) -> EventStream:
        """Follow events, for ``for`` as well as ``async for``.

        Args:
            since: Start with the kept events after this number.
        """
        return self.client.events(since)

    def _dispatch(self, client: Client, event: EventInfo) -> None:
        """Call the callbacks for an event of a GPU, with the GPU's current state."""
        uuid = event.gpu
        if uuid is None or not self._callbacks.has_any(event):
            return
        with contextlib.suppress(SentinelError):  # the GPU may be gone: then its last state is used
            self._last_states[uuid] = client.gpu(uuid)
        gpu = self._last_states.get(uuid)
        if gpu is not None:
            self._callbacks.call(gpu, event)

    # --- the client --------------------------------------------------------------------------

    def _start_client(self) -> Client:
        """Create the client of a running daemon or of a new private sentinel."""
        client = self._connect()
        if self._embedded is None:
            with contextlib.suppress(NotRunningError):
                client.health()
                return client
        elif not self._embedded:
            return client
        if self._failed is not None and time.monotonic() - self._failed[0] < _RETRY_S:
            raise self._failed[1]
        try:
            return self._embed()
        except (SentinelError, OSError) as error:
            self._resources.close()
            failure = error if isinstance(error, SentinelError) else ServiceError(str(error))
            self._failed = time.monotonic(), failure
            raise failure from error

    def _embed(self) -> Client:
        """Start a private sentinel that only monitors, and wait until it has read every GPU."""
        held = self._resources.enter_context(Hold(["--monitor", *self._flags]))
        held.wait_read(_START_TIMEOUT_S)
        return held.client
