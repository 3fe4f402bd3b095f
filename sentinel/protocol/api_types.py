"""The API's responses: the API server sends these dataclasses, and the client decodes them.

Sizes are bytes, shares are of 1. Suffixes of names: ``_s`` seconds, ``_c`` degrees Celsius, ``_w``
watts, ``_mhz`` megahertz. ``None`` (JSON: null) is a value that is not known. ``description`` in a
field's metadata goes into the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from sentinel.errors import NotRunningError, ServiceError
from sentinel.protocol import SCHEMA_VERSION
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import HeldGpu, TelemetryFields
from sentinel.protocol.views import (
    BurninFields,
    GpuFields,
    HandoverTimes,
    VerifiedCounts,
    described,
)


class ResponseType:
    """Base of all types in a response."""

    #: Read by pydantic, which FastAPI uses: a response has every field, also those with a default.
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "json_schema_serialization_defaults_required": True
    }


@dataclass(frozen=True, kw_only=True)
class ResponseModel(ResponseType):
    """Base of whole responses."""

    schema_version: Literal[1] = field(default=SCHEMA_VERSION, init=False)


# --- GPUs ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Process(ResponseType):
    """One process on a GPU."""

    pid: int
    #: NVML's list that has the process: compute, mps or graphics.
    kind: str = "compute"
    memory: int | None = None
    name: str | None = None
    user: str | None = None
    #: The beginning of its command line.
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuTelemetry(TelemetryFields, ResponseType):
    """Telemetry of a GPU, `age_s` seconds old; null is not available."""

    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Handover(HandoverTimes, ResponseType):
    """The last hand-over of a GPU. Durations are seconds from the first evidence."""

    #: Time since the first evidence of the newcomer.
    ago_s: float


@dataclass(frozen=True, kw_only=True)
class BurninProgress(BurninFields, ResponseType):
    """How far a GPU is in a burn-in."""


class RepairOutcome(StrEnum):
    """What became of a GPU whose wrong results are acknowledged."""

    CONFIRMED = "confirmed"
    """Its vendor, or a test elsewhere, has confirmed the fault."""
    NOT_FOUND = "not-found"
    """No fault was found elsewhere."""
    REPLACED = "replaced"
    """It or its board was replaced, and not examined."""


@dataclass(frozen=True, kw_only=True)
class AcknowledgedResults(ResponseType):
    """Wrong results of a GPU, or its faults, that no longer count, as an administrator has said."""

    at: datetime
    #: The user who acknowledged them, or else the transport.
    by: str
    reason: str
    #: How many of the GPU's errors and findings it is about, without those of earlier ones.
    errors: int
    findings: int
    outcome: RepairOutcome | None = field(
        default=None, metadata=described("What became of the GPU; null if it is not known.")
    )


@dataclass(frozen=True, kw_only=True)
class GpuProof(VerifiedCounts, ResponseType):
    """Work of which results were checked, under all daemons with this state directory."""

    #: Since when it is counted.
    since: datetime
    #: The end of the last of it, and its workload; None if there was none.
    last: datetime | None = None
    workload: str | None = None
    acknowledged: tuple[AcknowledgedResults, ...] = field(
        default=(),
        metadata=described("Errors and findings that no longer count; all of them stay counted."),
    )

    @property
    def wrong(self) -> int:
        """The errors and findings that are not acknowledged."""
        known = sum(results.errors + results.findings for results in self.acknowledged)
        return self.errors + self.findings - known


@dataclass(frozen=True, kw_only=True)
class GpuVerdict(ResponseType):
    """The verdict of the last burn-in that the state directory knows."""

    #: PASS, WARN, INCOMPLETE, FAIL or N/A.
    verdict: str
    #: The name of the plan.
    plan: str
    #: The id of the run.
    run: str
    #: When it ended; None if it was cut off before its first event.
    ended: datetime | None = None
    #: Why it proves nothing, such as that it was too short, or null.
    no_proof: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuStatus(GpuFields, ResponseType):
    """One GPU. Times ending in `_s` are seconds, memory is bytes, null is not known."""

    gpu: str = field(default="", metadata=described("The shortest unique prefix of the UUID."))
    #: How long ``stressor`` has had its state.
    since_s: float | None = None
    #: Time since the last reading.
    read_s: float | None = None
    #: Time until the pause or reservation ends.
    until_s: float | None = None
    rule_until_s: float | None = field(
        default=None,
        metadata=described("Time until `rule` may decide otherwise, as far as it is known."),
    )
    #: The foreign processes.
    processes: tuple[Process, ...] = ()
    stressor_user: str | None = field(
        default=None, metadata=described("The user of the stressor's process.")
    )
    handover: Handover | None = None
    health_since_s: float | None = None
    allocated_processes: tuple[Process, ...] = field(
        default=(), metadata=described("Processes with an allocation.")
    )
    telemetry: GpuTelemetry | None = None
    burnin: BurninProgress | None = None
    verified: GpuProof | None = None
    verdict: GpuVerdict | None = None

    @property
    def standing_findings(self) -> int:
        """How many findings count: those that are not acknowledged."""
        return self.findings - self.findings_acknowledged

    @property
    def occupied(self) -> bool:
        """Whether a stressor is running."""
        return self.stressor == "RUNNING"


@dataclass(frozen=True, kw_only=True)
class SingleGpu(GpuStatus, ResponseModel):
    """The requested GPU."""


# --- reservations and allocations ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Holder(ResponseType):
    """The process that made a reservation or an allocation, as far as the socket identifies it."""

    uid: int | None = None
    #: The name of that user.
    user: str | None = None
    pid: int | None = None
    #: The name of the process.
    name: str | None = None


class Held(ResponseType):
    """What a client has until it ends it, also by the end of a ``with`` block."""

    _end: Callable[[], Outcome]

    def ended_by(self, end: Callable[[], Outcome]) -> Self:
        """Set the call by which its client ends it."""
        object.__setattr__(self, "_end", end)  # no field: it is not printed nor compared
        return self

    def end(self) -> Outcome:
        """End it.

        Raises:
            ServiceError: It has ended already.
        """
        return self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, unless it or its daemon has ended already.

        Raises:
            SentinelError: The daemon refuses or does not answer; it goes on.
        """
        try:
            self.end()
        except NotRunningError:
            pass
        except ServiceError as error:
            if error.code != "not_found":
                raise


