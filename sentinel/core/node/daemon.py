"""The life of the daemon: its shutdown, and what systemd is notified of. Pure.

systemd restarts a daemon that does not send ``WATCHDOG=1`` in time. It is sent only while the
readings, on which everything depends, are recent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime

from sentinel.config.schedule import is_over
from sentinel.core import lifecycle
from sentinel.core.burnin import interface as burnin
from sentinel.core.gpu_state import (
    Busy,
    Fatal,
    GpuState,
    Idle,
    Running,
    Starting,
    Stopped,
    Stopping,
)
from sentinel.core.node.probe_supervision import readable, suspected
from sentinel.core.node.serving_processes import why_unreachable
from sentinel.core.observation import Observation
from sentinel.core.state import Shutdown, State, each_gpu
from sentinel.core.step import Event, Step, upcoming
from sentinel.units import format_count

#: A shutdown waits so long for exits after its kills, in seconds, and after one without a grace.
GIVE_UP_AFTER_S = 10.0
GIVE_UP_AT_ONCE_AFTER_S = 1.0

#: An idle GPU without a stressor after so long is left idle by a rule, in seconds.
FIRST_START_S = 3.0
#: The minimum interval of status lines, in seconds.
STATUS_EVERY_S = 1.0
#: How much longer systemd waits than a shutdown takes, in seconds.
STOP_MARGIN_S = 10.0


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


def still_held(state: State) -> tuple[int, ...]:
    """Return the indices of GPUs that a stressor, or what it has left behind, still uses."""
    stuck = unkillable(state)
    held = (one for one in state.gpu_states.values() if one in stuck or one.leaks)
    return tuple(one.gpu.index for one in held)


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
    counts = not burnin.is_idle(state)
    if config.run_for is not None and counts and seen.now >= state.counted_from + config.run_for:
        return "its time is over"
    until = config.until
    if isinstance(until, datetime) and seen.local is not None and is_over(until, seen.local):
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
    return each_gpu(
        state, seen, lambda gpu, _, own: lifecycle.shut_down(gpu, seen.now, kill_at, own)
    )


def give_up(state: State, seen: Observation) -> Step[State]:
    """Begin a shutdown when no stressor can ever run, or no client can ever reach a daemon.

    Not after a change of settings at run time: the operator can change them again.
    """
    failed = permanently_failed(state)
    reason = why_unreachable(state) if failed is None else f"no stressor can run: {failed}"
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
    gpu_states, give_up_at = state.gpu_states.values(), state.shutdown.give_up_at
    lives = any(gpu_state.is_live for gpu_state in gpu_states)
    settled = not any(gpu_state.is_held for gpu_state in gpu_states)
    finished = settled or (not lives and seen.now >= give_up_at)
    if finished == state.finished:
        return Step(state, due=upcoming(seen.now, give_up_at))
    return Step(replace(state, finished=finished))


@dataclass(frozen=True, kw_only=True)
class SentNotifications:
    """The notifications that systemd has received."""

    ready: bool = False
    stopping: bool = False
    status: str = ""
    status_at: float = float("-inf")
    watchdog_at: float = float("-inf")


@dataclass(frozen=True, kw_only=True)
class SystemdState:
    """The next datagram to systemd."""

    #: Empty if nothing is due.
    lines: tuple[str, ...]
    #: What systemd has received once the lines are sent.
    sent: SentNotifications
    #: When to ask for the next notification at the latest.
    due: float


def next_notification(
    state: State,
    seen: Observation,
    sent: SentNotifications,
    watchdog: float | None = None,
) -> SystemdState:
    """Decide what to send to systemd after a tick.

    Args:
        state: The state after the tick.
        seen: The observation of the tick.
        sent: What was sent before; keep the old value if the lines could not be sent.
        watchdog: The time limit of systemd's watchdog, in seconds, or None without one.
    """
    now = seen.now
    lines: list[str] = []
    if not sent.ready and _ready(state, seen):
        lines.append("READY=1")
        sent = replace(sent, ready=True)
    if not sent.stopping and state.shutdown is not None:
        left = max(0.0, state.shutdown.give_up_at - now) + STOP_MARGIN_S
        lines += ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(left * 1e6)}"]
        sent = replace(sent, stopping=True)
    status = _status_line(state)
    if status != sent.status and now >= sent.status_at + STATUS_EVERY_S:
        lines.append(f"STATUS={status}")
        sent = replace(sent, status=status, status_at=now)
    due = sent.status_at + STATUS_EVERY_S if status != sent.status else float("inf")
    if watchdog is not None:
        # Twice as often as systemd recommends, so that a delayed tick is still in time.
        if now >= sent.watchdog_at + watchdog / 4 and _fresh(state, seen):
            lines.append("WATCHDOG=1")
            sent = replace(sent, watchdog_at=now)
        due = min(due, max(now, sent.watchdog_at) + watchdog / 4)
    return SystemdState(lines=tuple(lines), sent=sent, due=due)


def _ready(state: State, seen: Observation) -> bool:
    """Check that every part has shown that it works: probe, API and first stressors."""
    read = all(
        uuid in seen.readings or suspected(state, uuid, seen.now) for uuid in state.gpu_states
    )
    reachable = state.served or not state.api_required
    pending = any(
        _first_start_pending(gpu_state, seen.now) for gpu_state in state.gpu_states.values()
    )
    return state.shutdown is None and read and reachable and not pending


def _first_start_pending(gpu_state: GpuState, now: float) -> bool:
    """Check whether the first stressor of a GPU starts, or is about to."""
    match gpu_state.stressor:
        case Starting() if gpu_state.generation == 1:
            return True
        case Stopped() if gpu_state.generation == 0 and isinstance(gpu_state.occupancy, Idle):
            return now < gpu_state.occupancy.since + FIRST_START_S
        case _:
            return False


def _fresh(state: State, seen: Observation) -> bool:
    """Check that the readings are recent, or that probe supervision takes care of them.

    :mod:`sentinel.core.node.probe_supervision` replaces a probe that is down, initialises the
    driver for too long, or hangs. The watchdog covers a supervisor that runs without readings.
    """
    probe = state.probe
    if not probe.works:
        return True
    begun = max(probe.since, probe.unused_at, state.stalled_at or probe.since)
    return all(
        _age(seen, gpu_state, begun) <= state.config.poll + state.config.stale_after
        for gpu_state in state.gpu_states.values()
        if readable(state, gpu_state, seen.now)
    )


def _age(seen: Observation, gpu_state: GpuState, begun: float) -> float:
    """Return the age of a GPU's reading, in seconds, at most that of the probe or a stall."""
    reading = seen.readings.get(gpu_state.gpu.uuid)
    return seen.now - max(begun, reading.at if reading else begun)


def _status_line(state: State) -> str:
    """Summarise the state in one line."""
    if state.shutdown is not None:
        return f"stopping: {state.shutdown.reason}".splitlines()[0]
    counts = Counter(_summary(gpu_state) for gpu_state in state.gpu_states.values())
    summaries = ("occupied", "idle", "busy", "unknown")
    parts = [f"{counts[summary]} {summary}" for summary in summaries if counts[summary]]
    return f"{format_count(len(state.gpu_states), 'GPU')}: {', '.join(parts)}"


def _summary(gpu_state: GpuState) -> str:
    """Summarise the state of one GPU in one word."""
    if isinstance(gpu_state.stressor, Running):
        return "occupied"
    match gpu_state.occupancy:
        case Idle():
            return "idle"
        case Busy():
            return "busy"
        case _:
            return "unknown"
