"""Start at most one child per tick: a stressor, or one that clears a leak. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Start
from sentinel.core.events import gpu_event
from sentinel.core.gpu import allocations, leaks, lifecycle, verdict
from sentinel.core.node import burnin, groups, limits, spare_processes
from sentinel.core.node.admin import admin_hold
from sentinel.core.node.node_step import NodeStep
from sentinel.core.observation import Observation
from sentinel.core.state import State


def start_one(state: State, seen: Observation, config: Config) -> NodeStep:
    """Start a stressor on the first GPU that allows it, or clear a leak."""
    uuid = next(startable(state, seen, config), None)
    if config.dry_run:
        return NodeStep(state=state)
    if uuid is None:
        return _clear_one(state, seen, config)
    gpu_state, own = state.gpu_states[uuid], config.of(uuid)
    gpu_state = replace(
        lifecycle.start(gpu_state, seen.readings[uuid], seen.now),
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
    state = replace(state, gpu_states={**state.gpu_states, uuid: gpu_state}, last_start=seen.now)
    if standby:
        state = replace(state, standby=spare_processes.used(seen.now))
    return NodeStep(state=state, actions=(start,), events=(event,))


def form_groups(state: State, seen: Observation, config: Config) -> NodeStep:
    """Form the groups of GPUs that wait for each other, of those that could start now."""
    if not burnin.is_planned(state, config) or all(
        groups.why_waiting(one, config.of(uuid)) is None for uuid, one in state.gpu_states.items()
    ):
        return NodeStep(state=state)
    if limits.node_verdict(state, seen, config) is not None:
        return NodeStep(state=state)  # a group that cannot start would only be broken up
    verdicts = limits.verdicts(state, seen, config)
    ready = [uuid for uuid, one in verdicts.items() if one.rule == groups.RULE]
    return groups.form(state, seen.now, config, ready)


def startable(state: State, seen: Observation, config: Config) -> Iterator[str]:
    """Yield the GPUs on which a stressor may be started now."""
    verdicts = limits.verdicts(state, seen, config)
    yield from (uuid for uuid, one in verdicts.items() if one.allowed)


def _clear_one(state: State, seen: Observation, config: Config) -> NodeStep:
    """Open and close a context on the first GPU whose leak is due to be cleared."""
    if limits.forbids_all(state, seen, config) is not None:
        return NodeStep(state=state)
    for uuid, gpu_state in state.gpu_states.items():
        reading, own = seen.readings.get(uuid), config.of(uuid)
        due = leaks.clearing_due(gpu_state, reading, config)
        if reading is None or due is None or seen.now < due:
            continue
        if not verdict.is_fresh(reading, seen.now, config):
            continue
        if admin_hold(state, gpu_state) is not None:
            continue  # an operator's hold excludes even a short context
        leak = replace(gpu_state.leak, clearings=gpu_state.leak.clearings + 1)
        begun = lifecycle.start(replace(gpu_state, leak=leak), reading, seen.now, clearing=True)
        begun = replace(begun, launch_spec=limits.launch_spec(own, gpu_state))
        state = replace(state, gpu_states={**state.gpu_states, uuid: begun}, last_start=seen.now)
        event = gpu_event("gpu.cleanup_started", begun, seen.now, attempt=leak.clearings)
        start = Start(uuid=uuid, generation=begun.generation, clearing=True)
        return NodeStep(state=state, actions=(start,), events=(event,))
    return NodeStep(state=state)
