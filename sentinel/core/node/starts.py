"""Start at most one child per tick: a stressor, or one that clears a leak. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Start
from sentinel.core.events import gpu_event
from sentinel.core.gpu import allocations, leaks, lifecycle, verdict
from sentinel.core.node import burnin, groups, limits, spare_processes
from sentinel.core.node.admin import admin_hold
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Step, upcoming


def start_one(state: State, seen: Observation) -> Step[State]:
    """Start a stressor on the first GPU that allows it, or clear a leak."""
    if state.unjudged:
        return Step(state, due=seen.now)
    verdicts = limits.verdicts(state, seen)
    due = upcoming(seen.now, *(verdict.until for verdict in verdicts.values()))
    if state.config.dry_run:
        return Step(state, due=due)
    uuid = next((uuid for uuid, verdict in verdicts.items() if verdict.allowed), None)
    if uuid is None:
        return Step(state, due=due).then(_clear_one, seen)
    gpu_state, own = state.gpu_states[uuid], state.config.of(uuid)
    begun = lifecycle.start(gpu_state, seen.readings[uuid], seen.now, own)
    gpu_state = replace(
        begun.state,
        launch_spec=limits.launch_spec(own, gpu_state),
        committed_at_start=allocations.committed(gpu_state),
    )
    standby = state.standby.running and seen.standby is not None and seen.standby.ready
    event = gpu_event(
        "stressor.starting", gpu_state, seen.now, workload=own.workload, standby=standby
    )
    start = Start(
        uuid=uuid,
        generation=gpu_state.generation,
        committed=allocations.outstanding(gpu_state),
        standby=standby,
        group=groups.rank_of(gpu_state),
    )
    state = replace(state.with_gpu(gpu_state), last_start=seen.now)
    if standby:
        state = replace(state, standby=spare_processes.used(seen.now))
    # Another GPU may wait for its start.
    return Step(state, actions=(start,), events=(event,), due=seen.now)


def form_groups(state: State, seen: Observation) -> Step[State]:
    """Form the groups of GPUs that wait for each other, of those that could start now."""
    config = state.config
    if not burnin.is_planned(state) or all(
        groups.why_waiting(gpu_state, config.of(uuid)) is None
        for uuid, gpu_state in state.gpu_states.items()
    ):
        return Step(state)
    if limits.node_verdict(state, seen) is not None:
        return Step(state)  # a group that cannot start would only be broken up
    verdicts = limits.verdicts(state, seen)
    ready = [uuid for uuid, verdict in verdicts.items() if verdict.rule == groups.RULE]
    return groups.form(state, seen.now, ready)


def _clear_one(state: State, seen: Observation) -> Step[State]:
    """Open and close a context on the first GPU whose leak is due to be cleared."""
    if limits.forbids_all(state, seen) is not None:
        return Step(state)
    for uuid, gpu_state in state.gpu_states.items():
        reading, own = seen.readings.get(uuid), state.config.of(uuid)
        due = leaks.clearing_due(gpu_state, reading, own)
        if reading is None or due is None or seen.now < due:
            continue  # the verdict about its leak has the time
        if not verdict.is_fresh(reading, seen.now, own):
            continue
        if admin_hold(state, gpu_state) is not None:
            continue  # an operator's hold excludes even a short context
        leak = replace(gpu_state.leak, clearings=gpu_state.leak.clearings + 1)
        spec = limits.launch_spec(own, gpu_state)
        leaking = replace(gpu_state, leak=leak, launch_spec=spec)
        step = lifecycle.start(leaking, reading, seen.now, own, clearing=True)
        event = gpu_event("gpu.cleanup_started", step.state, seen.now, attempt=leak.clearings)
        start = Start(uuid=uuid, generation=step.state.generation, clearing=True)
        state = replace(state.with_gpu(step.state), last_start=seen.now)
        return Step(state, actions=(start,), events=(event,), due=step.due)
    return Step(state)
