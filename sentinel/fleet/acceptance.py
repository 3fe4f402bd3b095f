"""What the report of a node must be to be accepted. Pure.

A run has a file that says what its nodes do. Without one, reports that were collected from nodes
may be of any plan, age and limits, and what most of them are is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.burnin.verdict import Verdict
from sentinel.fleet.node_result import NodePlan, NodeResult

#: Clocks of hosts differ by less (own).
CLOCK_TOLERANCE = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The plan, the limits and the time that a report must have."""

    plan: NodePlan
    #: What the file of thresholds replaced, as reports have it.
    overridden: Mapping[str, Any] = field(default_factory=dict)
    #: A run that ended before has not passed; None for any.
    since: datetime | None = None
    now: datetime
    #: Whether GPUs may be simulated.
    simulated: bool = False
    #: Whether a node that is not on the list stops the fleet even if nothing has failed.
    strict: bool = False

    def refuse(self, result: NodeResult) -> Iterator[str]:
        """Yield why the report is not accepted, whatever it has found; nothing if it is."""
        run = result.run
        if run.simulated and not self.simulated:
            yield "its GPUs are simulated"
        if run.plan.hash != self.plan.hash:
            done, asked = (f"{plan.name} ({plan.hash})" for plan in (run.plan, self.plan))
            yield f"its report is of another plan: {done}, and not {asked}"
        if Verdict.NOT_APPLICABLE in {result.verdict, *(gpu.verdict for gpu in result.gpus)}:
            yield "too little was done for a verdict (N/A)"
        elif any(gpu.too_short is not None for gpu in result.gpus):
            yield "too little was done for a PASS"
        for name in sorted({*result.thresholds_overridden, *self.overridden}):
            own, wanted = result.thresholds_overridden.get(name), self.overridden.get(name)
            if own != wanted:
                limits = f"{own or 'the default'}, and not {wanted or 'the default'}"
                yield f"it was judged by another limit: {name} is {limits}"
        ended = run.started + timedelta(seconds=run.duration_s)
        if self.since is not None and ended < self.since:
            yield f"it is too old: it ended {_minute(ended)}, and not since {_minute(self.since)}"
        if ended > self.now + CLOCK_TOLERANCE:
            yield f"it ends in the future, {_minute(ended)}: compare the clocks"


def _minute(moment: datetime) -> str:
    return moment.astimezone().isoformat(" ", "minutes")
