"""Report a stressor that takes long to become ready, and what it waits for. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.events import gpu_event
from sentinel.core.gpu_state import GpuState
from sentinel.core.observation import Observation
from sentinel.core.step import Step
from sentinel.core.stressor_state import Starting
from sentinel.protocol.stressor import CreatingContext, Preparing

#: A start that takes so many seconds is reported. With a standby stressor it takes one, without one
#: some five, and 14 if torch is imported from a cold disk.
SLOW_AFTER_S = 10.0


def advance(starting: Starting, message: CreatingContext | Preparing, now: float) -> Starting:
    """Record how far a stressor has come."""
    if isinstance(message, Preparing):
        return replace(starting, preparing=True)
    return replace(starting, attaching=now)


def waits_for(starting: Starting) -> str:
    """Describe what a stressor does before it is ready."""
    if starting.preparing:
        return (
            "the workload prepares; it has not called ctx.pace() twice, as it must before it is"
            " ready, and then every 50 ms"
        )
    if starting.attaching is not None:
        return "it creates its context and takes memory"
    return "it imports torch and the module of the workload"


def report(gpu_state: GpuState, seen: Observation, config: Config) -> Step[GpuState]:
    """Report a start that takes long, once."""
    starting = gpu_state.stressor
    if not isinstance(starting, Starting) or starting.slow:
        return Step(gpu_state)
    now, due = seen.now, starting.since + SLOW_AFTER_S
    if now < due:
        return Step(gpu_state, due=due)
    event = gpu_event(
        "stressor.slow_start",
        gpu_state,
        now,
        reason=waits_for(starting),
        since_s=now - starting.since,
        left_s=max(0.0, starting.since + config.start_timeout - now),
    )
    return Step(replace(gpu_state, stressor=replace(starting, slow=True)), events=(event,))
