"""Start at most one child per tick, and form the groups that begin a phase together. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.config.plan import Plan
from sentinel.core import attribution, lifecycle, occupancy, teardown
from sentinel.core import burnin_progress as progress
from sentinel.core.burnin_progress import Burnin, Group
from sentinel.core.gpu_state import (
    Backoff,
    Busy,
    Fatal,
    GpuState,
    Idle,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.core.node import burnin, limits, serving_processes
from sentinel.core.observation import Observation
from sentinel.core.state import State, admin_hold
from sentinel.core.step import Event, Start, Step, gpu_event, upcoming
from sentinel.protocol.stressor import Failed, StressorGroup

#: The longest time that a GPU waits for others, in seconds; then it goes on with those there are.
MAX_WAIT_S = 600.0
#: The rule that forbids a start to a GPU that waits for its group.
RULE = "burnin.together"


def why_waiting(gpu_state: GpuState, config: Config) -> str | None:
    """Explain why a GPU must not begin its phase yet by its own settings, or return None."""
    plan, burnin = config.plan, gpu_state.burnin
    if plan is None or burnin is None or burnin.finished(plan) or burnin.group is not None:
        return None
    phase = plan.phases[burnin.phase]
    return f"waits to begin {phase.name} together with the other GPUs" if phase.together else None


def group_of(gpu_state: GpuState) -> Group | None:
    """Return the group that a GPU works in, or None."""
    return gpu_state.burnin.group if gpu_state.burnin is not None else None


def rank_of(gpu_state: GpuState) -> StressorGroup | None:
    """Return the place of a GPU's stressor in its group, or None."""
    group = group_of(gpu_state)
    if group is None:
        return None
    rank = group.members.index(gpu_state.gpu.uuid)
    return StressorGroup(number=group.number, rank=rank, gpus=group.indices)


def are_done(state: State, group: Group | None, plan: Plan) -> bool:
    """Check whether every member of a group has done what its phase asks for."""
    if group is None:
        return False
    found = [state.gpu_states[uuid].burnin for uuid in group.members]
    return all(
        one is not None
        and one.group == group
        and progress.is_done(one.current, plan.phases[one.phase])
        for one in found
    )


def form(state: State, now: float, ready: Iterable[str]) -> Step[State]:
    """Form the groups that are complete, or that have waited for long enough.

    Args:
        state: The state.
        now: The time.
        ready: The GPUs that only the wait for their group keeps from starting.
    """
    gpu_states, events, last_group = dict(state.gpu_states), list[Event](), state.last_group
    config, due = state.config, math.inf
    # A burn-in and the daemon's own plan may be equal, and only the latter is repeated.
    waiting: dict[tuple[Plan, bool, int], list[str]] = {}
    for uuid, gpu_state in state.gpu_states.items():
        own = config.of(uuid)
        if own.plan is not None and why_waiting(gpu_state, own) is not None:
            key = own.plan, own.repeat, _burnin(gpu_state).phase
            waiting.setdefault(key, []).append(uuid)
    there = set(ready)
    for (plan, repeat, number), uuids in waiting.items():
        members = tuple(uuid for uuid in uuids if uuid in there)
        missing = [
            one.gpu.index
            for uuid, one in state.gpu_states.items()
            if uuid not in members
            and (config.of(uuid).plan, config.of(uuid).repeat) == (plan, repeat)
            and _can_reach(_burnin(one), number, plan)
        ]
        if config.max_gpus is not None and len(members) > config.max_gpus:
            members, missing = members[: config.max_gpus], []  # never more of them at once
        since = [_burnin(gpu_states[uuid]).waiting_since for uuid in members]
        begun = min((at for at in since if at is not None), default=now)
        if members and (not missing or now >= begun + MAX_WAIT_S):
            last_group += 1
            group = Group(
                number=last_group,
                members=members,
                indices=tuple(gpu_states[uuid].gpu.index for uuid in members),
            )
            events += _join(gpu_states, group, missing, now - begun, now, plan)
            continue
        due = min(due, upcoming(now, begun + MAX_WAIT_S))
        for uuid in uuids:
            events += _wait(gpu_states, uuid, missing, now, plan, ready=uuid in there)
    state = replace(state, last_group=last_group) if last_group != state.last_group else state
    return Step(state.with_gpu_states(gpu_states), events=tuple(events), due=due)


