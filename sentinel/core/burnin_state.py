"""The progress of one GPU through the plan of a burn-in, and the burn-in of a daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.config.model import Config
from sentinel.config.plan import Plan
from sentinel.protocol.caller import Caller
from sentinel.protocol.phase_work import PhaseWork


@dataclass(frozen=True, kw_only=True)
class Group:
    """GPUs that begin a phase together."""

    #: Distinguishes the groups of a run.
    number: int
    #: The UUIDs of the GPUs; the position is the rank.
    members: tuple[str, ...]
    #: Their indices.
    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Burnin:
    """The progress of a GPU through a plan."""

    #: The number of the current phase from 0; that of all phases once the GPU is done.
    phase: int = 0
    #: An event has reported the current phase, or an earlier one, since the start.
    begun: bool = False
    #: What was done of each phase so far, the current one included.
    work: tuple[PhaseWork, ...] = (PhaseWork(),)
    #: How many stressors have failed in this phase.
    failures: int = 0
    #: How often the GPU's health has ended a stressor in this phase.
    overheats: int = 0
    #: The last that has failed.
    failed_generation: int = 0
    #: Wrong results that were reported, in any phase.
    errors: int = 0
    #: How many findings the GPU had before.
    findings_before: int = 0
    #: When the current stressor began to warm the GPU up, or None.
    warming_since: float | None = None
    #: The time and the temperature in degrees Celsius of each report of the current stressor.
    temperatures: tuple[tuple[float, int], ...] = ()
    #: The current stretch works on a warm GPU.
    warm: bool = False
    #: The seconds of work since something last counted towards the quota of the phase.
    in_vain: float = 0.0
    #: Since when the GPU cannot be read, or None.
    unreadable: float | None = None
    #: With which GPUs it does the current phase, or None; a phase together needs a group.
    group: Group | None = None
    #: Since when it could begin, and waits for other GPUs, or None.
    waiting_since: float | None = None
    #: Why each group of the current phase was broken up that had more members than this GPU.
    broken_groups: tuple[str, ...] = ()
    #: Why the GPU does no more phases, or None.
    ended: str | None = None

    @property
    def current(self) -> PhaseWork:
        """What was done of the current phase."""
        return self.work[-1]

    def finished(self, plan: Plan) -> bool:
        """Check whether nothing more is to be done."""
        return self.ended is not None or self.phase >= len(plan.phases)


@dataclass(frozen=True, kw_only=True)
class BurninRun:
    """A burn-in that a client has asked a daemon for."""

    id: str
    plan: Plan
    #: By UUID.
    gpus: tuple[str, ...]
    by: Caller
    since: float
    #: Whether it ends with the process ``by``.
    bound: bool = False
    #: The settings of single GPUs without it, which they have again afterwards.
    each: Mapping[str, Config] = field(default_factory=dict)
    #: What each GPU has done that is done, and goes by its own settings again, which may have
    #: another plan; by UUID.
    done: Mapping[str, Burnin] = field(default_factory=dict)
