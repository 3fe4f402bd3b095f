"""What counts as verified work of a phase: one fold, of a running burn-in and of its record. Pure.

Work counts only if its results were checked, unless the phase asks for none, and on a GPU that is
warm if the phase is steady. Seconds in one stretch count from the last interruption on. So the
count is a lower bound of what the GPU has proved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.plan import Phase
from sentinel.protocol.burnin_events import Interrupted, PhaseEnded, Worked
from sentinel.protocol.commands import COUNTS, PhaseWork
from sentinel.protocol.stressor import MemoryCovered


def fold(
    phase: Phase, work: PhaseWork, event: Worked | MemoryCovered | Interrupted | PhaseEnded
) -> PhaseWork:
    """Count one event of a phase.

    Args:
        phase: What is asked for.
        work: What was counted before.
        event: The event. The end of a phase replaces what was counted: it is the sum.
    """
    match event:
        case Worked():
            return _add(phase, work, event)
        case MemoryCovered():
            return _cover(work, event)
        case Interrupted():
            return replace(work, stretch=0.0, interruptions=work.interruptions + 1)
        case PhaseEnded():
            return event.work


def done_s(phase: Phase, work: PhaseWork) -> float:
    """Return the seconds that count towards the quota of a phase."""
    return work.longest if phase.in_one_stretch else work.seconds


def has_seconds(phase: Phase, work: PhaseWork) -> bool:
    """Check whether a GPU has worked for as long as a phase asks for."""
    return done_s(phase, work) >= phase.seconds


def is_done(phase: Phase, work: PhaseWork) -> bool:
    """Check whether a GPU has done what a phase asks for."""
    return has_seconds(phase, work) and work.passes() >= phase.passes


def first_left(works: Iterable[tuple[Phase, PhaseWork]]) -> int | None:
    """Find the first phase that is neither done nor given up, or return None."""
    return next(
        (
            number
            for number, (phase, work) in enumerate(works)
            if not is_done(phase, work) and work.given_up is None
        ),
        None,
    )


def _add(phase: Phase, work: PhaseWork, event: Worked) -> PhaseWork:
    """Add the report of a stressor."""
    report = event.report
    # Wrong results were checked, too: the GPU has failed, and its plan comes to an end.
    counts = event.warm and (not phase.checked or report.checks > 0)
    seconds = report.seconds if counts else 0.0
    stretch = work.stretch + seconds
    return replace(
        work,
        seconds=work.seconds + seconds,
        uncounted=work.uncounted + report.seconds - seconds,
        **{name: getattr(work, name) + getattr(report, name) for name in COUNTS},
        stretch=stretch,
        longest=max(work.longest, stretch),
    )


def _cover(work: PhaseWork, message: MemoryCovered) -> PhaseWork:
    """Add one pattern that has covered the memory."""
    covered = {**work.covered, message.pattern: work.covered.get(message.pattern, 0) + 1}
    work = replace(work, covered=covered, patterns=message.patterns)
    if message.stripe:
        return replace(work, retained=max(message.share, work.retained or 0.0))
    return replace(work, share=min(message.share, 1.0 if work.share is None else work.share))
