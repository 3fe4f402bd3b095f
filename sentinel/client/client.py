"""The client of a daemon: one method for each verb of the API."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from sentinel.client.event_stream import EventInfo, EventStream
from sentinel.client.requester import (
    WAIT_S,
    Gpus,
    Requester,
    decode,
    find_address,
    named,
    number_of,
    path_part,
    query_of,
    selector_of,
    selectors,
    texts_of,
)
from sentinel.client.transport import describe, exit_check, process_check
from sentinel.client.verbs import AllocationVerbs, HistoryVerbs, ReservationVerbs, SessionVerbs
from sentinel.errors import (
    ConfigError,
    ConnectionLostError,
    MemoryHeldError,
    NotRunningError,
    SentinelError,
    ServiceError,
    TimedOutError,
)
from sentinel.protocol import api_types
from sentinel.protocol.api_types import (
    BurninInfo,
    BurninStarted,
    GpuStatus,
    Outcome,
    RepairOutcome,
    Settings,
)
from sentinel.protocol.commands import EarlierWork
from sentinel.protocol.problem import Code
from sentinel.units import MAX_TIME_S, format_duration, format_indices

#: How long a daemon may take to start again, and how often that is checked, in seconds.
START_S, _POLL_S = 90.0, 0.02
#: How long a daemon that ends may run after its API does not take commands any more, in seconds.
_LAST_MOMENTS_S = 3.0
#: The outcome of a stop that was waited for, without and with the word of the daemon.
_ENDED, _ALL_FREE = "the daemon has ended", "all GPUs are free, the daemon has ended"
#: How long its last event may come after its end, in seconds.
_LAST_EVENT_S = 1.0


def connect(
    socket: str | Path | None = None,
    *,
    tcp: str | None = None,
    token: str | Path | None = None,
    timeout: float = 10.0,
    simulated: Path | None = None,
) -> Client:
    """Create a client of the daemon; it sends nothing before the first verb.

    Args:
        socket: The path of the daemon's socket; the default is ``$SENTINEL_SOCKET``, or the
            standard path.
        tcp: ``host:port`` instead of a socket.
        token: The file with the token for ``tcp``.
        timeout: Seconds until a response must be complete, in addition to the wait of a verb.
        simulated: The folder of simulated GPUs, for a daemon that uses those.

    Raises:
        ConfigError: ``tcp`` is not an address, or the token cannot be read.
    """
    return Client(find_address(socket, tcp=tcp, token=token, simulated=simulated), timeout=timeout)


@dataclass(frozen=True, kw_only=True)
class Status(api_types.Status):
    """The daemon, its GPUs, reservations and allocations."""

    #: The response as it came, with fields that this version does not know.
    json: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


class Client(Requester, AllocationVerbs, HistoryVerbs, ReservationVerbs, SessionVerbs):
    """The verbs of a daemon, one request each; safe to use from many threads.

    GPUs are selected by nvidia-smi's index, by a UUID or its unique prefix, or by a PCI address;
    an empty selection means all GPUs. Times are seconds.

    Every verb raises :class:`~sentinel.errors.NotRunningError` if no daemon listens,
    :class:`~sentinel.errors.AccessDeniedError` if the user has no access,
    :class:`~sentinel.errors.TimedOutError` if the response is late, and
    :class:`~sentinel.errors.ServiceError` if the connection breaks or the response is invalid.

    Args:
        address: The daemon's address.
        timeout: Seconds until a response must be complete, in addition to the wait of a verb.
    """

    # --- state -------------------------------------------------------------------------------

    def status(self) -> Status:
        """Read the state of the daemon, its GPUs, reservations, allocations and sessions."""
        response = self.request("GET", "/v1/status")
        return decode(Status, {**response, "json": response})

    def gpu(self, selector: str | int) -> GpuStatus:
        """Read the state of one GPU.

        Raises:
            NoSuchGpuError: ``selector`` matches no GPU, or several.
        """
        return self.fetch(GpuStatus, "GET", f"/v1/gpus/{path_part(selector_of(selector), 'gpu')}")

    def health(self) -> bool:
        """Check whether the daemon's state is recent."""
        try:
            self.request("GET", "/v1/health")
        except ServiceError:
            return False
        return True

    def events(self, since: int | None = None, daemon: str | None = None) -> EventStream:
        """Follow events, starting with the kept ones after number ``since``.

        An event ``lost`` counts events that this client was too slow for. The stream ends with the
        daemon, or when any thread closes it.

        Args:
            since: The number of an event; the default follows from now on.
            daemon: The daemon that numbered it, from that stream. Numbers are per daemon: for
                another daemon's number, the stream starts with all kept events.

        Raises:
            SentinelError: As for every verb; also if the connection breaks.
        """
        return EventStream(self.address, since, daemon, timeout=self._timeout)

    # --- the daemon --------------------------------------------------------------------------

    def stop(self, wait: float = WAIT_S) -> Outcome:
        """Release all GPUs and end the daemon; returns when its process has ended.

        Raises:
            MemoryHeldError: It has ended, and what a stressor has left still uses memory.
            TimedOutError: It still runs after ``wait`` seconds. 0 does not wait.
        """
        number_of(wait, "wait")
        if not wait:
            return self._command("/v1/stop", {})
        has_exited = None
        with _LastEvent(self.events()) as last:
            try:
                has_exited = exit_check(self, self.status().daemon.pid)
                last.follow()
                outcome = self._command("/v1/stop", {})
            except SentinelError as error:
                # Another client may have stopped it: then it ends now.
                gone = isinstance(error, ConnectionLostError) or error.code == Code.UNAVAILABLE
                gone |= isinstance(error, NotRunningError) and has_exited is not None
                if not gone:
                    raise
                check = has_exited or exit_check(self, 0)
                try:
                    self._wait_until(check, min(wait, _LAST_MOMENTS_S), "ended")
                except TimedOutError:
                    raise error from None
                outcome = Outcome(text="")
            else:
                self._wait_until(has_exited, wait, "ended")
            return replace(outcome, text=_outcome_of(last.read()))

    def restart(self, wait: float = START_S) -> Outcome:
        """End the daemon and start it again with its arguments; returns when it answers again.

        Raises:
            ConflictError: systemd runs the daemon.
            ServiceError: The daemon has ended, and did not start again.
            TimedOutError: It does not answer after ``wait`` seconds. 0 does not wait.
        """
        before = self.status().daemon if number_of(wait, "wait") else None
        has_exited = None if before is None else process_check(self, before.pid)
        outcome = self._command("/v1/restart", {})

        def has_started() -> bool:
            if before is None or self._is_later(before.since):
                return True
            if has_exited is not None and has_exited():
                what = f"the daemon at {self.address} did not start again"
                raise ServiceError(what, "Its log has the reason: sentinel logs")
            return False

        self._wait_until(has_started, wait, "started")
        return outcome

    def _wait_until(self, is_done: Callable[[], bool], wait: float, what: str) -> None:
        """Poll until something is done.

        Raises:
            TimedOutError: It is not, after ``wait`` seconds.
        """
        deadline = time.monotonic() + wait
        while not is_done():
            if time.monotonic() > deadline:
                late = f"has not {what} within {format_duration(wait)}"
                raise TimedOutError(f"the daemon at {self.address} {late}")
            time.sleep(_POLL_S)

    def _is_later(self, since: datetime) -> bool:
        """Check whether a daemon answers that started later."""
        try:
            return self.status().daemon.since > since
        except SentinelError:
            return False

    def settings(self) -> Settings:
        """Read all settings of the daemon, and the source of each."""
        return self.fetch(Settings, "GET", "/v1/settings")

    def set(
        self, settings: Mapping[str, object], gpus: Gpus | None = None, *, save: bool = False
    ) -> Settings:
        """Change single settings and keep all others; unaffected stressors continue.

        Args:
            settings: New values by key, as text or numbers; ``None`` removes a flag.
            gpus: Only for these GPUs; the default is the daemon as a whole.
            save: Keep the change over a restart of the daemon; what is fixed at its start changes
                with the next one.

        Raises:
            ConfigError: A setting is invalid; nothing has changed.
            NoSuchGpuError: A GPU does not exist.
        """
        body = {"settings": texts_of(settings), "gpus": selectors(gpus), "save": save or None}
        return self.fetch(Settings, "PATCH", "/v1/settings", body)

    def reload(self) -> Outcome:
        """Reread the settings, and apply all of them or none.

        Raises:
            ConfigError: A setting is invalid; nothing has changed.
        """
        return self._command("/v1/reload", {})

    # --- the burn-in -------------------------------------------------------------------------

    def start_burnin(
        self,
        plan: str,
        gpus: Gpus | None = None,
        *,
        fail_fast: bool = False,
        bound: bool = False,
        done: Mapping[str, EarlierWork] | None = None,
    ) -> BurninInfo:
        """Take GPUs through the plan of a burn-in; the status and the events have its progress.

        Args:
            plan: The plan as TOML.
            gpus: The GPUs; the default is all.
            fail_fast: A GPU on which an error was found does no more of the plan.
            bound: End it with this process; not over TCP.
            done: What GPUs have done of the plan before, by UUID; the others begin it.

        Raises:
            ConfigError: The plan is invalid.
            ConflictError: Another burn-in runs.
            NoSuchGpuError: A GPU does not exist.
        """
        try:
            earlier = {
                uuid: {"phase": work.phase, "work": vars(work.work)}
                for uuid, work in (done or {}).items()
            }
        except (AttributeError, TypeError):
            raise ConfigError(f"done: {describe(done)} is not earlier work by UUID") from None
        body = {
            "plan": plan,
            "gpus": selectors(gpus),
            "fail_fast": fail_fast,
            "bound": bound,
            "done": earlier or None,
        }
        return self.fetch(BurninStarted, "POST", "/v1/burnin", body).burnin

    def cancel_burnin(self, id_: str | None = None, reason: str | None = None) -> Outcome:
        """End the burn-in.

        Args:
            id_: Its id; by default, that of the one that runs.
            reason: Why, for the report; by default, that this user has cancelled it.

        Raises:
            ServiceError: None runs, or another one.
        """
        return self.fetch(Outcome, "DELETE", f"/v1/burnin{query_of(id=id_, reason=reason)}")

    # --- GPUs --------------------------------------------------------------------------------

    def pause(
        self,
        gpus: Gpus | None = None,
        *,
        seconds: float | None = None,
        release: bool = False,
        wait: float = WAIT_S,
    ) -> Outcome:
        """Release GPUs and do not occupy them, until they are resumed or for ``seconds``.

        Args:
            gpus: The GPUs; the default is all.
            seconds: The duration of the pause.
            release: Release the driver as well, for a reset or an upgrade; pauses all GPUs.
            wait: Seconds until the memory must be free; 0 does not wait.

        Raises:
            NoSuchGpuError: A GPU does not exist.
            TimedOutError: Memory is still held.
        """
        body = {
            "gpus": selectors(gpus),
            "seconds": seconds,
            "release": release or None,
            "wait_s": min(number_of(wait, "wait"), MAX_TIME_S),
        }
        return self._command("/v1/pause", body, wait=wait)

    def resume(self, gpus: Gpus | None = None) -> Outcome:
        """End the pause of GPUs; the default is all.

        Raises:
            NoSuchGpuError: A GPU does not exist.
        """
        return self._command("/v1/resume", {"gpus": selectors(gpus)})

    def acknowledge(self, gpus: Gpus, reason: str, outcome: RepairOutcome | None = None) -> Outcome:
        """Take the wrong results of repaired GPUs as known: they no longer count as a fault.

        They stay counted and recorded. A later wrong result counts again.

        Args:
            gpus: The GPUs by index, UUID or serial number, also those that are missing now.
            reason: Why they no longer count, in one line.
            outcome: What became of them: confirmed, not-found or replaced; None if it is not
                known. A confirmed fault is also taken of a GPU without wrong results.

        Raises:
            ConflictError: No wrong results count against these GPUs.
            NoSuchGpuError: A GPU is not known.
        """
        body = {"gpus": named(gpus), "reason": reason, "outcome": outcome}
        return self._command("/v1/acknowledge", body)

    def _command(self, path: str, body: Mapping[str, Any], *, wait: float = 0.0) -> Outcome:
        return self.fetch(Outcome, "POST", path, body, wait=wait)


