"""Control a stressor's share of busy time by targets, readings and the clock. Pure.

Two loops, one on NVML's utilization and one on power, each an integral controller of the logarithm:
the share is multiplied by target over measured. Such a loop needs no model of the GPU. If the
figure is proportional to the share, as the utilization is, one correction is exact. If it has a
constant part, as the power of an idle GPU is, the error left after a correction is that part's
share of the target. The loop cannot wind up: it starts from the share in force, whichever rule set
it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from sentinel.config.model import Config
from sentinel.core.gpu_state import GpuState, Pacing, Running, Targets
from sentinel.core.observation import Observation
from sentinel.core.step import Action, Event, Send, Step, gpu_event
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import Pace

#: The minimum share that a loop asks for: below it, nothing could be measured.
MIN_PACE = 0.01
#: The first share with a target power, since the draw of the workload is unknown.
FIRST_FOR_POWER = 0.5
#: A reading may show the old pace for so long after a new one, in seconds, or for one poll if that
#: is longer: NVML's sampling period and its average of the power are up to a second each, and power
#: from the energy counter is averaged over a poll.
SETTLE_S = 1.0
#: A pace is sent when it differs from the last one by more than this.
MIN_PACE_CHANGE = 0.002
#: A change of the duty cycle is due this much early, in seconds: sums of times are inexact, and
#: the tick that is scheduled for the change must find it due.
TIMER_SLACK_S = 0.001
#: The maximum factor of one correction.
MAX_CORRECTION = 2.0


def step(gpu_state: GpuState, seen: Observation, config: Config) -> Step[GpuState]:
    """Compute the stressor's share of busy time, and send a changed one.

    Args:
        gpu_state: The GPU after its step; unchanged unless its stressor is RUNNING.
        seen: The observation of this tick.
        config: The configuration of this GPU.
    """
    running, now = gpu_state.stressor, seen.now
    if not isinstance(running, Running):
        return Step(gpu_state)
    due, uuid = _next_turn(running, now, config), gpu_state.gpu.uuid
    reading = seen.readings.get(uuid)
    pacing, targets = running.pacing, _targets(gpu_state, running, now, config)
    aimed = targets != pacing.targets
    if aimed:
        pacing = _aim(pacing, targets)
    if reading is not None:
        pacing = _measure(pacing, reading, config)
    share = _share(pacing)
    actions: tuple[Action, ...] = ()
    if _differs(share, pacing.sent):
        pacing = replace(pacing, sent=share, sent_at=now, samples=())
        actions = (Send(uuid=uuid, generation=gpu_state.generation, message=Pace(share=share)),)
    if pacing is running.pacing:
        return Step(gpu_state, due=due)
    gpu_state = replace(gpu_state, stressor=replace(running, pacing=pacing))
    events = (_event(gpu_state, pacing, now),) if aimed else ()
    return Step(gpu_state, actions=actions, events=events, due=due)


def _next_turn(running: Running, now: float, config: Config) -> float:
    """Compute when the duty cycle changes next; infinity without one."""
    if config.duty is None:
        return math.inf
    return running.since + config.duty.next_turn(now + TIMER_SLACK_S - running.since)


def needs_utilization(gpu_state: GpuState) -> bool:
    """Check whether a stressor's pace depends on the utilization."""
    return (
        isinstance(gpu_state.stressor, Running)
        and gpu_state.stressor.pacing.targets.util is not None
    )


def _targets(gpu_state: GpuState, running: Running, now: float, config: Config) -> Targets:
    """Return the current targets; a duty cycle begins with work at Ready."""
    duty = config.duty
    return Targets(
        util=config.util,
        power=config.power,
        rests=duty is not None and duty.rests(now + TIMER_SLACK_S - running.since),
        health=gpu_state.health_pace,
    )


def _aim(pacing: Pacing, targets: Targets) -> Pacing:
    """Set new targets; a loop whose target has changed starts over."""
    util, power = pacing.util, pacing.power
    if targets.util != pacing.targets.util:
        util = 1.0 if targets.util is None else targets.util
    if targets.power != pacing.targets.power:
        power = 1.0 if targets.power is None else FIRST_FOR_POWER
    return replace(pacing, targets=targets, util=util, power=power, samples=())


def _share(pacing: Pacing) -> float:
    """Return the lowest share that any rule asks for."""
    ceiling = 0.0 if pacing.targets.rests else pacing.targets.health
    return min(ceiling, pacing.util, pacing.power)


def _differs(share: float, sent: float) -> bool:
    """Check whether to send a share: it differs enough, or means rest or full speed."""
    return share != sent and (abs(share - sent) > MIN_PACE_CHANGE or share in {0.0, 1.0})


def _measure(pacing: Pacing, reading: Reading, config: Config) -> Pacing:
    """Take a sample if one is due, and correct by the mean of enough samples."""
    targets = pacing.targets
    if (targets.util is None and targets.power is None) or pacing.sent == 0.0:
        return pacing
    if reading.load_at < pacing.sent_at + max(SETTLE_S, config.quick_poll):
        return pacing
    # Polls are accurate to a few milliseconds.
    if reading.load_at < pacing.sampled_at + config.util_every - config.quick_poll / 2:
        return pacing
    sample = (reading.utilization, reading.power)
    if reading.load_at <= pacing.sampled_at or sample == (None, None):
        return pacing
    samples = (*pacing.samples, sample)
    pacing = replace(pacing, sampled_at=reading.load_at, samples=samples)
    if len(samples) < config.util_samples:
        return pacing
    util, power = pacing.util, pacing.power
    seen = [value for value, _ in samples if value is not None]
    drawn = [value for _, value in samples if value is not None]
    if targets.util is not None and seen:
        near = config.util_tolerance
        util = _corrected(min(util, pacing.sent), targets.util, fmean(seen), near)
    if targets.power is not None and drawn:
        near = config.util_tolerance * targets.power
        power = _corrected(min(power, pacing.sent), targets.power, fmean(drawn), near)
    return replace(pacing, util=util, power=power, samples=())


def _corrected(share: float, target: float, measured: float, tolerance: float) -> float:
    """Correct a share that led to the measured value."""
    if abs(measured - target) <= tolerance:
        return share
    ratio = target / max(measured, target / MAX_CORRECTION)
    return min(1.0, max(MIN_PACE, share * max(1.0 / MAX_CORRECTION, ratio)))


def _event(gpu_state: GpuState, pacing: Pacing, now: float) -> Event:
    """Build the event that reports new targets and the first share."""
    targets = pacing.targets
    return gpu_event(
        "stressor.pace",
        gpu_state,
        now,
        util_target=targets.util,
        power_target_w=targets.power,
        rests=targets.rests,
        health=targets.health,
        share=pacing.sent,
    )
