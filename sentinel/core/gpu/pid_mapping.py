"""Learn from a stressor's first context how NVML lists it. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.events import gpu_event
from sentinel.core.gpu_state import GpuState
from sentinel.core.identity import Identity, IdentityMode, OwnChild, is_own
from sentinel.core.step import Step
from sentinel.core.stressor_state import Running, Starting
from sentinel.protocol.gpu import GpuProcess, Reading


def learn(gpu_state: GpuState, reading: Reading | None, now: float) -> Step[GpuState]:
    """Learn from a reading how the living child is listed.

    A list with the child's own PID is conclusive. Where PIDs may belong to another namespace, the
    one PID that appeared with the child is taken for it until Ready, and after that only if it
    holds as much memory as the child. Two new PIDs are foreign.
    """
    live = gpu_state.stressor
    if not isinstance(live, Starting | Running) or live.child is None or gpu_state.child_is_listed:
        return Step(gpu_state)
    if reading is None or reading.processes is None:
        return Step(gpu_state)
    unmapped = replace(live.child, listed_as=None)
    if any(is_own(process, unmapped) for process in reading.processes):
        reason = f"NVML lists the stressor by its PID, {unmapped.pid}"
        return _learned(gpu_state, unmapped, IdentityMode.DIRECT, reason, now)
    new = [process for process in reading.processes if process.pid not in live.before]
    match live:
        case Starting(attaching=float()) if live.child.listed_as is None:
            mapped = replace(unmapped, listed_as=_only_new_pid(gpu_state, new))
            return Step(_with_child(gpu_state, mapped))
        case Running() if reading.processes_at > live.since:
            return _conclude(gpu_state, live, live.child, new, now)
        case _:
            return Step(gpu_state)


def _conclude(
    gpu_state: GpuState, running: Running, child: OwnChild, new: list[GpuProcess], now: float
) -> Step[GpuState]:
    """Decide how a child is listed that is Ready and not listed by its own PID."""
    for process in new:
        if process.pid == child.listed_as and _may_hold(process, running.ready.held):
            reason = f"NVML lists the stressor as PID {process.pid}, which is not its PID here"
            return _learned(gpu_state, child, IdentityMode.MAPPED, reason, now)
    unmapped = replace(child, listed_as=None)
    return _learned(gpu_state, unmapped, IdentityMode.BLIND, "NVML does not list the stressor", now)


def _only_new_pid(gpu_state: GpuState, new: list[GpuProcess]) -> int | None:
    """Return the one new PID if it may belong to another namespace, or None."""
    if gpu_state.identity.hidden is None or len(new) != 1 or new[0].started is not None:
        return None
    return new[0].pid


def _may_hold(process: GpuProcess, held: int) -> bool:
    """Check whether a process may hold that much; some drivers report None or 0 here."""
    return not process.memory or process.memory >= held


def _with_child(gpu_state: GpuState, child: OwnChild) -> GpuState:
    """Replace the living child."""
    live = gpu_state.stressor
    if not isinstance(live, Starting | Running) or live.child == child:
        return gpu_state
    return replace(gpu_state, stressor=replace(live, child=child))


def _learned(
    gpu_state: GpuState, child: OwnChild, mode: IdentityMode, reason: str, now: float
) -> Step[GpuState]:
    """Store what was learned, and report a change of the mode."""
    before = gpu_state.identity
    identity = Identity(
        mode=mode, reason=reason, hidden=before.hidden, generation=gpu_state.generation
    )
    gpu_state = replace(_with_child(gpu_state, child), identity=identity)
    if before.mode is mode:
        return Step(gpu_state)
    event = gpu_event(
        "gpu.identity",
        gpu_state,
        now,
        mode=mode.value,
        reason=reason,
        hidden=identity.hidden,
        complete=identity.complete,
    )
    return Step(gpu_state, events=(event,))
