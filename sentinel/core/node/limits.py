"""Decide over all GPUs where a stressor may be started and where it must be released. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.config.schedule import end_of_hours
from sentinel.core import attribution, health, lifecycle, newcomer, occupancy, teardown
from sentinel.core.gpu_state import (
    GpuState,
    Idle,
    LaunchSpec,
    Running,
    Starting,
    StopCause,
    Stopping,
)
from sentinel.core.node import burnin, starts
from sentinel.core.node.serving_processes import why_uncontrolled
from sentinel.core.observation import Observation
from sentinel.core.occupancy import Verdict
from sentinel.core.state import ProbeDown, Shutdown, State, admin_hold, each_gpu
from sentinel.core.step import Step, gpu_event, upcoming
from sentinel.protocol.gpu import Reading
from sentinel.units import format_count, format_size


def verdicts(state: State, seen: Observation) -> dict[str, Verdict]:
    """Decide for each GPU whether a stressor may be started now, and by which rule.

    An operator's hold comes first, then the GPU's own rules, then the rules over all GPUs.
    """
    own = {
        uuid: _own_verdict(state, gpu_state, seen) for uuid, gpu_state in state.gpu_states.items()
    }
    denied = node_verdict(state, seen)
    if denied is None:
        return own
    return {uuid: denied if one.allowed else one for uuid, one in own.items()}


def _own_verdict(state: State, gpu_state: GpuState, seen: Observation) -> Verdict:
    """Decide by the hold and the rules of one GPU."""
    hold = admin_hold(state, gpu_state)
    if hold is not None:
        return Verdict.deny(hold.rule, hold.reason, hold.until)
    uuid = gpu_state.gpu.uuid
    behind = _behind_burnin(state, uuid)
    if behind is not None:
        return Verdict.deny("limits.gpus", behind)
    reading, own = seen.readings.get(uuid), state.config.of(uuid)
    found = occupancy.may_start(gpu_state, reading, seen.now, own)
    if not found.allowed:
        return _with_recovery(found, state, gpu_state, reading, own)
    return _denied_by_settings(gpu_state, reading, seen.now, own) or found


def _denied_by_settings(
    gpu_state: GpuState, reading: Reading | None, now: float, own: Config
) -> Verdict | None:
    """Return the rule that forbids a stressor on an idle GPU, or None."""
    kept = _all_kept_free(reading, own)
    if kept is not None:
        return Verdict.deny("memory.keep_free", kept)
    finished = burnin.why_finished(gpu_state, own)
    if finished is not None:
        return Verdict.deny("burnin", finished)
    critical = _critical(gpu_state, own)
    if critical is not None:
        return Verdict.deny("throttle.pace", critical, health.recovery_at(gpu_state, now, own))
    indistinguishable, settled = _indistinguishable(gpu_state), _settled_at(gpu_state)
    if indistinguishable is None and now < settled:
        return Verdict.deny("allocations", "memory was allocated just now", settled)
    reason = indistinguishable or _too_little_memory(gpu_state, reading, own)
    if reason is not None:
        return Verdict.deny("allocations", reason)
    waits = starts.why_waiting(gpu_state, own)
    return None if waits is None else Verdict.deny(starts.RULE, waits)


def _with_recovery(
    found: Verdict, state: State, gpu_state: GpuState, reading: Reading | None, config: Config
) -> Verdict:
    """Add to a verdict when the probe reads the GPU again, or when its leak is to be cleared."""
    if found.rule == "leak":
        return replace(found, until=teardown.clearing_due(gpu_state, reading, config))
    if found.rule != "unknown":
        return found
    suspect = state.suspects.get(gpu_state.gpu.uuid)
    if isinstance(state.probe, ProbeDown):
        reason = f"{found.reason}; the probe is started again: {state.probe.reason}"
        return replace(found, reason=reason, until=_next_probe_at(state.probe))
    return found if suspect is None else replace(found, until=suspect.until)


def _behind_burnin(state: State, uuid: str) -> str | None:
    """Explain why a GPU leaves its place under ``limits.gpus`` to the burn-in, or return None."""
    run = state.burnin_run
    if run is None or state.config.max_gpus is None or (uuid in run.gpus and uuid not in run.done):
        return None
    return "the GPUs of the burn-in come first (limits.gpus)"


def _all_kept_free(reading: Reading | None, config: Config) -> str | None:
    """Explain that ``memory.keep_free`` leaves nothing to a stressor, or return None."""
    if not config.keep_free or reading is None or reading.memory is None:
        return None
    if reading.memory.free > config.keep_free:
        return None
    free, kept = format_size(reading.memory.free), format_size(config.keep_free)
    return f"{free} are free, and {kept} are to be kept free (memory.keep_free)"


def _critical(gpu_state: GpuState, config: Config) -> str | None:
    """Return the reason if the GPU's health forbids a stressor, or None."""
    cause = health.forbidding_cause(gpu_state, config)
    return None if cause is None else f"its health is critical because of its {cause.value}"


