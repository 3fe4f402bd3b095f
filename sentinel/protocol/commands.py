"""What clients ask of the supervisor through the service, and what it shows and answers.

The service takes requests from clients, posts each as one of the orders below, and hears one
:class:`Answer` to it. What it shows to clients is the last :class:`HostView` and the last
:class:`GpuView` of each GPU. Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sentinel.messages import GpuProcess
from sentinel.telemetry import Telemetry

__all__ = [
    "Allocate",
    "Allocation",
    "Answer",
    "Asker",
    "Condition",
    "Configure",
    "Confirm",
    "Deallocate",
    "GpuView",
    "HandoverView",
    "HostView",
    "Occupy",
    "Order",
    "OverrideValues",
    "PauseGpus",
    "Phase",
    "Refusal",
    "Reread",
    "Reservation",
    "Reserve",
    "ResumeGpus",
    "Said",
    "ServiceMessage",
    "ServiceSpec",
    "Serving",
    "ShutDown",
    "Trouble",
    "Unreserve",
    "Vacate",
    "Value",
]


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """What a service is told.

    ``socket`` is the path that clients use, ``tcp`` the address, ``host:port``, where there is one,
    and ``token`` the file with its secret. ``state`` is the folder for what outlives the daemon,
    ``log`` the file that events go to. ``given`` and ``overrides`` are the settings that hold when
    it begins, and ``config`` is the file that was named or found, for when they are read anew.
    ``began`` is when the daemon began, in seconds since the epoch. ``history`` is how many bytes
    the history in ``state`` may have; without, it is in memory alone.
    """

    socket: str
    state: str
    log: str | None
    began: float
    version: str
    tcp: str | None = None
    token: str | None = None
    given: tuple[Value, ...] = ()
    overrides: tuple[OverrideValues, ...] = ()
    config: str | None = None
    history: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Who asks: the peer's user and process where the socket tells, and by which way.

    ``started`` tells its PID from a later use of the same number, in clock ticks since boot.
    """

    via: str
    uid: int | None = None
    pid: int | None = None
    started: int | None = None


# --- orders, from the service ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Occupy:
    """Occupy idle GPUs, from now on."""

    number: int
    by: Asker


@dataclass(frozen=True, kw_only=True)
class Vacate:
    """Let go of every GPU and start on none."""

    number: int
    by: Asker


@dataclass(frozen=True, kw_only=True)
class PauseGpus:
    """Let go of these GPUs, all where none is named, and keep off for ``seconds``, or for good.

    ``release``: of the driver as well, which is for all GPUs at once.
    """

    number: int
    by: Asker
    gpus: tuple[str, ...] = ()
    seconds: float | None = None
    release: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeGpus:
    """End the pause of these GPUs, of all where none is named."""

    number: int
    by: Asker
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Keep these GPUs free for somebody, or the ``count`` that are had most easily.

    ``seconds`` is for how long. ``bound``: only as long as the process that asks lives.
    """

    number: int
    by: Asker
    id: str
    reason: str
    gpus: tuple[str, ...] = ()
    count: int = 0
    seconds: float | None = None
    bound: bool = False


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """Keep a reservation from now on, whatever becomes of the service: its client is told of it.

    ``allocation``: the id is that of a part of a GPU's memory, and not of a reservation.
    """

    number: int
    by: Asker
    id: str
    allocation: bool = False


@dataclass(frozen=True, kw_only=True)
class Unreserve:
    """End a reservation."""

    number: int
    by: Asker
    id: str


@dataclass(frozen=True, kw_only=True)
class Allocate:
    """Promise ``size`` bytes of a GPU's memory to the process that asks, and to its children.

    They are guests there from then on, and not newcomers. Where that process cannot be seen from
    here, nobody can be told from others, and nothing of ours is started beside them.
    """

    number: int
    by: Asker
    id: str
    gpu: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Deallocate:
    """End the promise of memory with this id."""

    number: int
    by: Asker
    id: str


@dataclass(frozen=True, kw_only=True)
class Value:
    """One setting as it was given, and where."""

    key: str
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class OverrideValues:
    """Settings for one GPU, named by a selector, and where they were given."""

    selector: str
    source: str
    given: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Configure:
    """Take over all of these settings, or none of them."""

    number: int
    by: Asker
    given: tuple[Value, ...]
    overrides: tuple[OverrideValues, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShutDown:
    """Let go of every GPU and end."""

    number: int
    by: Asker


Order = (
    Occupy
    | Vacate
    | PauseGpus
    | ResumeGpus
    | Reserve
    | Confirm
    | Unreserve
    | Allocate
    | Deallocate
    | Configure
    | ShutDown
)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The service answers clients; said when it begins to, and once a second."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What the service could not do though no client asked for it, for the journal.

    ``about`` is "settings", "reservations", "history", "watch", "token" or "socket", ``text`` says
    what is wrong and where.
    """

    about: str
    text: str


