"""Form the groups of GPUs that do a phase of a burn-in together, and break them up. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.config.plan import Plan
from sentinel.config.verified_work import is_done
from sentinel.core.burnin.progress import Burnin, Group
from sentinel.core.burnin.settings import is_repeated
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
from sentinel.core.state import State
from sentinel.core.step import Step, gpu_event, upcoming
from sentinel.protocol.stressor import Failed

#: The longest time that a GPU waits for others, in seconds; then it goes on with those there are.
MAX_WAIT_S = 600.0


def why_waiting(gpu_state: GpuState, config: Config) -> str | None:
    """Explain why a GPU must not begin its phase yet by its own settings, or return None."""
    plan, burnin = config.plan, gpu_state.burnin
    if plan is None or burnin is None or burnin.finished(plan) or burnin.group is not None:
        return None
    phase = plan.phases[burnin.phase]
    return f"waits to begin {phase.name} together with the other GPUs" if phase.together else None


def are_done(state: State, group: Group | None, plan: Plan) -> bool:
    """Check whether every member of a group has done what its phase asks for."""
    if group is None:
        return False
    members = [state.gpu_states[uuid].progress for uuid in group.members]
    return all(
        member.group == group and is_done(plan.phases[member.phase], member.current)
        for member in members
    )


def form(state: State, now: float, ready: Iterable[str]) -> Step[State]:
    """Form the groups that are complete, or that have waited for long enough.

    Args:
        state: The state.
        now: The time.
        ready: The GPUs that only the wait for their group keeps from starting.
    """
    # A burn-in and the daemon's own plan may be equal, and only the latter is repeated.
    waiting: dict[tuple[Plan, bool, int], list[str]] = {}
    for uuid, gpu_state in state.gpu_states.items():
        own = state.config.of(uuid)
        if own.plan is not None and why_waiting(gpu_state, own) is not None:
            key = own.plan, is_repeated(state, uuid), gpu_state.progress.phase
            waiting.setdefault(key, []).append(uuid)
    step, there = Step(state), set(ready)
    for key, uuids in waiting.items():
        step = step.then(_form_one, key, uuids, there, now)
    return step


def _form_one(
    state: State, key: tuple[Plan, bool, int], uuids: list[str], ready: set[str], now: float
) -> Step[State]:
    """Form the group of one phase of a plan, or let its GPUs wait."""
    (plan, repeat, number), config = key, state.config
    members = tuple(uuid for uuid in uuids if uuid in ready)
    missing = [
        other.gpu.index
        for uuid, other in state.gpu_states.items()
        if uuid not in members
        and (config.of(uuid).plan, is_repeated(state, uuid)) == (plan, repeat)
        and _can_reach(other.progress, number, plan)
    ]
    if config.max_gpus is not None and len(members) > config.max_gpus:
        members, missing = members[: config.max_gpus], []  # never more of them at once
    since = [state.gpu_states[uuid].progress.waiting_since for uuid in members]
    begun = min((at for at in since if at is not None), default=now)
    fields: dict[str, object] = {"phase": plan.phases[number].name, "missing": missing}
    if not members or (missing and now < begun + MAX_WAIT_S):
        step = Step(state, due=upcoming(now, begun + MAX_WAIT_S))
        for uuid in uuids:
            step = step.then(_wait, uuid, uuid in ready, fields, now)
        return step
    group = Group(
        number=state.last_group + 1,
        members=members,
        indices=tuple(state.gpu_states[uuid].gpu.index for uuid in members),
    )
    step = Step(replace(state, last_group=group.number))
    for rank, uuid in enumerate(members):
        joined = {**fields, "rank": rank, "members": group.indices, "waited_s": now - begun}
        state = _update(step.state, uuid, group=group, waiting_since=None)
        event = gpu_event("burnin.grouped", state.gpu_states[uuid], now, **joined)
        step = step._replace(state=state, events=(*step.events, event))
    return step


def _can_reach(burnin: Burnin, number: int, plan: Plan) -> bool:
    """Check whether a GPU that is in no group of a phase can still come to it."""
    if burnin.finished(plan):
        return False
    return burnin.phase < number or (burnin.phase == number and burnin.group is None)


def _wait(
    state: State,
    uuid: str,
    ready: bool,  # noqa: FBT001 - passed on
    fields: dict[str, object],
    now: float,
) -> Step[State]:
    """Note since when a GPU could begin, and report it.

    A reading that is late for a moment ends no wait; a foreign process does.
    """
    gpu_state = state.gpu_states[uuid]
    waits = gpu_state.progress.waiting_since is not None
    if ready and not waits:
        event = gpu_event("burnin.waiting", gpu_state, now, **fields)
        return Step(_update(state, uuid, waiting_since=now), events=(event,))
    if waits and isinstance(gpu_state.occupancy, Busy):
        return Step(_update(state, uuid, waiting_since=None))
    return Step(state)


def _update(state: State, uuid: str, **changes: object) -> State:
    """Change the progress of one GPU."""
    gpu_state = state.gpu_states[uuid]
    burnin = replace(gpu_state.progress, **changes)  # type: ignore[arg-type]
    return state.with_gpu(replace(gpu_state, burnin=burnin))


def break_up(state: State, now: float) -> Step[State]:
    """Break up each group of which a member has left; its phase is done again together."""
    groups = {gpu_state.progress.group for gpu_state in state.gpu_states.values()}
    step = Step(state)
    if state.shutdown is None:
        for group in sorted((group for group in groups if group), key=lambda group: group.number):
            step = step.then(_break_up_one, group, now)
    return step


def _break_up_one(state: State, group: Group, now: float) -> Step[State]:
    """Break up a group if a member has left it."""
    # A session with a workload takes a GPU out of the plan.
    plans = {uuid: state.config.of(uuid).plan for uuid in group.members}
    left = {
        uuid: why
        for uuid, plan in plans.items()
        if (why := _why_left(state.gpu_states[uuid], group, plan)) is not None
    }
    if not left:
        return Step(state)
    first, why = next(iter(left.items()))
    reason = f"GPU {state.gpu_states[first].gpu.index} left its group: {why}"
    events = []
    for uuid, plan in plans.items():
        burnin = state.gpu_states[uuid].progress
        if burnin.group != group:
            continue
        # A GPU alone is interrupted like in any other phase.
        broken = (*burnin.broken_groups, reason) if len(group.members) > 1 else ()
        state = _update(state, uuid, group=None, broken_groups=broken)
        if uuid not in left and plan is not None:
            fields = {"phase": plan.phases[burnin.phase].name, "reason": reason}
            events.append(gpu_event("burnin.ungrouped", state.gpu_states[uuid], now, **fields))
    return Step(state, events=tuple(events))


def why_given_up(burnin: Burnin, plan: Plan) -> str | None:
    """Explain why a GPU gives up to find a group that lasts, or return None."""
    times = len(burnin.broken_groups)
    if times < plan.max_failures:
        return None
    return f"its group was broken up {times} times; the last time, {burnin.broken_groups[-1]}"


def _why_left(gpu_state: GpuState, group: Group, plan: Plan | None) -> str | None:
    """Explain why a GPU is not in its group any more, or return None."""
    burnin = gpu_state.progress
    if plan is None:
        return "it has a workload instead of the plan"
    if burnin.group != group or burnin.finished(plan):
        return burnin.ended or "it does no more of this phase"
    return _why_idle(gpu_state, group)


def _why_idle(gpu_state: GpuState, group: Group) -> str | None:
    """Explain why a GPU neither works in its group nor could start, or return None."""
    spec = gpu_state.launch.spec
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
