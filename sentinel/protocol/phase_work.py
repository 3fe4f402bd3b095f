"""What a GPU has done of one phase of a burn-in, and of a plan that it goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
class EarlierWork:
    """What a GPU has done of a plan before it goes on with it."""

    #: The number of the first phase that is not over, from 0; that of all phases if none is left.
    phase: int
    #: What was done of that phase.
    work: PhaseWork = field(default_factory=PhaseWork)
