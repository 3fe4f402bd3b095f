"""Take one GPU from its reading to its next step: attribute, detect, act. Pure.

This is the path of a newcomer: attribution, occupancy, evidence, kill, in this order.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event, process_fields
from sentinel.core.gpu import child_facts, findings, leaks, lifecycle, pid_mapping
from sentinel.core.gpu.attribution import attribute
from sentinel.core.gpu.ignored_processes import resident_processes
from sentinel.core.gpu.newcomer import expect, newcomer
from sentinel.core.gpu.occupancy import occupancy
from sentinel.core.gpu.teardown import Step
from sentinel.core.gpu.watchers import unwatched_for
from sentinel.core.gpu_state import NOT_READ, Busy, GpuState, Idle, Occupancy, Unknown
from sentinel.core.observation import Observation
from sentinel.core.stressor_state import Stopped, Stopping
from sentinel.protocol.gpu import Reading

#: How long a newcomer counts for the re-arm time, in seconds.
HOUR_S = 3600.0
#: So many newcomers within an hour do not extend the re-arm time.
FREE_NEWCOMERS = 3
#: Evidence of one newcomer, its memory and then its process, comes within so many seconds.
ONE_NEWCOMER_S = 1.0


def step_gpu(
    gpu_state: GpuState, seen: Observation, config: Config, unusable: str | None, *, stalled: bool
) -> Step:
    """Apply what happened on one GPU, then take at most one step.

    Args:
        gpu_state: The GPU after the last tick.
        seen: The observation of this tick.
        config: The configuration of this GPU.
        unusable: Why its readings must not be used, or None.
        stalled: Whether the supervisor did not run for a while just now.
    """
    before, now = gpu_state.occupancy, seen.now
    reading = seen.readings.get(gpu_state.gpu.uuid)
    found, folded = _fold(gpu_state, reading, seen)
    gpu_state, events = folded.gpu_state, [*found.events, *folded.events]
    was_stopping = isinstance(gpu_state.stressor, Stopping)
    gpu_state, learned = pid_mapping.learn(gpu_state, reading, now)
    gpu_state = _attributed(gpu_state, reading, config)
    leaked: list[Event] = []
    if isinstance(gpu_state.stressor, Stopped):
        gpu_state, leaked = leaks.update(gpu_state, reading, now)
    gpu_state, changes = _update_occupancy(gpu_state, reading, now, config, unusable)
    gpu_state = expect(gpu_state, reading, now)
    evidence = newcomer(gpu_state, reading, now, config)
    times = seen.watched.get(gpu_state.gpu.uuid)
    unwatched = None if times is None else unwatched_for(gpu_state, times, now, config)
    step = lifecycle.step(
        gpu_state, reading, evidence, now, config, unwatched=unwatched, stalled=stalled
    )
    gpu_state = step.gpu_state
    names = {event.name for event in (*folded.events, *changes, *step.events)}
    if (
        names & {"gpu.busy", "gpu.yielding"}
        and not gpu_state.leaks
        and not isinstance(before, Busy)
    ):
        gpu_state = _extend_rearm(gpu_state, before, seen, config)
    if was_stopping and not isinstance(gpu_state.stressor, Stopping):
        # While the child was there, unattributed memory was taken for its own.
        gpu_state = _attributed(replace(gpu_state, ended=now), reading, config)
        gpu_state, later = _update_occupancy(gpu_state, reading, now, config, unusable)
        changes += later
    events += [*learned, *leaked, *changes, *step.events]
    return Step(gpu_state=gpu_state, actions=(*found.actions, *step.actions), events=tuple(events))


def reattribute(
    gpu_state: GpuState, seen: Observation, config: Config, unusable: str | None
) -> Step:
    """Apply changed allocations to the reading of this tick; the next tick acts on the result."""
    before, reading = gpu_state.occupancy, seen.readings.get(gpu_state.gpu.uuid)
    gpu_state = _attributed(gpu_state, reading, config)
    gpu_state, events = _update_occupancy(gpu_state, reading, seen.now, config, unusable)
    became_busy = any(event.name == "gpu.busy" for event in events)
    if became_busy and not gpu_state.leaks and not isinstance(before, Busy):
        gpu_state = _extend_rearm(gpu_state, before, seen, config)
    return Step(gpu_state=gpu_state, events=tuple(events))


def _fold(gpu_state: GpuState, reading: Reading | None, seen: Observation) -> tuple[Step, Step]:
    """Apply the findings and the other facts about the child."""
    facts = seen.children.get(gpu_state.gpu.uuid)
    if facts is None:
        return Step(gpu_state=gpu_state), Step(gpu_state=gpu_state)
    found = findings.fold(gpu_state, facts, reading, seen.now)
    return found, child_facts.fold(found.gpu_state, facts, seen.now)


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
) -> tuple[GpuState, list[Event]]:
    """Decide the occupancy, and report a change."""
    before = gpu_state.occupancy
    after = (
        occupancy(gpu_state, reading, now, config) if unusable is None else Unknown(reason=unusable)
    )
    if after == before:
        return gpu_state, []
    gpu_state = replace(gpu_state, occupancy=after)
    match before, after:
        case Busy(processes=old), Busy(processes=new) if [p.pid for p in old] == [
            p.pid for p in new
        ]:
            return gpu_state, []
        case Unknown(reason=old), Unknown() if old != NOT_READ:
            return gpu_state, []
        case _, Busy(reason=reason):
            fields = {"reason": reason, "processes": process_fields(gpu_state)}
            return gpu_state, [gpu_event("gpu.busy", gpu_state, now, **fields)]
        case _, Unknown(reason=reason):
            return gpu_state, [gpu_event("gpu.unknown", gpu_state, now, reason=reason)]
        case _:
            return gpu_state, [gpu_event("gpu.idle", gpu_state, now, left_alone_s=gpu_state.rearm)]


def _extend_rearm(
    gpu_state: GpuState, before: Occupancy, seen: Observation, config: Config
) -> GpuState:
    """Set the re-arm time after a newcomer.

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