def _indistinguishable(gpu_state: GpuState) -> str | None:
    """Return the reason if allocated processes cannot be distinguished from newcomers, or None."""
    if not gpu_state.allocations or attribution.are_distinguishable(gpu_state):
        return None
    return f"allocated processes cannot be distinguished from newcomers here ({_ids(gpu_state)})"


def _settled_at(gpu_state: GpuState) -> float:
    """Compute when a stressor may be started beside the newest allocation."""
    newest = max(
        (allocation.since for allocation in gpu_state.allocations.values()), default=-math.inf
    )
    return newest + attribution.SETTLE_S


def _may_regrow(gpu_state: GpuState, now: float) -> str | None:
    """Return the reason to restart a stressor that may take more memory now, or None."""
    regrows_at = _regrows_at(gpu_state)
    if regrows_at is None or now < regrows_at:
        return None
    return "memory left to ended allocations can be occupied again"


def _regrows_at(gpu_state: GpuState) -> float | None:
    """Compute when a stressor is restarted that may take more memory; None if it may not."""
    if gpu_state.committed_at_start <= attribution.committed(gpu_state):
        return None
    return gpu_state.allocations_changed + attribution.REGROW_S


def _too_little_memory(gpu_state: GpuState, reading: Reading | None, config: Config) -> str | None:
    """Return the reason if allocations leave too little memory to a stressor, or None.

    A stressor without a chunk would only open a context in the allocated memory.
    """
    if not gpu_state.allocations or reading is None or reading.memory is None:
        return None
    left = reading.memory.free - attribution.outstanding(gpu_state) - config.keep_free
    if left >= config.chunk + attribution.CONTEXT_BYTES:
        return None
    return f"its allocations leave too little memory ({_ids(gpu_state)})"


def _ids(gpu_state: GpuState) -> str:
    return ", ".join(gpu_state.allocations)


def launch_spec(config: Config, gpu_state: GpuState) -> LaunchSpec:
    """Return the settings with which the stressor of a GPU is started."""
    return LaunchSpec(
        workload=config.workload,
        memory=config.memory,
        chunk=config.chunk,
        reserve=config.keep_free,
        goldens=config.goldens,
        group=starts.group_of(gpu_state),
    )


def release(state: State, seen: Observation) -> Step[State]:
    """Stop the stressors that a command or a rule releases.

    Holds and the rules of one GPU come before the rules over all GPUs.
    """
    if state.shutdown is not None:
        return Step(state)
    of_node, kill_at = _node_releases(state, seen), seen.now + state.config.grace

    def step(gpu_state: GpuState, seen: Observation, own: Config) -> Step[GpuState]:
        if not isinstance(gpu_state.stressor, Starting | Running):
            return Step(gpu_state)
        uuid = gpu_state.gpu.uuid
        reason = _own_release(state, gpu_state, seen, own) or of_node.get(uuid)
        if reason is None:
            return Step(gpu_state, due=upcoming(seen.now, _regrows_at(gpu_state)))
        event = gpu_event("gpu.released", gpu_state, seen.now, reason=reason)
        stopped = lifecycle.stop(gpu_state, StopCause.POLICY, seen.now, kill_at)
        return stopped._replace(events=(event,))

    released = each_gpu(state, seen, step)
    # Quiet hours begin with a minute of the wall clock.
    minute = seen.next_minute if state.config.quiet else None
    return released._replace(due=min(released.due, upcoming(seen.now, minute)))


def _own_release(
    state: State, gpu_state: GpuState, seen: Observation, config: Config
) -> str | None:
    """Explain why a hold or the rules of its GPU release a stressor, or return None."""
    hold = admin_hold(state, gpu_state)
    if hold is not None:
        return hold.reason
    reading, now = seen.readings.get(gpu_state.gpu.uuid), seen.now
    reason = (
        _behind_burnin(state, gpu_state.gpu.uuid)
        or burnin.why_finished(gpu_state, config)
        or starts.why_waiting(gpu_state, config)
        or _why_restarted(gpu_state, config)
        or _critical(gpu_state, config)
        or _indistinguishable(gpu_state)
        or _may_regrow(gpu_state, now)
    )
    if reason is not None or reading is None or not gpu_state.allocations:
        return reason
    # Unlisted growth may be an allocated process that takes outstanding memory.
    free = newcomer.free_beside_stressor(gpu_state, reading)
    if free is not None and attribution.outstanding(gpu_state) > free:
        return f"its memory is allocated ({_ids(gpu_state)})"
    return None


def _why_restarted(gpu_state: GpuState, config: Config) -> str | None:
    """Explain why a stressor is started again with other settings, or return None."""
    spec = gpu_state.launch_spec
    if spec is None or spec == launch_spec(config, gpu_state):
        return None
    return "its settings have changed" if config.plan is None else "its next phase is due"


