"""Start and release stressors by the rules of a GPU, and by those over all GPUs. Pure.

Each rule of one GPU is a function, which returns the ruling by which it forbids a stressor, or
None. Some keep a stressor from being started, some release one that runs, and some do both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from sentinel.config.model import Config
from sentinel.config.schedule import Closed, find_closed, seconds_until
from sentinel.core import (
    attribution,
    health,
    lifecycle,
    newcomer,
    start_memory,
    teardown,
)
from sentinel.core.burnin import interface as burnin
from sentinel.core.gpu_state import GpuState, Idle, LaunchSpec, StopCause
from sentinel.core.node import serving_processes
from sentinel.core.observation import Observation
from sentinel.core.ruling import ALLOWED, Ruling, idle_enough, is_fresh, may_start
from sentinel.core.state import Shutdown, State, each_gpu, kept_free
from sentinel.core.step import Start, Step, gpu_event, upcoming
from sentinel.protocol.gpu import Reading
from sentinel.units import format_count, format_duration, format_size


class _Case(NamedTuple):
    """What the rules of one GPU look at."""

    state: State
    gpu_state: GpuState
    reading: Reading | None
    own: Config
    now: float


_GpuRule = Callable[[_Case], Ruling | None]


def _case(state: State, gpu_state: GpuState, seen: Observation) -> _Case:
    uuid = gpu_state.gpu.uuid
    reading = seen.readings.get(uuid)
    return _Case(state, gpu_state, reading, state.config.of(uuid), seen.now)


def _of_burnin(rule: Callable[[State, GpuState], Ruling | None]) -> _GpuRule:
    """Make a rule of one GPU of what burn-ins forbid."""
    return lambda case: rule(case.state, case.gpu_state)


def _first(rules: Iterable[_GpuRule], case: _Case) -> Ruling | None:
    """Return what the first rule says that forbids a stressor, or None."""
    return next((found for rule in rules if (found := rule(case)) is not None), None)


# --- rules of one GPU that forbid a start, and release a stressor -----------------------------


def _kept_free(case: _Case) -> Ruling | None:
    """Keep a GPU free that is reserved or paused, or whose driver is released."""
    kept = kept_free(case.state, case.gpu_state)
    return None if kept is None else Ruling(kept.rule, kept.reason, kept.until)


def _critical(case: _Case) -> Ruling | None:
    """Keep a GPU free whose health is critical."""
    cause = health.forbidding_cause(case.gpu_state, case.own)
    if cause is None:
        return None
    reason = f"its health is critical because of its {cause.value}"
    until = health.recovery_at(case.gpu_state, case.now, case.own)
    return Ruling("throttle.pace", reason, until)


def _indistinguishable(case: _Case) -> Ruling | None:
    """Keep a GPU free whose allocated processes cannot be distinguished from newcomers."""
    here = case.gpu_state
    if not here.allocations or attribution.are_distinguishable(here):
        return None
    reason = "allocated processes cannot be distinguished from newcomers here"
    return Ruling("allocations", f"{reason} ({_ids(here)})")


# --- rules of one GPU that only forbid a start ------------------------------------------------


def _occupancy(case: _Case) -> Ruling | None:
    """Start only on a GPU that is idle for long enough and has no other stressor."""
    found = may_start(case.gpu_state, case.reading, case.now, case.own)
    if found.allowed or found.rule == "idle.wait":
        return _after_pause(case) or (None if found.allowed else found)
    return _with_recovery(found, case)


def _after_pause(case: _Case) -> Ruling | None:
    """Count ``idle.wait`` from the end of a pause on, if the GPU was idle before that."""
    idle, resumed = case.gpu_state.occupancy, case.gpu_state.resumed
    until = resumed + case.own.idle_wait
    if not isinstance(idle, Idle) or idle.since >= resumed or case.now >= until:
        return None
    reason = f"its pause ended less than {format_duration(case.own.idle_wait)} ago (idle.wait)"
    return Ruling("idle.wait", reason, until)


def _with_recovery(found: Ruling, case: _Case) -> Ruling:
    """Set ``until`` of a ruling: the next read, or the next clearing."""
    state, here = case.state, case.gpu_state
    if found.rule == "leak":
        return replace(found, until=teardown.clearing_due(here, case.reading, case.own))
    if found.rule != "unknown":
        return found
    if not state.probe.running:
        reason = f"{found.reason}; the probe is started again: {state.probe.reason}"
        return replace(found, reason=reason, until=_next_probe_at(state))
    suspect = state.suspects.get(here.gpu.uuid)
    return found if suspect is None else replace(found, until=suspect.until)


def _all_kept_free(case: _Case) -> Ruling | None:
    """Start only where ``memory.keep_free`` leaves something to a stressor."""
    keep, memory = case.own.keep_free, case.reading.memory if case.reading else None
    if not keep or memory is None or memory.free > keep:
        return None
    free, kept = format_size(memory.free), format_size(keep)
    reason = f"{free} are free, and {kept} are to be kept free (memory.keep_free)"
    return Ruling("memory.keep_free", reason)


def _just_allocated(case: _Case) -> Ruling | None:
    """Start some time after the newest allocation."""
    newest = max(
        (allocation.since for allocation in case.gpu_state.allocations.values()), default=-math.inf
    )
    settled = newest + attribution.SETTLE_S
    if case.now >= settled:
        return None
    return Ruling("allocations", "memory was allocated just now", settled)


def _too_little_memory(case: _Case) -> Ruling | None:
    """Start only where allocations leave enough memory.

    A stressor without a chunk would only open a context in the allocated memory.
    """
    here, memory = case.gpu_state, case.reading.memory if case.reading else None
    if not here.allocations or memory is None:
        return None
    left = memory.free - attribution.outstanding(here) - case.own.keep_free
    if left >= case.own.chunk + attribution.CONTEXT_BYTES:
        return None
    return Ruling("allocations", f"its allocations leave too little memory ({_ids(here)})")


# --- rules of one GPU that only release a stressor --------------------------------------------


def _restarted(case: _Case) -> Ruling | None:
    """Start a stressor again with other settings."""
    spec, own = case.gpu_state.launch.spec, case.own
    if spec is None or spec == _launch_spec(own, case.gpu_state):
        return None
    return Ruling("starting", burnin.why_restarted(own))


def _regrows(case: _Case) -> Ruling | None:
    """Start a stressor again that may take more memory now."""
    at = _regrows_at(case.gpu_state)
    if at is None or case.now < at:
        return None
    return Ruling("allocations", "memory left to ended allocations can be occupied again")


def _in_the_way(case: _Case) -> Ruling | None:
    """Free memory that is allocated; unlisted growth may be a process that takes it."""
    here, reading = case.gpu_state, case.reading
    if reading is None or not here.allocations:
        return None
    free = newcomer.free_beside_stressor(here, reading)
    if free is None or attribution.outstanding(here) <= free:
        return None
    return Ruling("allocations", f"its memory is allocated ({_ids(here)})")


def _regrows_at(gpu_state: GpuState) -> float | None:
    """Compute when a stressor is restarted that may take more memory; None if it may not."""
    if gpu_state.launch.committed <= attribution.committed(gpu_state):
        return None
    return gpu_state.allocations_changed + attribution.REGROW_S


def _ids(gpu_state: GpuState) -> str:
    return ", ".join(gpu_state.allocations)


#: The rules of one GPU, in their order: those that forbid a start, and those that release.
_FORBID_START: tuple[_GpuRule, ...] = (
    _kept_free,
    _of_burnin(burnin.comes_after),
    _occupancy,
    _all_kept_free,
    _of_burnin(burnin.finished),
    _critical,
    _indistinguishable,
    _just_allocated,
    _too_little_memory,
    _of_burnin(burnin.waits_for_group),
)
_RELEASE: tuple[_GpuRule, ...] = (
    _kept_free,
    _of_burnin(burnin.comes_after),
    _of_burnin(burnin.finished),
    _of_burnin(burnin.waits_for_group),
    _restarted,
    _critical,
    _indistinguishable,
    _regrows,
    _in_the_way,
)


# --- rules over all GPUs -----------------------------------------------------------------------


def rulings(state: State, seen: Observation) -> dict[str, Ruling]:
    """Decide for each GPU whether a stressor may be started now, and by which rule.

    A GPU that is kept free comes first, then the GPU's own rules, then the rules over all GPUs.
    """
    of_node = node_denial(state, seen) or ALLOWED
    return {
        uuid: _first(_FORBID_START, _case(state, gpu_state, seen)) or of_node
        for uuid, gpu_state in state.gpu_states.items()
    }


def ending(shutdown: Shutdown) -> Ruling:
    """Return the rule of a daemon that ends."""
    return Ruling("shutdown", f"the daemon is ending: {shutdown.reason}")


def node_denial(state: State, seen: Observation) -> Ruling | None:
    """Return the rule that forbids a start on every GPU, or None."""
    return _no_context(state, seen) or _limit(state, seen)


def _no_context(state: State, seen: Observation) -> Ruling | None:
    """Return the rule that forbids even a short context on every GPU, or None."""
    if state.shutdown is not None:
        return ending(state.shutdown)
    if not state.probe.running:
        reason = f"the probe, which reads the GPUs, is started again: {state.probe.reason}"
        return Ruling("probe", reason, _next_probe_at(state))
    if not state.probe.works:
        return Ruling("probe", "the probe, which reads the GPUs, is starting")
    uncontrolled = serving_processes.why_uncontrolled(state, seen.now)
    if uncontrolled is not None:
        return Ruling("api", uncontrolled)
    closed = _closed(state, seen)
    if closed is None:
        return None
    end, local = closed.until, seen.local
    until = None if end is None or local is None else seen.now + seconds_until(end, local)
    if closed.is_quiet:
        return Ruling("quiet", closed.reason, until)
    return Ruling("hours", closed.reason, until)


def _limit(state: State, seen: Observation) -> Ruling | None:
    """Return the limit that forbids a start on every GPU, or None."""
    gpu_states, config = state.gpu_states.values(), state.config
    held = sum(gpu_state.is_held for gpu_state in gpu_states)
    if config.max_gpus is not None and held >= config.max_gpus:
        return Ruling("limits.gpus", f"{format_count(held, 'GPU')} held already (limits.gpus)")
    if config.leave_idle and sum(map(_is_free, gpu_states)) <= config.leave_idle:
        return Ruling("limits.leave_idle", _left_idle(config))
    for gpu_state in gpu_states if config.idle_gate == "all" else ():
        case = _case(state, gpu_state, seen)
        needed = burnin.finished(state, gpu_state) is None
        if needed and not _is_ready(case):
            reason = f"not before GPU {gpu_state.gpu.index} is idle, too (idle.gate)"
            return Ruling("idle.gate", reason)
    rate = config.starts_per_second
    if rate is not None and state.last_start is not None and seen.now < state.last_start + 1 / rate:
        reason = "another stressor was started just now (limits.starts_per_second)"
        return Ruling("limits.starts_per_second", reason, state.last_start + 1.0 / rate)
    return None


def _room(state: State) -> float:
    """Compute how many more GPUs the limits allow to hold."""
    gpu_states, config = state.gpu_states.values(), state.config
    room = math.inf
    if config.max_gpus is not None:
        room = config.max_gpus - sum(gpu_state.is_held for gpu_state in gpu_states)
    if config.leave_idle:
        room = min(room, sum(map(_is_free, gpu_states)) - config.leave_idle)
    return room


def _left_idle(config: Config) -> str:
    return f"{format_count(config.leave_idle, 'GPU')} must be left idle (limits.leave_idle)"


def _closed(state: State, seen: Observation) -> Closed | None:
    """Return why the hours of the settings forbid stressors now, or None."""
    return find_closed(state.config.quiet, state.config.hours, seen.local)


def _next_probe_at(state: State) -> float | None:
    """Return when the next probe is started, or None if that is not known."""
    return state.probe.due if math.isfinite(state.probe.due) else None


def _is_free(gpu_state: GpuState) -> bool:
    """Check whether a GPU is idle and unallocated, and has no stressor or one that is stopping."""
    idle = isinstance(gpu_state.occupancy, Idle)
    return idle and not gpu_state.is_live and not gpu_state.allocations


def _is_ready(case: _Case) -> bool:
    """Check whether a GPU is held, or idle for long enough to be."""
    if case.gpu_state.is_live:
        return True
    waits = idle_enough(case.gpu_state, case.reading, case.now, case.own)
    return waits is None and _after_pause(case) is None


# --- releases ----------------------------------------------------------------------------------


def release(state: State, seen: Observation) -> Step[State]:
    """Stop the stressors that a command or a rule releases.

    Holds and the rules of one GPU come before the rules over all GPUs.
    """
    if state.shutdown is not None:
        return Step(state)
    of_node, kill_at = node_releases(state, seen), seen.now + state.config.grace

    def step(gpu_state: GpuState, seen: Observation, own: Config) -> Step[GpuState]:
        if not gpu_state.is_live:
            return Step(gpu_state)
        found = _first(_RELEASE, _case(state, gpu_state, seen))
        reason = found.reason if found is not None else of_node.get(gpu_state.gpu.uuid)
        if reason is None:
            return Step(gpu_state, due=upcoming(seen.now, _regrows_at(gpu_state)))
        reading = seen.readings.get(gpu_state.gpu.uuid)
        fields = {"reason": reason, "temperature_c": reading and reading.temperature}
        event = gpu_event("gpu.released", gpu_state, seen.now, **fields)
        stopped = lifecycle.stop(gpu_state, StopCause.POLICY, seen.now, kill_at, own)
        return stopped._replace(events=(event,))

    released = each_gpu(state, seen, step)
    # Hours begin and end with a minute of the wall clock.
    has_hours = state.config.quiet or state.config.hours
    minute = seen.next_minute if has_hours else None
    return released._replace(due=min(released.due, upcoming(seen.now, minute)))


def node_releases(state: State, seen: Observation) -> dict[str, str]:
    """Return the releases by hours and by limits, the last started first."""
    missing = state.config.leave_idle - sum(map(_is_free, state.gpu_states.values()))
    closed = _closed(state, seen)
    all_ = closed.reason if closed else serving_processes.why_uncontrolled(state, seen.now)
    live = [gpu_state for gpu_state in state.gpu_states.values() if gpu_state.is_live]
    live.sort(key=lambda gpu_state: (gpu_state.launch.at, gpu_state.gpu.index), reverse=True)
    idle = live if all_ else live[: max(0, missing)]
    released = {gpu_state.gpu.uuid: all_ or _left_idle(state.config) for gpu_state in idle}
    most = state.config.max_gpus
    if most is not None:
        reason = f"at most {format_count(most, 'GPU')} may be held (limits.gpus)"
        too_many = live[len(idle) : max(len(idle), len(live) - most)]
        released |= {gpu_state.gpu.uuid: reason for gpu_state in too_many}
    return released


# --- starts ------------------------------------------------------------------------------------


def form_groups(state: State, seen: Observation) -> Step[State]:
    """Form the groups of GPUs that wait for each other, of those that could start now."""
    # A group that cannot start would only be broken up.
    if not burnin.wait_together(state) or node_denial(state, seen) is not None:
        return Step(state)
    return burnin.form_groups(state, seen.now, rulings(state, seen))


def start_one(state: State, seen: Observation) -> Step[State]:
    """Start a stressor on the first GPU that allows it, or clear a leak."""
    if state.unjudged:
        return Step(state, due=seen.now)
    found = rulings(state, seen)
    due = upcoming(seen.now, *(ruling.until for ruling in found.values()))
    if state.config.dry_run:
        return Step(state, due=due)
    allowed = [uuid for uuid, ruling in found.items() if ruling.allowed]
    if not allowed:
        return Step(state, due=due).then(_clear_one, seen)
    standby = serving_processes.is_ready(state.standby, seen.standby)
    waits_until = serving_processes.standby_due(state, seen.now)
    # Of several GPUs only the last one waits: the others import side by side.
    if not standby and waits_until is not None and min(len(allowed), _room(state)) == 1:
        return Step(state, due=min(due, waits_until))
    uuid = allowed[0]
    gpu_state, own = state.gpu_states[uuid], state.config.of(uuid)
    start = Start(
        uuid=uuid,
        generation=gpu_state.generation + 1,
        committed=attribution.outstanding(gpu_state),
        exact=start_memory.is_exact(gpu_state),
        standby=standby,
        group=burnin.rank_of(gpu_state),
    )
    launch = replace(gpu_state.launch, committed=attribution.committed(gpu_state), standby=standby)
    gpu_state = replace(gpu_state, launch=launch)
    step = _start(state, gpu_state, start, seen)
    fields = {"workload": own.workload, "standby": standby}
    event = gpu_event("stressor.starting", step.state.gpu_states[uuid], seen.now, **fields)
    if standby:
        used = serving_processes.used(state.standby, seen.now)
        step = step._replace(state=replace(step.state, standby=used))
    # Another GPU may wait for its start.
    return step._replace(events=(event,), due=seen.now)


def _clear_one(state: State, seen: Observation) -> Step[State]:
    """Open and close a context on the first GPU whose leak is due to be cleared."""
    if _no_context(state, seen) is not None:
        return Step(state)
    for uuid, gpu_state in state.gpu_states.items():
        reading, own = seen.readings.get(uuid), state.config.of(uuid)
        due = teardown.clearing_due(gpu_state, reading, own)
        if reading is None or due is None or seen.now < due:
            continue  # the ruling has this time
        # Even a short context is none on a GPU that is kept free.
        kept = kept_free(state, gpu_state) is not None
        if kept or not is_fresh(reading, seen.now, own):
            continue
        leak = replace(gpu_state.leak, clearings=gpu_state.leak.clearings + 1)
        leaking = replace(gpu_state, leak=leak)
        start = Start(uuid=uuid, generation=gpu_state.generation + 1, clearing=True)
        step, fields = _start(state, leaking, start, seen), {"attempt": leak.clearings}
        event = gpu_event("gpu.cleanup_started", gpu_state, seen.now, **fields)
        return step._replace(events=(event,))
    return Step(state)


def _start(state: State, gpu_state: GpuState, start: Start, seen: Observation) -> Step[State]:
    """Start a child on a GPU."""
    reading, own = seen.readings[start.uuid], state.config.of(start.uuid)
    launch = replace(gpu_state.launch, spec=_launch_spec(own, gpu_state))
    gpu_state = replace(gpu_state, launch=launch)
    begun = lifecycle.start(gpu_state, reading, seen.now, own, clearing=start.clearing)
    state = replace(state.with_gpu(begun.state), last_start=seen.now)
    return Step(state, actions=(start,), due=begun.due)


def _launch_spec(config: Config, gpu_state: GpuState) -> LaunchSpec:
    """Return the settings with which the stressor of a GPU is started."""
    return LaunchSpec(
        workload=config.workload,
        memory=config.memory,
        chunk=config.chunk,
        reserve=config.keep_free,
        goldens=config.goldens,
        group=burnin.group_of(gpu_state),
    )