ServiceMessage = Order | Serving | Trouble


# --- answers and views, from the supervisor --------------------------------------------------


class Refusal(StrEnum):
    """Why an order was not carried out."""

    NO_SUCH_GPU = "no_such_gpu"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    CONFLICT = "conflict"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of the order of this number; ``gpus`` are the UUIDs that it was about.

    ``text`` says in a sentence what will happen, or why not and what is allowed.
    """

    number: int
    refused: Refusal | None = None
    text: str = ""
    gpus: tuple[str, ...] = ()


class Phase(StrEnum):
    """What the daemon as a whole is at.

    WAITING: it would occupy and no GPU is idle. VACATED: it was told to hold nothing. RELEASED: it
    has let go of the driver, too.
    """

    STARTING = "starting"
    WAITING = "waiting"
    OCCUPYING = "occupying"
    VACATED = "vacated"
    RELEASED = "released"
    STOPPING = "stopping"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """GPUs that are kept free for somebody, until ``until`` or for as long as ``by`` lives.

    One that is not ``confirmed`` ends with the service that was to tell its client of it.
    """

    id: str
    gpus: tuple[str, ...]
    reason: str
    by: Asker
    since: float
    until: float | None = None
    bound: bool = False
    confirmed: bool = False


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Memory of a GPU that was promised to the process ``by`` and its children.

    One that is not ``confirmed`` ends with the service that was to tell its client of it. One whose
    process cannot be seen (``by.started`` is ``None``) lasts until it is given back.
    """

    id: str
    gpu: str
    size: int
    by: Asker
    since: float
    confirmed: bool = False


class Condition(StrEnum):
    """How a GPU does, by its temperature and by the memory on it that is not ours."""

    OPTIMAL = "optimal"
    NORMAL = "normal"
    THROTTLED = "throttled"
    CRITICAL = "critical"


@dataclass(frozen=True, kw_only=True)
class HostView:
    """What is shown of the daemon as a whole, at the time ``at``."""

    at: float
    pid: int
    phase: Phase
    driver: str
    simulated: bool
    workload: str
    gpus: tuple[str, ...]
    reservations: tuple[Reservation, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    ending: str | None = None


@dataclass(frozen=True, kw_only=True)
class HandoverView:
    """The last hand-over of a GPU: when the first sign came, and what followed, in seconds."""

    at: float
    sign: str
    exit: float
    kill: float | None = None
    memory_back: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuView:
    """What is shown of one GPU, at the time ``at``.

    ``occupancy``, ``stressor`` and ``admin`` are the names of states, ``rule`` and ``reason`` say
    why it is not occupied, or "running". ``since`` is when it became what it is, ``read`` when the
    GPU was read last, ``ended`` when our last stressor on it was gone; ``ghost``: something stayed
    in use by nobody after that. ``held`` is the memory of our stressor, ``until`` when the pause or
    reservation ends. Rates are per second; ``share`` is of the time. ``None`` is not known.
    ``condition`` has held since ``condition_since``, and ``multiplier`` is the share of its speed
    that it leaves to whoever works there. ``memory_foreign`` is what of the used memory is not our
    stressor's, ``budget`` how much may be promised in all, and ``to_come`` what of it was promised
    and is not taken yet; ``guests`` are the processes of those to
    whom memory was promised. ``yields`` counts how often a newcomer got the GPU of us, ``starts``
    our stressors, since the daemon began.
    """

    at: float
    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_total: int
    occupancy: str
    stressor: str
    admin: str
    rule: str
    reason: str
    findings: int
    since: float | None = None
    read: float | None = None
    ended: float | None = None
    ghost: bool = False
    until: float | None = None
    reservation: str | None = None
    by: tuple[GpuProcess, ...] = ()
    pid: int | None = None
    memory_used: int | None = None
    held: int | None = None
    utilization: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    workload: str | None = None
    note: str | None = None
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    checks: int | None = None
    errors: int | None = None
    handover: HandoverView | None = None
    last_finding: str | None = None
    condition: Condition | None = None
    condition_since: float | None = None
    multiplier: float = 1.0
    memory_free: int | None = None
    to_come: int = 0
    memory_foreign: int | None = None
    budget: int = 0
    guests: tuple[GpuProcess, ...] = ()
    yields: int = 0
    starts: int = 0
    telemetry: Telemetry | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """One event of the journal, as its line of JSON; ``number`` counts them."""

    number: int
    line: str


@dataclass(frozen=True, kw_only=True)
class Reread:
    """Read the settings anew and post them as a :class:`Configure`."""
