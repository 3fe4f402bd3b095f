"""Learn from a stressor's first context how NVML names it, and say so. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.identity import Identity, IdentityMode, OwnChild, is_ours
from sentinel.core.state import GpuState, Running, Starting
from sentinel.protocol.gpu import GpuProcess, Reading


def learn(gpu_state: GpuState, reading: Reading | None, now: float) -> tuple[GpuState, list[Event]]:
    """Return the slot with what a reading tells of how our living child is listed.

    A list that names it by its own PID is believed at once. In a place where PIDs may be those of
    another namespace, the one PID that appeared with it is taken for it until it is Ready, and
    after that only if it holds as much as our child does. Two that appear are somebody else.
    """
    live = gpu_state.stressor
    if not isinstance(live, Starting | Running) or live.child is None or gpu_state.child_is_listed:
        return gpu_state, []
    if reading is None or reading.processes is None:
        return gpu_state, []
    itself = replace(live.child, listed_as=None)
    if any(is_ours(process, itself) for process in reading.processes):
        reason = f"NVML lists our stressor by its PID, {itself.pid}"
        return _learned(gpu_state, itself, IdentityMode.DIRECT, reason, now)
    new = [process for process in reading.processes if process.pid not in live.before]
    match live:
        case Starting(attaching=True) if live.child.listed_as is None:
            return _with(gpu_state, replace(itself, listed_as=_only_stranger(gpu_state, new))), []
        case Running() if reading.processes_at > live.since:
            return _conclude(gpu_state, live, live.child, new, now)
        case _:
            return gpu_state, []


def _conclude(
    gpu_state: GpuState, running: Running, child: OwnChild, new: list[GpuProcess], now: float
) -> tuple[GpuState, list[Event]]:
    """Say how a child is listed that is Ready and is not listed by its own PID."""
    for process in new:
        if process.pid == child.listed_as and _holds(process, running.ready.held):
            reason = f"NVML lists our stressor as PID {process.pid}, which is not its PID here"
            return _learned(gpu_state, child, IdentityMode.MAPPED, reason, now)
    itself = replace(child, listed_as=None)
    return _learned(gpu_state, itself, IdentityMode.BLIND, "NVML does not list our stressor", now)


def _only_stranger(gpu_state: GpuState, new: list[GpuProcess]) -> int | None:
    """Return the one new PID, where it may be that of another namespace; else ``None``."""
    if gpu_state.identity.hidden is None or len(new) != 1 or new[0].started is not None:
        return None
    return new[0].pid


def _holds(process: GpuProcess, held: int) -> bool:
    """Return whether it may hold so much: some drivers tell nothing, or 0, across namespaces."""
    return not process.memory or process.memory >= held


def _with(gpu_state: GpuState, child: OwnChild) -> GpuState:
    """Return the slot with this as its living child."""
    live = gpu_state.stressor
    if not isinstance(live, Starting | Running) or live.child == child:
        return gpu_state
    return replace(gpu_state, stressor=replace(live, child=child))


def _learned(
    gpu_state: GpuState, child: OwnChild, mode: IdentityMode, reason: str, now: float
) -> tuple[GpuState, list[Event]]:
    """Return the slot with what was learned, and the event if it is another than before."""
    before = gpu_state.identity
    identity = Identity(
        mode=mode, reason=reason, hidden=before.hidden, generation=gpu_state.generation
    )
    gpu_state = replace(_with(gpu_state, child), identity=identity)
    if before.mode is mode:
        return gpu_state, []
    event = gpu_event(
        "gpu.identity",
        gpu_state,
        now,
        mode=mode.value,
        reason=reason,
        hidden=identity.hidden,
        complete=identity.complete,
    )
    return gpu_state, [event]
