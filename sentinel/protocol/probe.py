"""Messages between the supervisor and the probe."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sentinel.protocol.gpu import Gpu, Reading

# --- messages of the probe -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs that the probe found, in NVML's order; sent before it reads any of them."""

    gpus: tuple[Gpu, ...]
    driver: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The indices that NVML has now, if they have changed; by UUID."""

    indices: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """The driver is unavailable; the probe exits after this message."""

    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ProbeFailed:
    """The host refuses the probe something that it needs; it exits after this message."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Standby:
    """A spare probe has opened the driver and waits for :class:`Activate`.

    The standby stressor is another process; it sends ``Prepared`` of ``protocol.stressor``.
    """


@dataclass(frozen=True, kw_only=True)
class XidReport:
    """An XID that the driver reported through NVML, or its repeats within a few seconds."""

    uuid: str
    number: int
    #: When NVML delivered the first and the last of them, in seconds of the monotonic clock.
    at: float
    last_at: float
    #: How many repeats they are; 0 for one that is new.
    repeats: int = 0


@dataclass(frozen=True, kw_only=True)
class WatchedGpu:
    """A GPU whose XIDs are watched."""

    uuid: str
    #: Since when, in seconds of the monotonic clock.
    since: float


@dataclass(frozen=True, kw_only=True)
class XidsWatched:
    """A wait for XIDs has just returned: the probe has missed none so far."""

    at: float
    #: GPUs that report no XIDs are not among them.
    gpus: tuple[WatchedGpu, ...]


ProbeMessage = (
    Inventory | Listed | Unavailable | ProbeFailed | Standby | Reading | XidReport | XidsWatched
)
PROBE_MESSAGES: tuple[type[ProbeMessage], ...] = typing.get_args(ProbeMessage)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the probe reads from now on; GPUs are named by UUID."""

    #: GPUs to read at every poll.
    gpus: tuple[str, ...]
    #: Those of them to read all the time.
    held: tuple[str, ...]
    #: Those of them that are read at once when they are added here: a held one whose stressor has
    #: taken its memory, with which growth is compared, and an idle one before a start.
    at_once: tuple[str, ...] = ()
    #: Those of the held GPUs whose stressor reads their memory, too: each reads it every second
    #: watch interval, in alternation.
    shared: tuple[str, ...] = ()
    #: Those of them that are read at the slow poll: nothing is decided by them soon.
    slow: tuple[str, ...] = ()
    #: Those of them to read the utilization of.
    load: tuple[str, ...] = ()
    #: Whether to read telemetry.
    telemetry: bool = False


@dataclass(frozen=True, kw_only=True)
class Activate:
    """A spare probe is the probe from now on; the fields are those of its specification."""

    skip: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DriverSpec:
    """The driver that a probe loads."""

    name: str
    #: The ``module:attribute`` of what creates it.
    target: str
    #: The package that registers it and what in it, for people; None if it is built in.
    origin: str | None = None
    #: The arguments of what creates it.
    options: Mapping[str, str] = field(default_factory=dict)


#: NVIDIA's driver, the default.
NVML = DriverSpec(name="nvml", target="sentinel.probe.nvml_driver:NvmlDriver")
#: Simulated GPUs; the option ``folder`` has them.
SIMULATED = DriverSpec(name="simulated", target="sentinel.probe.simulated_driver:in_folder")


def simulated(folder: str) -> DriverSpec:
    """Specify the driver of the simulated GPUs in a folder."""
    return replace(SIMULATED, options={"folder": folder})


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """The specification of a probe process."""

    #: Seconds between two full reads of a GPU.
    poll: float
    watch_interval: float
    #: The same of a GPU that is not among the slow ones; ``poll`` if None.
    quick_poll: float | None = None
    #: Whether to read the utilization of GPUs without a stressor.
    utilization: bool = False
    #: Whether to read the processes that compute besides those that are listed.
    computing: bool = False
    #: UUIDs not to touch: a call hung there, and so would the next.
    skip: tuple[str, ...] = ()
    #: UUIDs that an earlier probe found; missing ones are looked for.
    known: tuple[str, ...] = ()
    #: Whether to open the driver only, and to wait until the present probe is gone.
    spare: bool = False
    driver: DriverSpec = NVML
