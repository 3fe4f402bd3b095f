"""How hard a stressor works: from targets, readings and the clock to its share of busy time. Pure.

Two loops, one on the utilisation that NVML reports and one on the power, each an integral
controller of the logarithm: the share is multiplied by target over measured. Such a loop needs to
know nothing of the GPU. Where the figure is proportional to the share, as the utilisation is, one
correction is right; where a part of it is always there, as the power of an idle GPU is, what is
left of an error after a correction is the share that this part has of the target. And it cannot
wind up: it begins from the share that is in force, whoever asked for that.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from sentinel.config.model import Config
from sentinel.core.actions import Action, Event, SetPace
from sentinel.core.events import gpu_event
from sentinel.core.gpu.teardown import Step
from sentinel.core.state import GpuState, Pacing, Running, Targets
from sentinel.protocol.gpu import Reading

#: The least that a loop asks for: with less, nothing could be measured any more.
MIN_PACE = 0.01
#: What a stressor with a target power begins with, since nobody knows what its workload draws.
FIRST_FOR_POWER = 0.5
#: For so long after a new pace, a reading may still tell of the old one, in seconds: NVML's
#: sampling period and its average of the power are up to a second each. Or for a poll, over which
#: power is told from the energy.
SETTLING = 1.0
#: A pace is sent when it differs from the last one by more than this.
MIN_PACE_CHANGE = 0.002
#: A turn is due this much early, in seconds: sums of times are not exact, and a tick that came for
#: it must not find that it is not quite there.
EARLY = 0.001
#: The most that one correction multiplies or divides by.
MAX_CORRECTION = 2.0


def step(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Step:
    """Work out anew how hard the stressor is to work, and tell it where that has changed.

    Args:
        gpu_state: With everything else folded in; one without a RUNNING stressor stays as it is.
        reading: The latest reading of this GPU.
        now: The time.
        config: What holds for this GPU.
    """
    running = gpu_state.stressor
    if not isinstance(running, Running):
        return Step(gpu_state=gpu_state)
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
        actions = (SetPace(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation, share=share),)
    if pacing is running.pacing:
        return Step(gpu_state=gpu_state)
    gpu_state = replace(gpu_state, stressor=replace(running, pacing=pacing))
    return Step(
        gpu_state=gpu_state,
        actions=actions,
        events=(_say(gpu_state, pacing, now),) if aimed else (),
    )


def deadline(gpu_state: GpuState, now: float, config: Config) -> float | None:
    """Return when the next turn of a cycle of work and rest is due, if there is one."""
    if config.duty is None or not isinstance(gpu_state.stressor, Running):
        return None
    since = gpu_state.stressor.since
    return since + config.duty.next_turn(now + EARLY - since)


def wants_load(gpu_state: GpuState) -> bool:
    """Return whether the utilisation must be known to keep a stressor at its pace."""
    return (
        isinstance(gpu_state.stressor, Running)
        and gpu_state.stressor.pacing.targets.util is not None
    )


def _targets(gpu_state: GpuState, running: Running, now: float, config: Config) -> Targets:
    """Return what holds now; cycles begin with work when the stressor is Ready."""
    duty = config.duty
    return Targets(
        util=config.util,
        power=config.power,
        rests=duty is not None and duty.rests(now + EARLY - running.since),
        health=gpu_state.health_pace,
    )


def _aim(pacing: Pacing, targets: Targets) -> Pacing:
    """Take new targets; a loop whose own target is another one begins anew."""
    util, power = pacing.util, pacing.power
    if targets.util != pacing.targets.util:
        util = 1.0 if targets.util is None else targets.util
    if targets.power != pacing.targets.power:
        power = 1.0 if targets.power is None else FIRST_FOR_POWER
    return replace(pacing, targets=targets, util=util, power=power, samples=())


def _share(pacing: Pacing) -> float:
    """Return the lowest of what everybody asks for."""
    ceiling = 0.0 if pacing.targets.rests else pacing.targets.health
    return min(ceiling, pacing.util, pacing.power)


def _differs(share: float, sent: float) -> bool:
    """Return whether the difference is worth a message; to rest or to work in full always is."""
    return share != sent and (abs(share - sent) > MIN_PACE_CHANGE or share in {0.0, 1.0})


def _measure(pacing: Pacing, reading: Reading, config: Config) -> Pacing:
    """Take a sample where one is due, and correct by the mean of enough of them."""
    targets = pacing.targets
    if (targets.util is None and targets.power is None) or pacing.sent == 0.0:
        return pacing
    if reading.load_at < pacing.sent_at + max(SETTLING, config.poll):
        return pacing
    # Polls keep time to a few milliseconds only.
    if reading.load_at < pacing.sampled_at + config.util_every - config.poll / 2:
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
    """Return the share to ask for, where ``share`` led to what was ``measured``."""
    if abs(measured - target) <= tolerance:
        return share
    ratio = target / max(measured, target / MAX_CORRECTION)
    return min(1.0, max(MIN_PACE, share * max(1.0 / MAX_CORRECTION, ratio)))


def _say(gpu_state: GpuState, pacing: Pacing, now: float) -> Event:
    """Say what is aimed at from now on, and the share to begin with."""
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
