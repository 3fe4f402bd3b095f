"""Begin and finish a shutdown, and report what could not be ended. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sentinel.core.actions import Event
from sentinel.core.gpu import lifecycle
from sentinel.core.gpu_state import GpuState
from sentinel.core.node.api_supervision import why_unusable
from sentinel.core.observation import Observation
from sentinel.core.state import Shutdown, State, each_gpu
from sentinel.core.step import Step, upcoming
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


def follow(state: State, seen: Observation) -> Step[State]:
    """Begin a shutdown by request or by the clock; a request may cut a running one short."""
    if seen.stop is not None:
        if state.shutdown is not None:
            state = replace(state, restart=False)  # a signal after the command ends it for good
        if state.shutdown is None or seen.at_once:
            return begin(state, seen.stop, seen)
    elif state.shutdown is None:
        reason = _why_time_is_over(state, seen)
        if reason is not None:
            return begin(state, reason, seen)
    return Step(state, due=_end_of_time(state, seen))


def begin(state: State, reason: str, seen: Observation) -> Step[State]:
    """Begin a shutdown, with a grace period unless it is to be at once."""
    kill_at = seen.now if seen.at_once else seen.now + state.config.grace
    wait = GIVE_UP_AT_ONCE_AFTER_S if seen.at_once else GIVE_UP_AFTER_S
    ends = Shutdown(reason=reason, kill_at=kill_at, give_up_at=kill_at + wait)
    fields = {"reason": reason, "at_once": seen.at_once}
    event = Event(name="sentinel.stopping", at=seen.now, fields=fields)
    return Step(replace(state, shutdown=ends), events=(event,))


def _why_time_is_over(state: State, seen: Observation) -> str | None:
    """Explain why the configured time is over, or return None."""
    config = state.config
    counts = not config.burnin_only or state.burnin_run is not None
    if config.run_for is not None and counts and seen.now >= state.counted_from + config.run_for:
        return "its time is over"
    until = config.until
    if isinstance(until, datetime) and seen.local is not None and seen.local >= until:
        return f"its end at {until:%Y-%m-%d %H:%M} has come"
    return None


def _end_of_time(state: State, seen: Observation) -> float:
    """Compute when the configured time may be over."""
    config = state.config
    run_for = None if config.run_for is None else state.counted_from + config.run_for
    return upcoming(seen.now, run_for, None if config.until is None else seen.next_minute)


def stop_all(state: State, seen: Observation) -> Step[State]:
    """Stop every stressor during a shutdown."""
    if state.shutdown is None:
        return Step(state)
    kill_at = state.shutdown.kill_at
    return each_gpu(state, seen, lambda gpu, _, __: lifecycle.shut_down(gpu, seen.now, kill_at))


def give_up(state: State, seen: Observation) -> Step[State]:
    """Begin a shutdown when no stressor can ever run, or no client can ever reach a daemon.

    Not after a change of settings at run time: the operator can change them again.
    """
    failed = permanently_failed(state)
    reason = why_unusable(state) if failed is None else f"no stressor can run: {failed}"
    if reason is None or state.shutdown is not None or state.reconfigured:
        return Step(state)
    ends = Shutdown(
        reason=reason, kill_at=seen.now, give_up_at=seen.now, unreachable=failed is None
    )
    fields = {"reason": reason, "at_once": False}
    event = Event(name="sentinel.stopping", at=seen.now, fields=fields)
    return Step(replace(state, shutdown=ends), events=(event,))


def finish(state: State, seen: Observation) -> Step[State]:
    """Finish a shutdown once every child has settled, or its time is over."""
    if state.shutdown is None:
        return Step(state)
    stressors = [gpu_state.stressor for gpu_state in state.gpu_states.values()]
    lives = any(isinstance(stressor, Starting | Running) for stressor in stressors)
    settled = not any(isinstance(stressor, Stopping) for stressor in stressors)
    give_up_at = state.shutdown.give_up_at
    finished = not lives and (settled or seen.now >= give_up_at)
    if finished == state.finished:
        return Step(state, due=upcoming(seen.now, give_up_at))
    return Step(replace(state, finished=finished))
