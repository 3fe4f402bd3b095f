"""Count what a GPU has done of a burn-in plan, and move it from phase to phase. Pure.

Work counts only if the results were checked, and from the start of the current stretch on only if
that stretch was not interrupted. So the count is a lower bound of what the GPU has proved.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.plan import Phase, Plan
from sentinel.core.burnin_state import Burnin
from sentinel.protocol.phase_work import PhaseWork
from sentinel.protocol.stressor import MemoryCovered, Progress

#: The temperature of a GPU is stable if it changes by less than this in a minute, in degrees
#: Celsius, over the longest of these windows that fits into half of the warm-up, in seconds.
STABLE_SLOPE_C = 1.0
MAX_WINDOW_S = 60.0
#: A phase is given up after so many seconds of work of which nothing counted, without those of
#: warming up: its workload checks nothing, or covers no memory.
MAX_IN_VAIN_S = 600.0


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
    work = burnin.current
    # Wrong results were checked, too: the GPU has failed, and its plan comes to an end.
    verified = not phase.checked or report.checks > 0
    is_warm = burnin.warm or not phase.steady
    seconds = report.seconds if verified and is_warm else 0.0
    helps = bool(seconds) and not _has_seconds(work, phase)
    in_vain = 0.0 if helps else burnin.in_vain + (report.seconds if is_warm else 0.0)
    stretch = work.stretch + seconds
    work = replace(
        work,
        seconds=work.seconds + seconds,
        uncounted=work.uncounted + report.seconds - seconds,
        iterations=work.iterations + report.iterations,
        flops=work.flops + report.flops,
        bytes=work.bytes + report.bytes,
        checks=work.checks + report.checks,
        errors=work.errors + report.errors,
        stretch=stretch,
        longest=max(work.longest, stretch),
    )
    return replace(burnin, work=(*burnin.work[:-1], work), in_vain=in_vain)


def cover(burnin: Burnin, message: MemoryCovered) -> Burnin:
    """Count one pattern that has covered the memory."""
    work = burnin.current
    covered = {**work.covered, message.pattern: work.covered.get(message.pattern, 0) + 1}
    work = replace(work, covered=covered, patterns=message.patterns)
    if message.stripe:
        work = replace(work, retained=max(message.share, work.retained or 0.0))
    else:
        work = replace(work, share=min(message.share, 1.0 if work.share is None else work.share))
    return replace(burnin, work=(*burnin.work[:-1], work), in_vain=0.0)


def interrupt(burnin: Burnin) -> Burnin:
    """End the current stretch: the stressor is gone, and its memory with it."""
    work = burnin.current
    if not work.stretch and not burnin.warm and burnin.warming_since is None:
        return burnin
    work = replace(work, stretch=0.0, interruptions=work.interruptions + 1)
    return _cold(replace(burnin, work=(*burnin.work[:-1], work)))


def is_done(work: PhaseWork, phase: Phase) -> bool:
    """Check whether a GPU has done what a phase asks for."""
    return _has_seconds(work, phase) and work.passes() >= phase.passes


def why_in_vain(burnin: Burnin) -> str | None:
    """Explain why nothing of a phase counts, or return None."""
    if burnin.in_vain < MAX_IN_VAIN_S:
        return None
    what = "covered no memory" if burnin.current.seconds else "checked no results"
    return f"its workload {what} for {MAX_IN_VAIN_S / 60:g} minutes"


def seconds_left(burnin: Burnin, plan: Plan) -> float:
    """Compute how many seconds of work are left, without those of warming up and of passes."""
    if burnin.finished(plan):
        return 0.0
    phase, work = plan.phases[burnin.phase], burnin.current
    done = work.stretch if phase.in_one_stretch else work.seconds
    later = sum(one.seconds for one in plan.phases[burnin.phase + 1 :])
    return max(0.0, phase.seconds - done) + later


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
    recent = tuple(one for one in temperatures if one[0] >= now - window)
    stable = now - since >= window and len(recent) > 1 and abs(_slope(recent)) < STABLE_SLOPE_C
    return replace(burnin, temperatures=recent, warm=stable)


def _cold(burnin: Burnin) -> Burnin:
    """Forget the warm-up: the next stressor begins it again."""
    return replace(burnin, temperatures=(), warming_since=None, warm=False, in_vain=0.0)


def _has_seconds(work: PhaseWork, phase: Phase) -> bool:
    return (work.longest if phase.in_one_stretch else work.seconds) >= phase.seconds


def _slope(values: tuple[tuple[float, int], ...]) -> float:
    """Compute the slope of temperatures by least squares, in degrees per minute."""
    mean_at = sum(at for at, _ in values) / len(values)
    mean = sum(value for _, value in values) / len(values)
    spread = sum((at - mean_at) ** 2 for at, _ in values)
    if not spread:
        return 0.0
    return 60.0 * sum((at - mean_at) * (value - mean) for at, value in values) / spread
