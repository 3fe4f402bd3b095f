"""What was seen of one workload on one GPU, before anybody judges it. Pure.

Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.stressor import Progress, Ready


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How the stressor failed: the ``kind`` and ``reason`` of its event."""

    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """How it ended when it was asked to: after how long, and whether it had to be killed."""

    after: float
    killed: bool


@dataclass(frozen=True, kw_only=True)
class Trial:
    """All that was seen.

    ``gpu`` is where the stressor was started, ``None`` where none was; ``waiting`` is what was last
    said of a GPU that was not idle. ``start`` is how long it took from the spawn to ``ready``,
    ``ran`` from there to its stop or end; ``note`` is what the workload said last of what it is at.
    ``readings`` are those of its GPU while it ran, from the first after Ready on. ``newcomer`` is
    how many bytes there were more than explained, or zero for another sign, when it had to yield,
    ``people`` are those who had come then, as far as the driver lists them, and ``all_listed`` is
    whether it lists everybody here. ``interrupted`` is the signal that ended the trial early.
    """

    workload: str
    gpu: Gpu | None = None
    waiting: str | None = None
    start: float | None = None
    ready: Ready | None = None
    ran: float = 0.0
    progress: tuple[Progress, ...] = ()
    readings: tuple[Reading, ...] = ()
    findings: int = 0
    note: str | None = None
    failure: Failure | None = None
    newcomer: int | None = None
    people: tuple[str, ...] = ()
    stop: Stop | None = None
    all_listed: bool = True
    unkillable: bool = False
    interrupted: str | None = None
