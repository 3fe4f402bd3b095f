"""What the service manager is told of us, and when its watchdog is fed. Pure.

systemd starts us anew where it does not hear ``WATCHDOG=1`` in time. So that is said by who decides
and nobody else, and only while there is something true to decide on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.node.probe_supervision import readable, suspected
from sentinel.core.observation import Observation
from sentinel.core.state import Busy, GpuState, Idle, ProbeDown, ProbeUp, Running, State

#: What is said in words is said anew at most this often, in seconds.
STATUS_EVERY = 1.0
#: How much longer the manager is to wait for our end than we mean to take, in seconds.
MARGIN = 10.0


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What was said so far: that we are ready, that we end, our words, and the watchdog's last."""

    ready: bool = False
    stopping: bool = False
    status: str = ""
    status_at: float = float("-inf")
    at: float = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Notification:
    """What to say now, what was said once that went out, and when to ask again at the latest."""

    lines: tuple[str, ...]
    fed: Fed
    due: float


def feed(
    state: State, seen: Observation, config: Config, fed: Fed, watchdog: float | None = None
) -> Notification:
    """Decide what the service manager is to be told after a tick.

    Args:
        state: The state after the tick.
        seen: What the tick was decided on.
        config: What was set.
        fed: What was said before; :class:`Fed` at first.
        watchdog: How long the manager waits for its food, in seconds; ``None`` where it does not.

    Returns:
        The lines for one datagram, none where there is nothing to say. Where it could not be sent,
        keep the old ``fed``, and they are said at the next tick.
    """
    now = seen.now
    lines: list[str] = []
    if not fed.ready and state.shutdown is None and _scanned(state, seen):
        lines.append("READY=1")
        fed = replace(fed, ready=True)
    if not fed.stopping and state.shutdown is not None:
        left = max(0.0, state.shutdown.give_up_at - now) + MARGIN
        lines += ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(left * 1e6)}"]
        fed = replace(fed, stopping=True)
    words = _words(state)
    if words != fed.status and now >= fed.status_at + STATUS_EVERY:
        lines.append(f"STATUS={words}")
        fed = replace(fed, status=words, status_at=now)
    due = fed.status_at + STATUS_EVERY if words != fed.status else float("inf")
    if watchdog is not None:
        # Fed twice as often as is needed, and with a tick's delay still in time.
        if now >= fed.at + watchdog / 4 and _fresh(state, seen, config):
            lines.append("WATCHDOG=1")
            fed = replace(fed, at=now)
        due = min(due, max(now, fed.at) + watchdog / 4)
    return Notification(lines=tuple(lines), fed=fed, due=due)


def _scanned(state: State, seen: Observation) -> bool:
    """Return whether every GPU was read, or is known to be one that cannot be."""
    return all(
        uuid in seen.readings or suspected(state, uuid, seen.now) for uuid in state.gpu_states
    )


def _fresh(state: State, seen: Observation, config: Config) -> bool:
    """Return whether what we decide on is true, or somebody is at it to become so.

    A probe that is down on purpose, or initialises the driver, is watched over by
    :mod:`sentinel.core.node.probe_supervision` and replaced in time; so is one that hangs on a GPU,
    which is left out then. What remains is a supervisor that runs and hears nothing any more.
    """
    match state.probe:
        case ProbeDown():
            return True
        case ProbeUp(heard=False):
            return True
        case ProbeUp(since=since, unasked=unasked):
            begun = max(since, unasked, state.stalled_at or since)
    return all(
        _age(seen, gpu_state, begun) <= config.poll + config.stale_after
        for gpu_state in state.gpu_states.values()
        if readable(state, gpu_state, seen.now)
    )


def _age(seen: Observation, gpu_state: GpuState, begun: float) -> float:
    """Return how old the last reading of a GPU is, in seconds.

    It is not older than the probe, nor than the moment at which we went on after a stop.
    """
    reading = seen.readings.get(gpu_state.gpu.uuid)
    return seen.now - max(begun, reading.at if reading else begun)


def _words(state: State) -> str:
    """Return in one line what we are at."""
    if state.shutdown is not None:
        return f"stopping: {state.shutdown.reason}".splitlines()[0]
    counts = Counter(_word(gpu_state) for gpu_state in state.gpu_states.values())
    order = ("occupied", "idle", "busy", "unknown")
    parts = [f"{counts[word]} {word}" for word in order if counts[word]]
    total = len(state.gpu_states)
    return f"{total} {'GPU' if total == 1 else 'GPUs'}: {', '.join(parts)}"


def _word(gpu_state: GpuState) -> str:
    """Return what a GPU is at."""
    if isinstance(gpu_state.stressor, Running):
        return "occupied"
    match gpu_state.occupancy:
        case Idle():
            return "idle"
        case Busy():
            return "busy"
        case _:
            return "unknown"
