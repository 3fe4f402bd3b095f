"""The progress of one GPU through a burn-in plan: from report to report and phase to phase. Pure.

What counts as verified work is folded by ``config/verified_work.py``, as in the record of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sentinel.config.plan import Phase, Plan
from sentinel.config.verified_work import fold, has_seconds
from sentinel.protocol.burnin_events import Interrupted, Worked
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.stressor import MemoryCovered, Progress
from sentinel.protocol.views import BurninRunView

#: The temperature of a GPU is stable if it changes by less than this in a minute, in degrees
#: Celsius, over the longest of these windows that fits into half of the warm-up, in seconds.
STABLE_SLOPE_C = 1.0
MAX_WINDOW_S = 60.0
#: A phase is given up after so many seconds of work of which nothing counted, without those of
#: warming up: its workload checks nothing, or covers no memory.
MAX_IN_VAIN_S = 600.0


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
    #: Whether the first error ends the plan.
    fail_fast: bool = False
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
    #: Since when the GPU cannot be read, but for moments, or None.
    unreadable: float | None = None
    #: Since when it can be read again, while `unreadable` is not None; or None.
    readable: float | None = None
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

    def workload(self, plan: Plan | None) -> str | None:
        """Return the workload of the current phase, or of the last one; None without a plan."""
        return None if plan is None else self.phase_of(plan).workload

    def phase_of(self, plan: Plan) -> Phase:
        """Return the current phase of a plan, or the last one."""
        return plan.phases[min(self.phase, len(plan.phases) - 1)]

    def finished(self, plan: Plan) -> bool:
        """Check whether nothing more is to be done."""
        return self.ended is not None or self.phase >= len(plan.phases)


@dataclass(frozen=True, kw_only=True)
class BurninRun:
    """A burn-in that a client has asked a daemon for."""

    #: What is shown of it: who has asked for what, and the GPUs.
    view: BurninRunView
    plan: Plan
    #: What each GPU has done that is done, and goes by its own settings again, which may have
    #: another plan; by UUID.
    done: Mapping[str, Burnin] = field(default_factory=dict)


def count(
    burnin: Burnin, phase: Phase, report: Progress, temperature: int | None, now: float
) -> Burnin:
    """Count one report of the workload.

    Args:
        burnin: The progress so far.
        phase: The current phase.
        report: The work since the last report.
        temperature: Of the GPU in degrees Celsius; None if it cannot be read.
        now: The time of the report.
    """
    burnin = _warm_up(burnin, phase, temperature, now)
    before, is_warm = burnin.current, burnin.warm or not phase.steady
    work = fold(phase, before, Worked(report=report, warm=is_warm))
    helps = work.seconds > before.seconds and not has_seconds(phase, before)
    in_vain = 0.0 if helps else burnin.in_vain + (report.seconds if is_warm else 0.0)
    return replace(burnin, work=(*burnin.work[:-1], work), in_vain=in_vain)


def cover(burnin: Burnin, phase: Phase, message: MemoryCovered) -> Burnin:
    """Count one pattern that has covered the memory."""
    work = fold(phase, burnin.current, message)
    return replace(burnin, work=(*burnin.work[:-1], work), in_vain=0.0)


def interrupt(burnin: Burnin, phase: Phase) -> Burnin:
    """End the current stretch: the stressor is gone, and its memory with it."""
    work = burnin.current
    if not work.stretch and not burnin.warm and burnin.warming_since is None:
        return burnin
    work = fold(phase, work, Interrupted(phase=phase.name, stretch_s=work.stretch))
    return _cold(replace(burnin, work=(*burnin.work[:-1], work)))


def why_in_vain(burnin: Burnin) -> str | None:
    """Explain why nothing of a phase counts, or return None."""
    if burnin.in_vain < MAX_IN_VAIN_S:
        return None
    what = "covered no memory" if burnin.current.seconds else "checked no results"
    return f"its workload {what} for {MAX_IN_VAIN_S / 60:g} minutes"


def seconds_left(burnin: Burnin, plan: Plan) -> float:
    """Compute how many seconds of work are left at least.

    Warming up is left out, and so is each pass of which nothing was measured yet.
    """
    if burnin.finished(plan):
        return 0.0
    phase, work = plan.phases[burnin.phase], burnin.current
    done = work.stretch if phase.in_one_stretch else work.seconds
    later = sum(phase.seconds for phase in plan.phases[burnin.phase + 1 :])
    rest = 0.0 if has_seconds(phase, work) else phase.seconds - done
    return max(rest, _seconds_of_passes(work, phase)) + later


def _seconds_of_passes(work: PhaseWork, phase: Phase) -> float:
    """Compute how long the patterns after the present one take at least, by those so far."""
    covered = sum(min(times, phase.passes) for times in work.covered.values())
    # One that was interrupted begins again, and took less than a whole one.
    begun = sum(work.covered.values()) + work.interruptions + 1
    each = (work.seconds + work.uncounted) / begun
    return each * max(0, work.patterns * phase.passes - covered - 1)


def next_phase(burnin: Burnin, plan: Plan, given_up: str | None = None) -> Burnin:
    """Go on with the next phase, after the current one is done or given up."""
    work = replace(burnin.current, given_up=given_up)
    number = burnin.phase + 1
    more = (PhaseWork(),) if number < len(plan.phases) else ()
    done = replace(
        burnin,
        phase=number,
        work=(*burnin.work[:-1], work, *more),
        failures=0,
        overheats=0,
        broken_groups=(),
        group=None,
        waiting_since=None,
    )
    return _cold(done)


def end(burnin: Burnin, plan: Plan, reason: str) -> Burnin:
    """Do no more phases, for a reason."""
    return burnin if burnin.finished(plan) else replace(burnin, ended=reason)


def _warm_up(burnin: Burnin, phase: Phase, temperature: int | None, now: float) -> Burnin:
    """Decide whether the temperature of the GPU is stable by now.

    It counts as stable once it is so, or at the end of the warm-up.
    """
    if not phase.steady or burnin.warm:
        return burnin
    since = now if burnin.warming_since is None else burnin.warming_since
    burnin = replace(burnin, warming_since=since)
    if now - since >= phase.warm_up:
        return replace(burnin, warm=True)
    if temperature is None:
        return burnin
    window = min(MAX_WINDOW_S, phase.warm_up / 2)
    temperatures = (*burnin.temperatures, (now, temperature))
    recent = tuple(reading for reading in temperatures if reading[0] >= now - window)
    stable = now - since >= window and len(recent) > 1 and abs(_slope(recent)) < STABLE_SLOPE_C
    return replace(burnin, temperatures=recent, warm=stable)


def _cold(burnin: Burnin) -> Burnin:
    """Forget the warm-up: the next stressor begins it again."""
    return replace(burnin, temperatures=(), warming_since=None, warm=False, in_vain=0.0)


def _slope(values: tuple[tuple[float, int], ...]) -> float:
    """Compute the slope of temperatures by least squares, in degrees per minute."""
    mean_at = sum(at for at, _ in values) / len(values)
    mean = sum(value for _, value in values) / len(values)
    spread = sum((at - mean_at) ** 2 for at, _ in values)
    if not spread:
        return 0.0
    return 60.0 * sum((at - mean_at) * (value - mean) for at, value in values) / spread
