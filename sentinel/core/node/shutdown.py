"""Begin and finish a shutdown, and report what could not be ended. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.gpu_state import GpuState
from sentinel.core.node import burnin
from sentinel.core.node.api_supervision import why_unusable
from sentinel.core.node.node_step import NodeStep
from sentinel.core.observation import Observation
from sentinel.core.state import Shutdown, State
from sentinel.core.stressor_state import Fatal, Running, Starting, Stopping

#: A shutdown waits so long for exits after its kills, in seconds, and after one without a grace.
GIVE_UP_AFTER_S = 10.0
GIVE_UP_AT_ONCE_AFTER_S = 1.0


def permanently_failed(state: State) -> str | None:
    """Explain why no stressor can run on any GPU, or return None if one may.

    That is the case once the setup of each failed, for example by a wrong option of its workload.
    """
    reason = None
    for gpu_state in state.gpu_states.values():
        if not (isinstance(gpu_state.stressor, Fatal) and gpu_state.stressor.unusable):
            return None
        reason = gpu_state.stressor.reason
    return reason


def unkillable(state: State) -> tuple[GpuState, ...]:
    """Return the GPUs with a child that did not end."""
    return tuple(
        gpu_state
        for gpu_state in state.gpu_states.values()
        if isinstance(gpu_state.stressor, Stopping) and gpu_state.stressor.exit is None
    )


def begin(state: State, seen: Observation, config: Config) -> tuple[State, list[Event]]:
    """Begin a shutdown by request or by the clock; a request may cut a running one short."""
    reason = seen.stop
    if reason is None and state.shutdown is None:
        reason = _why_time_is_over(state, seen, config)
    if reason is not None and state.shutdown is not None:
        state = replace(state, restart=False)  # a signal after the command ends it for good
    if reason is None or (state.shutdown is not None and not seen.at_once):
        return state, []
    kill_at = seen.now if seen.at_once else seen.now + config.grace
    wait = GIVE_UP_AT_ONCE_AFTER_S if seen.at_once else GIVE_UP_AFTER_S
    shutdown = Shutdown(reason=reason, kill_at=kill_at, give_up_at=kill_at + wait)
    event = Event(
        name="sentinel.stopping", at=seen.now, fields={"reason": reason, "at_once": seen.at_once}
    )
    return replace(state, shutdown=shutdown), [event]


def _why_time_is_over(state: State, seen: Observation, config: Config) -> str | None:
    """Explain why the configured time is over, or return None."""
    if config.run_for is not None and seen.now - state.counted_from >= config.run_for:
        return "its time is over"
    if burnin.is_complete(state, config):
        return "the burn-in is complete"
    until = config.until
    if isinstance(until, datetime) and seen.local is not None and seen.local >= until:
        return f"its end at {until:%Y-%m-%d %H:%M} has come"
    return None


def give_up(state: State, seen: Observation, _: Config) -> NodeStep:
    """Begin a shutdown when no stressor can ever run, or no client can ever reach a daemon.

    Not after a change of settings at run time: the operator can change them again.
    """
    failed = permanently_failed(state)
    reason = why_unusable(state) if failed is None else f"no stressor can run: {failed}"
    if reason is None or state.shutdown is not None or state.reconfigured:
        return NodeStep(state=state)
    shutdown = Shutdown(
        reason=reason, kill_at=seen.now, give_up_at=seen.now, unreachable=failed is None
    )
    fields = {"reason": reason, "at_once": False}
    event = Event(name="sentinel.stopping", at=seen.now, fields=fields)
    return NodeStep(state=replace(state, shutdown=shutdown), events=(event,))


def is_over(state: State, now: float) -> bool:
    """Check whether a shutdown is over: every child has settled, or its time is over."""
    if state.shutdown is None:
        return False
    stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
    if any(isinstance(stressor, Starting | Running) for stressor in stressors):
        return False
    settled = not any(isinstance(stressor, Stopping) for stressor in stressors)
    return settled or now >= state.shutdown.give_up_at
