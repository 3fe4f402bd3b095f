"""The progress of one GPU through the plan of a burn-in, and the burn-in of a daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.config.model import Config
from sentinel.config.plan import Plan
from sentinel.protocol.caller import Caller


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
class PhaseWork:
    """What a GPU has done of one phase.

    Seconds are those of the workload's own reports, so starts and interruptions are not in them.
    """

    #: Of work that counts, in all stretches.
    seconds: float = 0.0
    #: Of work that does not count: warm-up, and work without checks where they are required.
    uncounted: float = 0.0
    iterations: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    #: Results that were checked, and those that were wrong, also while warming up.
    checks: int = 0
    errors: int = 0
    #: How often each pattern of a memory test has covered the memory, and of how many patterns.
    covered: Mapping[str, int] = field(default_factory=dict)
    patterns: int = 0
    #: The smallest share of the device's memory that a pattern has covered.
    share: float | None = None
    #: The share of the device's memory that kept a pattern untouched, stripe after stripe, in the
    #: stressor that came furthest.
    retained: float | None = None
    #: The seconds that count of the current stretch, and of the longest one.
    stretch: float = 0.0
    longest: float = 0.0
    interruptions: int = 0
    #: Why the GPU will not do the rest of the phase, or None.
    given_up: str | None = None

    def passes(self) -> int:
        """Count how often every pattern has covered the memory."""
        if not self.patterns or len(self.covered) < self.patterns:
            return 0
        return min(self.covered.values())


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