class _LastEvent:
    """Follows a daemon until its last event, in a thread; without its events, it knows none."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._found: EventInfo | None = None
        self._thread = threading.Thread(target=self._follow, name="last-event", daemon=True)

    def __enter__(self) -> Self:
        return self

    def follow(self) -> None:
        """Begin, once the daemon has answered."""
        with contextlib.suppress(SentinelError, OSError):
            self._events.open()
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._events.close()

    def _follow(self) -> None:
        with contextlib.suppress(SentinelError, OSError):
            for event in self._events:
                if event.name == "sentinel.stopped":
                    self._found = event

    def read(self) -> EventInfo | None:
        """Return the last event of a daemon that has ended."""
        if self._thread.ident is not None:
            self._thread.join(_LAST_EVENT_S)
        return self._found


def _outcome_of(last: EventInfo | None) -> str:
    """Describe the end of a daemon by its last event.

    Raises:
        MemoryHeldError: What a stressor has left still uses memory.
    """
    if last is None or "held" not in last.fields:  # of a former version
        return _ENDED
    held = last.fields["held"]
    if not held:
        return _ALL_FREE
    raise MemoryHeldError(
        f"{_ENDED}, but memory of GPU {format_indices(held)} is still in use: a stressor left it",
        "See which process keeps it: sentinel doctor",
    )
