"""The end of it all: who asks for it, when it is over, and what could not be ended. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.observation import Observation
from sentinel.core.state import Fatal, GpuState, Running, Shutdown, Starting, State, Stopping

#: After the kill at the end of a shutdown's grace, how long exits are waited for, in seconds.
GIVE_UP_AFTER = 10.0


def permanently_failed(state: State) -> str | None:
    """Return why no stressor can ever run on any GPU, or ``None`` where one may.

    That is so where each was refused for how it was set up, as by a wrong option of its workload.
    """
    reason = None
    for gpu_state in state.gpu_states.values():
        if not (isinstance(gpu_state.stressor, Fatal) and gpu_state.stressor.unusable):
            return None
        reason = gpu_state.stressor.reason
    return reason


def unkillable(state: State) -> tuple[GpuState, ...]:
    """Return the GPUs whose child was killed and did not end."""
    return tuple(
        gpu_state
        for gpu_state in state.gpu_states.values()
        if isinstance(gpu_state.stressor, Stopping) and gpu_state.stressor.exit is None
    )


def begin(state: State, seen: Observation, config: Config) -> tuple[State, list[Event]]:
    """Begin to end, or end at once, when somebody or the clock says so."""
    reason = seen.stop
    if reason is None and state.shutdown is None:
        reason = _time_is_over(state, seen, config)
    if reason is None or (state.shutdown is not None and not seen.at_once):
        return state, []
    kill_at = seen.now if seen.at_once else seen.now + config.grace
    wait = 1.0 if seen.at_once else GIVE_UP_AFTER
    shutdown = Shutdown(reason=reason, kill_at=kill_at, give_up_at=kill_at + wait)
    event = Event(
        name="sentinel.stopping", at=seen.now, fields={"reason": reason, "at_once": seen.at_once}
    )
    return replace(state, shutdown=shutdown), [event]


def _time_is_over(state: State, seen: Observation, config: Config) -> str | None:
    """Return why the clock ends it, if it does."""
    if config.run_for is not None and seen.now - state.counted_from >= config.run_for:
        return "its time is over"
    until = config.until
    if isinstance(until, datetime) and seen.local is not None and seen.local >= until:
        return f"its end at {until:%Y-%m-%d %H:%M} has come"
    return None


def give_up(state: State, now: float) -> tuple[State, list[Event]]:
    """Begin to end when there is nothing left that could ever run.

    Whoever changed the settings of one that ran is there to change them once more.
    """
    reason = permanently_failed(state)
    if reason is None or state.shutdown is not None or state.reconfigured:
        return state, []
    shutdown = Shutdown(reason=reason, kill_at=now, give_up_at=now)
    fields = {"reason": f"no stressor can run: {reason}", "at_once": False}
    return replace(state, shutdown=shutdown), [
        Event(name="sentinel.stopping", at=now, fields=fields)
    ]


def is_over(state: State, now: float) -> bool:
    """Return whether a shutdown is over: every child is gone and settled, or time is up."""
    if state.shutdown is None:
        return False
    stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
    if any(isinstance(stressor, Starting | Running) for stressor in stressors):
        return False
    settled = not any(isinstance(stressor, Stopping) for stressor in stressors)
    return settled or now >= state.shutdown.give_up_at
