"""The measurements of a trial: one workload on one GPU. Pure.

Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.stressor import Progress, Ready


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of the stressor, as in its event."""

    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The end of the stressor after a request to stop."""

    #: Seconds from the request.
    after: float
    #: Whether it had to be killed.
    killed: bool


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """What the stressor took of the host while the workload ran."""

    #: CPU time of all its threads, in cores.
    cores: float
    #: The most resident memory, with the libraries that other processes share.
    memory: int


@dataclass(frozen=True, kw_only=True)
class Trial:
    """All measurements."""

    workload: str
    #: The GPU of the stressor, or None if none was started.
    gpu: Gpu | None = None
    #: Why the last GPU was not idle.
    waiting: str | None = None
    #: Seconds from the spawn to ``ready``.
    start: float | None = None
    ready: Ready | None = None
    #: Seconds from ``ready`` to the stop or end.
    ran: float = 0.0
    progress: tuple[Progress, ...] = ()
    #: The readings of the GPU while the workload ran.
    readings: tuple[Reading, ...] = ()
    #: None if it did not run for two readings.
    host: HostUse | None = None
    findings: int = 0
    #: The last note of the workload.
    note: str | None = None
    failure: Failure | None = None
    #: Unexplained bytes at a yield; 0 for other evidence, None without a yield.
    newcomer: int | None = None
    #: The newcomers, as far as the driver lists them.
    processes: tuple[str, ...] = ()
    stop: Stop | None = None
    #: Whether the driver lists all processes here.
    all_listed: bool = True
    unkillable: bool = False
    #: The signal that ended the trial early.
    interrupted: str | None = None