@dataclass(frozen=True, kw_only=True)
class ReservationInfo(Held, ResponseModel):
    """GPUs that are kept free for a user, or a request that waits for them."""

    id: str
    #: UUIDs; empty while it waits.
    gpus: tuple[str, ...] = ()
    #: nvidia-smi's indices of the same GPUs; while it waits, of the named ones.
    indices: tuple[int, ...] = ()
    #: How many GPUs; while it waits, of the named ones or of any.
    count: int = 0
    place: int = field(
        default=0, metadata=described("The place in the queue, from 1; 0 once it has its GPUs.")
    )
    reason: str
    #: When it began, or entered the queue.
    since: datetime
    #: When it ends, or None if it has no time limit or waits.
    until: datetime | None = None
    #: Whether it ends with the holder's process.
    bound: bool = False
    holder: Holder = field(default_factory=Holder)

    @property
    def cuda_visible_devices(self) -> str:
        """The value of the variable of this name by which CUDA uses these GPUs only."""
        return ",".join(self.gpus)


@dataclass(frozen=True, kw_only=True)
class Reservations(ResponseModel):
    """All reservations, and the requests that wait for one, in the order of the queue."""

    reservations: tuple[ReservationInfo, ...]
    queue: tuple[ReservationInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SessionInfo(ResponseType):
    """Settings of some GPUs under a name."""

    name: str
    #: UUIDs.
    gpus: tuple[str, ...]
    #: nvidia-smi's indices of the same GPUs.
    indices: tuple[int, ...] = ()
    #: The texts of its settings, by key.
    settings: Mapping[str, str]
    since: datetime
    #: When it ends, or None if it has no time limit.
    until: datetime | None = None
    holder: Holder = field(default_factory=Holder)
    suspended: str | None = field(
        default=None,
        metadata=described(
            "Why its settings are not in effect: an earlier daemon accepted it, and the settings of"
            " this one contradict it. Null if they are in effect."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class AllocationInfo(Held, ResponseModel):
    """GPU memory that is granted to a process and its children."""

    id: str
    gpu: str
    index: int | None = None
    size: int
    since: datetime
    holder: Holder = field(default_factory=Holder)


@dataclass(frozen=True, kw_only=True)
class MemoryBudget(ResponseType):
    """The memory of a GPU that allocations may use, in bytes."""

    gpu: str
    index: int
    total: int
    #: What all allocations together may use.
    limit: int
    allocated: int
    available: int
    #: The number of allocations.
    count: int


@dataclass(frozen=True, kw_only=True)
class Allocations(ResponseModel):
    """All allocations, and the budget of each GPU."""

    allocations: tuple[AllocationInfo, ...]
    gpus: tuple[MemoryBudget, ...]


# --- the daemon, its settings, and the results of commands ------------------------------------


@dataclass(frozen=True, kw_only=True)
class BurninInfo(ResponseType):
    """The burn-in that a client has asked the daemon for."""

    id: str
    #: The name of the plan.
    plan: str
    #: UUIDs.
    gpus: tuple[str, ...]
    since: datetime
    holder: Holder = field(default_factory=Holder)


@dataclass(frozen=True, kw_only=True)
class BurninStarted(ResponseModel):
    """A new burn-in."""

    burnin: BurninInfo


@dataclass(frozen=True, kw_only=True)
class DaemonInfo(ResponseType):
    """The daemon as a whole."""

    pid: int
    #: The host's name.
    host: str | None = None
    version: str
    phase: str
    since: datetime
    driver: str
    simulated: bool
    workload: str
    socket: str
    #: The TCP address besides the socket, and the file with its token.
    tcp: str | None = None
    token: str | None = None
    log: str | None = None
    #: The match for journalctl if the log is in the journal, or None.
    journal: str | None = None
    #: CUDA_VISIBLE_DEVICES of the daemon, which uses no other GPUs, or None if it is not set.
    visible_devices: str | None = None
    #: What CUDA ignores of it, as a sentence, or None.
    ignored_devices: str | None = None
    #: The selected GPUs that it does not use, since they were held at its start.
    held_elsewhere: tuple[HeldGpu, ...] = ()
    #: Why earlier wrong results are not known, such as a damaged file, and what to do; or None.
    forgotten: str | None = None
    #: The age of the state that the daemon published last.
    age_s: float | None = None
    #: The burn-in that runs, or None.
    burnin: BurninInfo | None = None
    #: Why the daemon is shutting down, or None if it is not.
    ending: str | None = None


@dataclass(frozen=True, kw_only=True)
class Status(ResponseModel):
    """The daemon, its GPUs, reservations, allocations and sessions."""

    daemon: DaemonInfo
    gpus: tuple[GpuStatus, ...]
    reservations: tuple[ReservationInfo, ...] = ()
    queue: tuple[ReservationInfo, ...] = field(
        default=(), metadata=described("Reservations that clients wait for, in order.")
    )
    allocations: tuple[AllocationInfo, ...] = ()
    sessions: tuple[SessionInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Changes(ResponseModel):
    """The differences from one second before; null is unchanged, as are GPUs not in `gpus`."""

    #: The age of the state that the daemon published last.
    age_s: float
    daemon: DaemonInfo | None
    gpus: tuple[GpuStatus, ...]
    reservations: tuple[ReservationInfo, ...] | None
    queue: tuple[ReservationInfo, ...] | None = None
    allocations: tuple[AllocationInfo, ...] | None
    sessions: tuple[SessionInfo, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class DaemonHealth(ResponseModel):
    """The daemon is healthy: its state is `age_s` seconds old."""

    phase: str
    age_s: float


@dataclass(frozen=True, kw_only=True)
class Outcome(ResponseModel):
    """The result of a command as a sentence, and the UUIDs of the GPUs that it affects."""

    text: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Settings(Outcome):
    """Settings as they are in effect: all of them, or those that were changed."""

    settings: tuple[Given, ...] = field(
        metadata=described("Those of single GPUs and of sessions are the last.")
    )
    saved: str | None = field(
        default=None,
        metadata=described("The file that keeps a change, or null if it is not saved."),
    )
    notes: tuple[str, ...] = field(
        default=(), metadata=described("What overrides or delays saved values, a sentence each.")
    )
    effects: tuple[str, ...] = field(
        default=(),
        metadata=described("What keeps a former value, and which GPUs are released; sentences."),
    )

    def get(self, key: str) -> Given | None:
        """Return the value of a setting for all GPUs, or None if there is no such setting."""
        return next((v for v in self.settings if v.gpu is None and v.key == key), None)


@dataclass(frozen=True, kw_only=True)
class SessionStarted(ResponseModel):
    """A new session: its settings are in effect."""

    session: SessionInfo


@dataclass(frozen=True, kw_only=True)
class Sessions(ResponseModel):
    """All sessions, in the order in which they were started."""

    sessions: tuple[SessionInfo, ...]
