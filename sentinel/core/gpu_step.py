"""Take one GPU from its reading to its next step: attribute, detect, act. Pure.

This is the path of a newcomer: ``attribution``, ``occupancy``, evidence by ``newcomer``, and the
kill by ``lifecycle``, in this order. After the exit, which ``child_facts`` applies, ``teardown``
waits for the memory. Here, each newcomer extends the re-arm time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core import attribution, child_facts, lifecycle, teardown
from sentinel.core.attribution import attribute, resident_processes
from sentinel.core.gpu_state import NOT_READ, Busy, GpuState, Idle, Occupancy, Stopping, Unknown
from sentinel.core.newcomer import expect, newcomer, unwatched_for
from sentinel.core.observation import Observation
from sentinel.core.occupancy import occupancy, stale_at
from sentinel.core.step import Step, gpu_event, process_fields
from sentinel.protocol.gpu import Reading

#: How long a newcomer counts for the re-arm time, in seconds.
HOUR_S = 3600.0
#: So many newcomers within an hour do not extend the re-arm time.
FREE_NEWCOMERS = 3
#: Evidence of one newcomer, its memory and then its process, comes within so many seconds.
ONE_NEWCOMER_S = 1.0


def step_gpu(
    gpu_state: GpuState, seen: Observation, config: Config, unusable: str | None, *, stalled: bool
) -> Step[GpuState]:
    """Apply what happened on one GPU, then take at most one step.

    Args:
        gpu_state: The GPU after the last tick.
        seen: The observation of this tick.
        config: The configuration of this GPU.
        unusable: Why its readings must not be used, or None.
        stalled: Whether the supervisor did not run for a while just now.
    """
    before, now = gpu_state.occupancy, seen.now
    uuid = gpu_state.gpu.uuid
    reading, facts, times = seen.readings.get(uuid), seen.children.get(uuid), seen.watched.get(uuid)
    step = Step(gpu_state)
    if facts is not None:
        step = step.then(child_facts.fold_findings, facts, reading, now).then(
            child_facts.fold, facts, now
        )
    was_stopping = isinstance(step.state.stressor, Stopping)
    step = step.then(attribution.learn, reading, now).then(_attribute, reading, now, config)
    step = step.then(_update_occupancy, reading, now, config, unusable)
    gpu_state = expect(step.state, reading, now)
    evidence = newcomer(gpu_state, reading, now, config)
    unwatched = None if times is None else unwatched_for(gpu_state, times, now, config)
    supervised = lifecycle.step(
        gpu_state, reading, evidence, now, config, unwatched=unwatched, stalled=stalled
    )
    step = _rearmed(step.then(lambda _: supervised), before, seen, config)
    if was_stopping and not isinstance(step.state.stressor, Stopping):
        # While the child was there, unattributed memory was taken for its own. A GPU that is busy
        # only now has a newcomer that came beside it.
        gpu_state = _attributed(replace(step.state, ended=now), reading, config)
        seen_now = _update_occupancy(gpu_state, reading, now, config, unusable)
        seen_now = _rearmed(seen_now, gpu_state.occupancy, seen, config)
        step = step.then(lambda _: seen_now)
    return step


def reattribute(
    gpu_state: GpuState, seen: Observation, config: Config, unusable: str | None
) -> Step[GpuState]:
    """Apply changed allocations to the reading of this tick; the next tick acts on the result."""
    before, reading = gpu_state.occupancy, seen.readings.get(gpu_state.gpu.uuid)
    gpu_state = _attributed(gpu_state, reading, config)
    step = _update_occupancy(gpu_state, reading, seen.now, config, unusable)
    return _rearmed(step, before, seen, config)._replace(due=seen.now)


def _attribute(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Step[GpuState]:
    """Attribute a reading, and follow what is leaked by it."""
    return teardown.update_leak(_attributed(gpu_state, reading, config), reading, now)


def _attributed(gpu_state: GpuState, reading: Reading | None, config: Config) -> GpuState:
    """Store the resident processes and the attribution of a reading."""
    residents = resident_processes(gpu_state, reading, config)
    if residents != gpu_state.resident_processes:
        gpu_state = replace(gpu_state, resident_processes=residents)
    attribution = attribute(gpu_state, reading, config)
    if attribution == gpu_state.attribution:
        return gpu_state
    return replace(gpu_state, attribution=attribution)


def _update_occupancy(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config, unusable: str | None
) -> Step[GpuState]:
    """Decide the occupancy, and report a change."""
    before, due = gpu_state.occupancy, math.inf
    after = (
        occupancy(gpu_state, reading, now, config) if unusable is None else Unknown(reason=unusable)
    )
    if reading is not None and not isinstance(after, Unknown):
        due = stale_at(gpu_state, reading, config)
    if after == before:
        return Step(gpu_state, due=due)
    gpu_state = replace(gpu_state, occupancy=after)
    lost = reading is not None and reading.lost
    match before, after:
        case Busy(processes=old), Busy(processes=new) if [p.pid for p in old] == [
            p.pid for p in new
        ]:
            return Step(gpu_state, due=due)
        case Unknown(reason=old), Unknown() if old != NOT_READ and not lost:
            return Step(gpu_state)
        case _, Busy(reason=reason):
            fields = {"reason": reason, "processes": process_fields(gpu_state)}
            event = gpu_event("gpu.busy", gpu_state, now, **fields)
        case _, Unknown(reason=reason):
            event = gpu_event("gpu.unknown", gpu_state, now, reason=reason, lost=lost)
        case _:
            event = gpu_event("gpu.idle", gpu_state, now, left_alone_s=gpu_state.rearm)
    return Step(gpu_state, events=(event,), due=due)


def _rearmed(
    step: Step[GpuState], before: Occupancy, seen: Observation, config: Config
) -> Step[GpuState]:
    """Extend the re-arm time if a step has shown a newcomer on a GPU that was not busy before."""
    if not step.events or step.state.leaks or isinstance(before, Busy):
        return step
    if not any(event.name in {"gpu.busy", "gpu.yielding"} for event in step.events):
        return step
    return step._replace(state=_extend_rearm(step.state, before, seen, config))


def _extend_rearm(
    gpu_state: GpuState, before: Occupancy, seen: Observation, config: Config
) -> GpuState:
    """Set the re-arm time after a newcomer; a change of the setting counts from the next one on.

    It doubles with each newcomer within the hour beyond the first few, so that short jobs that
    come all day do not find a stressor between each two. It is then scaled by a random 50 to 150 %,
    so that two sentinels that cannot see each other settle. A process found on a GPU that was
    unknown ``before`` may have been there all along, and is no newcomer.
    """
    newcomers = tuple(at for at in gpu_state.newcomers if seen.now - at < HOUR_S)
    if isinstance(before, Idle) and not (newcomers and seen.now - newcomers[-1] < ONE_NEWCOMER_S):
        newcomers = (*newcomers, seen.now)
    doublings = max(0, len(newcomers) - FREE_NEWCOMERS)
    rearm = min(config.rearm * 2.0**doublings, max(config.rearm, config.rearm_longest))
    return replace(gpu_state, newcomers=newcomers, rearm=rearm * (0.5 + seen.random_value))
