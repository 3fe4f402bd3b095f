"""Decide when to notify systemd: readiness, status, shutdown and watchdog. Pure.

systemd restarts a daemon that does not send ``WATCHDOG=1`` in time. It is sent only while the
readings, on which everything depends, are recent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from sentinel.core.gpu_state import Busy, GpuState, Idle
from sentinel.core.node.probe_supervision import readable, suspected
from sentinel.core.observation import Observation
from sentinel.core.state import ProbeDown, ProbeUp, State
from sentinel.core.stressor_state import Running, Starting, Stopped
from sentinel.units import format_count

#: An idle GPU without a stressor after so long is left idle by a rule, in seconds.
FIRST_START_S = 3.0
#: The minimum interval of status lines, in seconds.
STATUS_EVERY_S = 1.0
#: How much longer systemd waits than a shutdown takes, in seconds.
STOP_MARGIN_S = 10.0


@dataclass(frozen=True, kw_only=True)
class SentNotifications:
    """The notifications that systemd has received."""

    ready: bool = False
    stopping: bool = False
    status: str = ""
    status_at: float = float("-inf")
    watchdog_at: float = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Notification:
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
) -> Notification:
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
    return Notification(lines=tuple(lines), sent=sent, due=due)


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
        case Starting(generation=1):
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
    match state.probe:
        case ProbeDown():
            return True
        case ProbeUp(ready=False):
            return True
        case ProbeUp(since=since, unused_at=unused_at):
            begun = max(since, unused_at, state.stalled_at or since)
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
