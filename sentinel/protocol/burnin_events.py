"""The events of a burn-in as values: what the supervisor publishes, and the record is folded from.

Each class is a table of events.toml. What is published has all fields of its table, and what is
only read those that it needs. A default stands for a field that an earlier version did not write.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.stressor import Progress

#: Why a GPU that did not cool while it was idle does no more of a plan.
TOO_HOT = "it was too hot for ten minutes without any work"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A GPU of a run."""

    uuid: str
    index: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A run begins, or goes on."""

    name: ClassVar[str] = "burnin.run_started"
    gpus: tuple[Named, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseStarted:
    """The next phase of a GPU is due."""

    name: ClassVar[str] = "burnin.phase_started"
    phase: str
    #: In the plan, from 1.
    number: int = 0
    phases: int = 0
    left_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Progressed:
    """How far a GPU is; all of it is cumulative, so the last one says what those before did."""

    name: ClassVar[str] = "burnin.progress"
    phase: str
    number: int = 0
    phases: int = 0
    left_s: float | None = None
    #: Why nothing counts at present, or None.
    waiting: str | None = None
    #: Of this run so far.
    findings: int = 0
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class StatusReported:
    """The status of a GPU."""

    name: ClassVar[str] = "gpu.status"
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class FindingReported:
    """A stressor has proved that a GPU was wrong."""

    name: ClassVar[str] = "stressor.finding"


@dataclass(frozen=True, kw_only=True)
class Warm:
    """A steady phase begins to count."""

    name: ClassVar[str] = "burnin.warm"
    phase: str


@dataclass(frozen=True, kw_only=True)
class Worked:
    """A stressor has reported work. It is not published: the end of the phase sums it up."""

    report: Progress
    #: The GPU is warm enough for what the phase asks.
    warm: bool = True


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """A stressor ended early, and its stretch with it."""

    name: ClassVar[str] = "burnin.interrupted"
    phase: str
    #: The seconds of the stretch that count.
    stretch_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PhaseEnded:
    """A GPU does no more of a phase; it repeats all that was counted, whatever was lost before."""

    name: ClassVar[str] = "burnin.phase_ended"
    phase: str
    work: PhaseWork = field(default_factory=PhaseWork)
    #: As it was published, which the record believes; None where the work has them.
    passes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A GPU does no more of a plan."""

    name: ClassVar[str] = "burnin.ended"
    plan: str = ""
    #: Why phases are missing, or None.
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class StressorStarting:
    """A stressor was started."""

    name: ClassVar[str] = "stressor.starting"


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A stressor begins to work."""

    name: ClassVar[str] = "stressor.ready"


@dataclass(frozen=True, kw_only=True)
class StressorFailed:
    """A stressor has failed."""

    name: ClassVar[str] = "stressor.failed"


@dataclass(frozen=True, kw_only=True)
class StressorFatal:
    """A stressor has failed, and is not started again."""

    name: ClassVar[str] = "stressor.fatal"


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Foreign processes use a GPU."""

    name: ClassVar[str] = "gpu.busy"
    processes: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Yielding:
    """A newcomer needs a GPU."""

    name: ClassVar[str] = "gpu.yielding"


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A GPU cannot be read."""

    name: ClassVar[str] = "gpu.unknown"


@dataclass(frozen=True, kw_only=True)
class Unwatched:
    """The memory of a GPU was not read in time."""

    name: ClassVar[str] = "gpu.unwatched"


@dataclass(frozen=True, kw_only=True)
class XidReported:
    """NVML has delivered XIDs of one number."""

    name: ClassVar[str] = "gpu.xid"
    xid: int
    #: Since the first one; 0 for the first.
    repeats: int
    #: When NVML delivered it, or the first and the last repeat.
    reported_at: float
    last_at: float | None


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Events could not be written, or their reader was too slow."""

    name: ClassVar[str] = "log.dropped"
    events: int


Published = PhaseStarted | Warm | Interrupted | PhaseEnded | Ended
BurninEvent = (
    RunStarted
    | Published
    | Progressed
    | StatusReported
    | FindingReported
    | StressorStarting
    | Ready
    | StressorFailed
    | StressorFatal
    | Busy
    | Yielding
    | Unknown
    | Unwatched
    | XidReported
    | Dropped
)
EVENT_KINDS: Mapping[str, type[BurninEvent]] = {
    kind.name: kind for kind in typing.get_args(BurninEvent)
}


def fields_of(event: Published) -> dict[str, Any]:
    """Return the fields of an event that is published."""
    if isinstance(event, PhaseEnded):
        work = event.work
        counted = {**vars(work), "covered": dict(work.covered), "passes": work.passes()}
        return {"phase": event.phase, **counted}
    return dict(vars(event))