def _node_releases(state: State, seen: Observation) -> dict[str, str]:
    """Return the releases by quiet hours and ``limits.leave_idle``, the last started first."""
    leave_idle = state.config.leave_idle
    missing = leave_idle - sum(map(_is_free, state.gpu_states.values()))
    hours = _quiet_hours(state, seen) or why_uncontrolled(state, seen.now)
    live = [
        gpu_state
        for gpu_state in state.gpu_states.values()
        if isinstance(gpu_state.stressor, Starting | Running)
    ]
    live.sort(key=lambda gpu_state: (gpu_state.started, gpu_state.gpu.index), reverse=True)
    reason = hours or f"{format_count(leave_idle, 'GPU')} must be left idle (limits.leave_idle)"
    released = live if hours else live[: max(0, missing)]
    return {gpu_state.gpu.uuid: reason for gpu_state in released}


def _next_start(state: State) -> float | None:
    """Compute when ``limits.starts_per_second`` allows the next start; None for at once."""
    rate = state.config.starts_per_second
    return None if rate is None or state.last_start is None else state.last_start + 1.0 / rate


def _quiet_hours(state: State, seen: Observation) -> str | None:
    """Return the quiet hours that apply now, or None; all apply while the time is unknown."""
    for hours in state.config.quiet:
        if seen.local is None or hours.contains(seen.local):
            return f"quiet hours: {hours.text}"
    return None


def _next_probe_at(down: ProbeDown) -> float | None:
    """Return when the next probe is started, or None if that is not known."""
    return down.until if math.isfinite(down.until) else None


def ending(shutdown: Shutdown) -> Verdict:
    """Return the verdict of a daemon that ends."""
    return Verdict.deny("shutdown", f"the daemon is ending: {shutdown.reason}")


def forbids_all(state: State, seen: Observation) -> Verdict | None:
    """Return the rule that forbids even a short context on every GPU, or None."""
    if state.shutdown is not None:
        return ending(state.shutdown)
    if isinstance(state.probe, ProbeDown):
        reason = f"the probe, which reads the GPUs, is started again: {state.probe.reason}"
        return Verdict.deny("probe", reason, _next_probe_at(state.probe))
    if not state.probe.ready:
        return Verdict.deny("probe", "the probe, which reads the GPUs, is starting")
    uncontrolled = why_uncontrolled(state, seen.now)
    if uncontrolled is not None:
        return Verdict.deny("api", uncontrolled)
    hours = _quiet_hours(state, seen)
    if hours is None:
        return None
    end = None if seen.local is None else end_of_hours(state.config.quiet, seen.local)
    left = None if end is None or seen.local is None else (end - seen.local).total_seconds()
    return Verdict.deny("quiet", hours, None if left is None else seen.now + left)


def node_verdict(state: State, seen: Observation) -> Verdict | None:
    """Return the rule that forbids a start on every GPU, or None."""
    denied = forbids_all(state, seen)
    if denied is not None:
        return denied
    gpu_states, config = state.gpu_states.values(), state.config
    held = sum(
        isinstance(gpu_state.stressor, Starting | Running | Stopping) for gpu_state in gpu_states
    )
    if config.max_gpus is not None and held >= config.max_gpus:
        return Verdict.deny(
            "limits.gpus", f"{format_count(held, 'GPU')} held already (limits.gpus)"
        )
    if config.leave_idle and sum(map(_is_free, gpu_states)) <= config.leave_idle:
        return Verdict.deny(
            "limits.leave_idle",
            f"{format_count(config.leave_idle, 'GPU')} must be left idle (limits.leave_idle)",
        )
    if config.idle_gate == "all":
        for gpu_state in gpu_states:
            own = config.of(gpu_state.gpu.uuid)
            needed = burnin.why_finished(gpu_state, own) is None
            if needed and not _is_ready(gpu_state, seen, own):
                return Verdict.deny(
                    "idle.gate", f"not before GPU {gpu_state.gpu.index} is idle, too (idle.gate)"
                )
    due = _next_start(state)
    if due is not None and seen.now < due:
        return Verdict.deny(
            "limits.starts_per_second",
            "another stressor was started just now (limits.starts_per_second)",
            due,
        )
    return None


def _is_free(gpu_state: GpuState) -> bool:
    """Check whether a GPU is idle and unallocated, and has no stressor or one that is stopping."""
    live = isinstance(gpu_state.stressor, Starting | Running)
    return isinstance(gpu_state.occupancy, Idle) and not live and not gpu_state.allocations


def _is_ready(gpu_state: GpuState, seen: Observation, own: Config) -> bool:
    """Check whether a GPU is held, or idle for long enough to be."""
    if isinstance(gpu_state.stressor, Starting | Running):
        return True
    reading = seen.readings.get(gpu_state.gpu.uuid)
    return occupancy.idle_enough(gpu_state, reading, seen.now, own) is None