def _can_reach(burnin: Burnin, number: int, plan: Plan) -> bool:
    """Check whether a GPU that is in no group of a phase can still come to it."""
    if burnin.finished(plan):
        return False
    return burnin.phase < number or (burnin.phase == number and burnin.group is None)


def _join(
    gpu_states: dict[str, GpuState],
    group: Group,
    missing: list[int],
    waited: float,
    now: float,
    plan: Plan,
) -> list[Event]:
    """Put GPUs into a group; return an event for each."""
    events = []
    for rank, uuid in enumerate(group.members):
        burnin = _burnin(gpu_states[uuid])
        burnin = replace(burnin, group=group, waiting_since=None)
        gpu_states[uuid] = replace(gpu_states[uuid], burnin=burnin)
        fields = {
            "phase": plan.phases[burnin.phase].name,
            "rank": rank,
            "members": group.indices,
            "missing": missing,
            "waited_s": waited,
        }
        events.append(gpu_event("burnin.grouped", gpu_states[uuid], now, **fields))
    return events


def _wait(
    gpu_states: dict[str, GpuState],
    uuid: str,
    missing: list[int],
    now: float,
    plan: Plan,
    *,
    ready: bool,
) -> list[Event]:
    """Note since when a GPU could begin; return an event if that is since now.

    A reading that is late for a moment ends no wait; a foreign process does.
    """
    gpu_state = gpu_states[uuid]
    burnin = _burnin(gpu_state)
    begins = ready and burnin.waiting_since is None
    ends = burnin.waiting_since is not None and isinstance(gpu_state.occupancy, Busy)
    if begins or ends:
        burnin = replace(burnin, waiting_since=now if begins else None)
        gpu_states[uuid] = replace(gpu_state, burnin=burnin)
    if not begins:
        return []
    fields = {"phase": plan.phases[burnin.phase].name, "missing": missing}
    return [gpu_event("burnin.waiting", gpu_state, now, **fields)]


def break_up(state: State, now: float) -> Step[State]:
    """Break up each group of which a member has left; its phase is done again together."""
    events, gpu_states = list[Event](), dict(state.gpu_states)
    found = {one for gpu_state in gpu_states.values() if (one := group_of(gpu_state)) is not None}
    if not found or state.shutdown is not None:
        return Step(state)
    for group in sorted(found, key=lambda one: one.number):
        # A session with a workload takes a GPU out of the plan.
        plans = {uuid: state.config.of(uuid).plan for uuid in group.members}
        left = {
            uuid: why
            for uuid, plan in plans.items()
            if (why := _why_left(state.gpu_states[uuid], group, plan)) is not None
        }
        if not left:
            continue
        first, why = next(iter(left.items()))
        reason = f"GPU {gpu_states[first].gpu.index} left its group: {why}"
        for uuid in group.members:
            burnin = _burnin(gpu_states[uuid])
            if burnin.group != group:
                continue
            # A GPU alone is interrupted like in any other phase.
            broken = (*burnin.broken_groups, reason) if len(group.members) > 1 else ()
            burnin = replace(burnin, group=None, broken_groups=broken)
            gpu_states[uuid] = replace(gpu_states[uuid], burnin=burnin)
            plan = plans[uuid]
            if uuid not in left and plan is not None:
                fields = {"phase": plan.phases[burnin.phase].name, "reason": reason}
                events.append(gpu_event("burnin.ungrouped", gpu_states[uuid], now, **fields))
    return Step(state.with_gpu_states(gpu_states), events=tuple(events))


def why_given_up(burnin: Burnin, plan: Plan) -> str | None:
    """Explain why a GPU gives up to find a group that lasts, or return None."""
    times = len(burnin.broken_groups)
    if times < plan.max_failures:
        return None
    return f"its group was broken up {times} times; the last time, {burnin.broken_groups[-1]}"


