"""The client: what can be asked of a daemon, one method for each verb."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sentinel.client.allocations import Allocating
from sentinel.client.event_stream import EventStream
from sentinel.client.history import Recorded
from sentinel.client.transport import Address, ask, departure
from sentinel.client.types import (
    SCHEMA_VERSION,
    GpuStatus,
    Outcome,
    ReservationInfo,
    Status,
    read,
    read_list,
)
from sentinel.errors import ConfigError, ServiceError, TimedOutError
from sentinel.host.paths import find_socket
from sentinel.units import format_duration

#: How long the daemon may take to let go of GPUs, or to find some, where nothing else is said.
WAIT = 30.0

Gpus = Sequence[str | int]


def connect(
    socket: str | Path | None = None,
    *,
    tcp: str | None = None,
    token: str | Path | None = None,
    timeout: float = 10.0,
    simulated: Path | None = None,
) -> Client:
    """Return a client of the daemon; nothing is sent before the first verb.

    Args:
        socket: The path of its socket; otherwise ``$SENTINEL_SOCKET``, or the usual place.
        tcp: ``host:port`` instead of a socket.
        token: The file with the token for ``tcp``.
        timeout: Seconds that an answer may take, beyond what the verb itself waits for.
        simulated: The folder of simulated GPUs, for the daemon that holds those.

    Raises:
        ConfigError: ``tcp`` is not an address, or the token cannot be read.
    """
    if tcp is None:
        path = find_socket(None if socket is None else str(socket), simulated)
        return Client(Address(socket=path), timeout=timeout)
    host, _, port = tcp.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{tcp!r} is not an address; write one such as 127.0.0.1:8765")
    host = host.removeprefix("[").removesuffix("]")
    return Client(Address(host=host, port=int(port), token=_read_token(token)), timeout=timeout)


def _read_token(file: str | Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token cannot be read from {file}: {error}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"there is no token in {file}")
    return token


class Client(Allocating, Recorded):
    """The verbs of a daemon, each one request; safe to use from many threads.

    GPUs are named by nvidia-smi's index, by a UUID or its unique beginning, or by a PCI address;
    no GPU at all means all of them. Times are seconds.

    Every verb raises :class:`~sentinel.errors.NotRunningError` where no daemon listens,
    :class:`~sentinel.errors.AccessDeniedError` where this user may not,
    :class:`~sentinel.errors.TimedOutError` where it did not answer in time, and
    :class:`~sentinel.errors.ServiceError` where it went away or made no sense.

    Args:
        address: Where the daemon is.
        timeout: Seconds that an answer may take, beyond what the verb itself waits for.
    """

    def __init__(self, address: Address, *, timeout: float = 10.0) -> None:
        self.address = address
        self._timeout = timeout

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Return the JSON object that the daemon answers to any request.

        Raises:
            SentinelError: As every verb; one of the kinds in :mod:`sentinel.errors`.
        """
        answer = ask(self.address, method, path, body, self._timeout + wait)
        version = answer.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ServiceError(
                f"the daemon at {self.address} answers in version {version!r} of its language, "
                f"and {SCHEMA_VERSION} is known here",
                "Use the client that was installed with it.",
            )
        return answer

    # --- looking -----------------------------------------------------------------------------

    def status(self) -> Status:
        """Return everything that the daemon shows."""
        answer = self.request("GET", "/v1/status")
        read_status = read(Status, answer, "status")
        return Status(
            daemon=read_status.daemon,
            gpus=read_status.gpus,
            reservations=read_status.reservations,
            allocations=read_status.allocations,
            json=answer,
        )

    def gpu(self, selector: str | int) -> GpuStatus:
        """Return one GPU.

        Raises:
            NoSuchGpuError: ``selector`` names none, or several.
        """
        answer = self.request("GET", f"/v1/gpus/{quote(str(selector), safe='')}")
        return read(GpuStatus, answer, "gpu")

    def reservations(self) -> tuple[ReservationInfo, ...]:
        """Return all reservations that hold."""
        answer = self.request("GET", "/v1/reservations")
        return read_list(ReservationInfo, answer.get("reservations"), "reservations")

    def health(self) -> bool:
        """Return whether what the daemon shows is fresh."""
        try:
            self.request("GET", "/v1/health")
        except ServiceError:
            return False
        return True

    def events(self, since: int | None = None, daemon: str | None = None) -> EventStream:
        """Yield events as they happen, after those still known that follow number ``since``.

        An event ``lost`` counts what came too fast for this reader. Ends where the daemon does, or
        where any thread closes it.

        Args:
            since: The number; without, from now on.
            daemon: Whose number that is, from the stream that it came by. Each daemon counts anew,
                so after one of another daemon's come all that are known.

        Raises:
            SentinelError: As every verb; also where the daemon goes away in the middle.
        """
        return EventStream(self.address, since, daemon, timeout=self._timeout)

    # --- the daemon --------------------------------------------------------------------------

    def start(self) -> Outcome:
        """Occupy idle GPUs from now on."""
        return self._do("/v1/start", {})

    def stop(self, wait: float = WAIT) -> Outcome:
        """Let go of every GPU; the daemon stays. Returns once all their memory is back.

        Raises:
            TimedOutError: It was not, after ``wait`` seconds. 0 does not wait.
        """
        return self._do("/v1/stop", {"wait_s": wait}, wait=wait)

    def restart(self, settings: Mapping[str, str] | None = None) -> Outcome:
        """Take over new settings, and occupy anew with them.

        Args:
            settings: What replaces the flags that the daemon was started with, by key; ``None``
                keeps them and reads the file anew.

        Raises:
            ConfigError: A setting is not allowed; nothing has changed.
        """
        body = {"settings": None if settings is None else dict(settings)}
        return self._do("/v1/restart", body)

    def configure(self, settings: Mapping[str, str | None]) -> Outcome:
        """Change single settings and keep all others; nothing is let go of that need not be.

        Args:
            settings: What is to hold instead, by key; ``None`` takes a flag back.

        Raises:
            ConfigError: A setting is not allowed; nothing has changed.
        """
        return read(
            Outcome, self.request("PATCH", "/v1/settings", {"settings": settings}), "answer"
        )

    def reload(self) -> Outcome:
        """Read the settings anew and take over all of them, or none.

        Raises:
            ConfigError: One is not allowed; nothing has changed.
        """
        return self._do("/v1/reload", {})

    def shutdown(self, wait: float = WAIT) -> Outcome:
        """Let go of every GPU and end the daemon; returns once its process is gone.

        Raises:
            TimedOutError: It was not, after ``wait`` seconds. 0 does not wait.
        """
        until = time.monotonic() + wait
        end = departure(self, self.status().daemon.pid) if wait else None
        outcome = self._do("/v1/shutdown", {})
        while end is not None and not end():
            if time.monotonic() > until:
                raise TimedOutError(
                    f"the daemon at {self.address} has not ended within {format_duration(wait)}"
                )
            time.sleep(0.02)
        return outcome

    # --- handing over ------------------------------------------------------------------------

    def pause(
        self,
        gpus: Gpus = (),
        *,
        seconds: float | None = None,
        release: bool = False,
        wait: float = WAIT,
    ) -> Outcome:
        """Let go of these GPUs and keep off, until resumed or for so many seconds.

        Args:
            gpus: Which; none means all.
            seconds: For how long.
            release: Let go of the driver as well, for a reset or an upgrade; for all GPUs at once.
            wait: Seconds that it may take until their memory is back; 0 does not wait.

        Raises:
            NoSuchGpuError: One is not there.
            TimedOutError: Something is still held.
        """
        body: dict[str, Any] = {"gpus": _named(gpus), "seconds": seconds, "wait_s": wait}
        if release:
            body["release"] = True
        return self._do("/v1/pause", body, wait=wait)

    def resume(self, gpus: Gpus = ()) -> Outcome:
        """End the pause of these GPUs, of all where none is named.

        Raises:
            NoSuchGpuError: One is not there.
        """
        return self._do("/v1/resume", {"gpus": _named(gpus)})

    def reserve(
        self,
        gpus: Gpus | int,
        *,
        reason: str = "",
        seconds: float | None = None,
        wait: float = WAIT,
        bound: bool = False,
    ) -> ReservationInfo:
        """Keep GPUs free for you, and return once their memory really is.

        Args:
            gpus: How many, or which.
            reason: What others are told.
            seconds: For how long at most; until :meth:`unreserve` without.
            wait: Seconds that it may take until there are so many and their memory is free.
            bound: End it with this process; not over TCP.

        Raises:
            NoSuchGpuError: One is not there.
            ConflictError: They are not to be had; says who holds what.
            TimedOutError: They were not free in time; nothing is reserved.
        """
        chosen = {"count": gpus} if isinstance(gpus, int) else {"gpus": _named(gpus)}
        body = {**chosen, "reason": reason, "seconds": seconds, "wait_s": wait, "bound": bound}
        given = {key: value for key, value in body.items() if value is not None}
        answer = self.request("POST", "/v1/reservations", given, wait=wait)
        return read(ReservationInfo, answer.get("reservation"), "reservation")

    def unreserve(self, id: str) -> Outcome:  # noqa: A002 - as it is called everywhere
        """End a reservation.

        Raises:
            ServiceError: There is none of this name.
        """
        return self._do(f"/v1/reservations/{quote(id, safe='')}", None, method="DELETE")

    def _do(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        method: str = "POST",
        wait: float = 0.0,
    ) -> Outcome:
        """Send an order; what is ``None`` in it is left out."""
        given = body and {key: value for key, value in body.items() if value is not None}
        return read(Outcome, self.request(method, path, given, wait=wait), "answer")


def _named(gpus: Gpus) -> list[str] | None:
    """Return the selectors as the daemon takes them; a comma list is several."""
    return [part.strip() for gpu in gpus for part in str(gpu).split(",")] or None