def _why_left(gpu_state: GpuState, group: Group, plan: Plan | None) -> str | None:
    """Explain why a GPU is not in its group any more, or return None."""
    burnin = _burnin(gpu_state)
    if plan is None:
        return "it has a workload instead of the plan"
    if burnin.group != group or burnin.finished(plan):
        return burnin.ended or "it does no more of this phase"
    return _why_idle(gpu_state, group)


def _why_idle(gpu_state: GpuState, group: Group) -> str | None:
    """Explain why a GPU neither works in its group nor could start, or return None."""
    spec = gpu_state.launch_spec
    started = spec is not None and spec.group == group
    match gpu_state.stressor, gpu_state.occupancy:
        case ((Starting() | Running()), _) if started:
            return None
        case (Stopped(), Idle()) if not started:
            return None
        case (Stopping(failed=Failed(reason=reason)), _):
            return reason
        case ((Backoff(reason=reason) | Fatal(reason=reason)), _):
            return reason
        case (Stopping(cause=StopCause.YIELD), _) | (_, Busy()):
            return "a foreign process needed it"
        case (_, Unknown(reason=reason)):
            return f"it could not be read: {reason}"
        case _:
            return "its stressor ended"


def _burnin(gpu_state: GpuState) -> Burnin:
    return gpu_state.burnin or Burnin()


def start_one(state: State, seen: Observation) -> Step[State]:
    """Start a stressor on the first GPU that allows it, or clear a leak."""
    if state.unjudged:
        return Step(state, due=seen.now)
    verdicts = limits.verdicts(state, seen)
    due = upcoming(seen.now, *(occupancy.until for occupancy in verdicts.values()))
    if state.config.dry_run:
        return Step(state, due=due)
    uuid = next((uuid for uuid, occupancy in verdicts.items() if occupancy.allowed), None)
    if uuid is None:
        return Step(state, due=due).then(_clear_one, seen)
    gpu_state, own = state.gpu_states[uuid], state.config.of(uuid)
    begun = lifecycle.start(gpu_state, seen.readings[uuid], seen.now, own)
    gpu_state = replace(
        begun.state,
        launch_spec=limits.launch_spec(own, gpu_state),
        committed_at_start=attribution.committed(gpu_state),
    )
    standby = state.standby.running and seen.standby is not None and seen.standby.ready
    event = gpu_event(
        "stressor.starting", gpu_state, seen.now, workload=own.workload, standby=standby
    )
    start = Start(
        uuid=uuid,
        generation=gpu_state.generation,
        committed=attribution.outstanding(gpu_state),
        standby=standby,
        group=rank_of(gpu_state),
    )
    state = replace(state.with_gpu(gpu_state), last_start=seen.now)
    if standby:
        state = replace(state, standby=serving_processes.standby_used(seen.now))
    # Another GPU may wait for its start.
    return Step(state, actions=(start,), events=(event,), due=seen.now)


def form_groups(state: State, seen: Observation) -> Step[State]:
    """Form the groups of GPUs that wait for each other, of those that could start now."""
    config = state.config
    if not burnin.is_planned(state) or all(
        why_waiting(gpu_state, config.of(uuid)) is None
        for uuid, gpu_state in state.gpu_states.items()
    ):
        return Step(state)
    if limits.node_verdict(state, seen) is not None:
        return Step(state)  # a group that cannot start would only be broken up
    verdicts = limits.verdicts(state, seen)
    ready = [uuid for uuid, occupancy in verdicts.items() if occupancy.rule == RULE]
    return form(state, seen.now, ready)


def _clear_one(state: State, seen: Observation) -> Step[State]:
    """Open and close a context on the first GPU whose leak is due to be cleared."""
    if limits.forbids_all(state, seen) is not None:
        return Step(state)
    for uuid, gpu_state in state.gpu_states.items():
        reading, own = seen.readings.get(uuid), state.config.of(uuid)
        due = teardown.clearing_due(gpu_state, reading, own)
        if reading is None or due is None or seen.now < due:
            continue  # the verdict about its leak has the time
        if not occupancy.is_fresh(reading, seen.now, own):
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
