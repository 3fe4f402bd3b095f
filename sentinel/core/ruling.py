"""Decide whether a GPU's own rules allow a stressor on it, and say by which rule. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.model import Config
from sentinel.core.gpu_state import (
    Backoff,
    Busy,
    Fatal,
    GpuState,
    Idle,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.core.lifecycle import waits_for
from sentinel.core.newcomer import OWN_LOAD_S
from sentinel.core.occupancy import age_s
from sentinel.core.teardown import SETTLE_TIMEOUT_S
from sentinel.protocol.gpu import Reading
from sentinel.protocol.rules import IDLE, RUNNING
from sentinel.units import format_count, format_duration

#: A start needs a reading no older than so many polls: the next is under way by then, and a rule
#: that ends between two polls must not start a stressor on an outdated reading.
FRESH_POLLS = 1.5

#: Why a stressor that is stopping ends.
_WHY_ENDING = {
    StopCause.YIELD: "it makes room for a newcomer",
    StopCause.UNKNOWN: "the GPU could not be read",
    StopCause.UNWATCHED: "the GPU was not watched",
    StopCause.SHUTDOWN: "the daemon is ending",
    StopCause.POLICY: "a rule, a command or new settings released it",
    StopCause.START_TIMEOUT: "it was not ready in time",
    StopCause.HANG: "it made no progress",
    StopCause.GARBAGE: "it sent a malformed message",
    StopCause.EXITED: "it has ended by itself",
}


@dataclass(frozen=True)
class Ruling:
    """The rule that allows or forbids a stressor, and its reason for people."""

    #: One of docs/reference/events.md.
    rule: str
    reason: str
    #: When the rule may decide otherwise, by the monotonic clock; None if that is not known.
    until: float | None = None

    @property
    def allowed(self) -> bool:
        """Whether a stressor may be started: no rule forbids it on an idle GPU."""
        return self.rule == IDLE


#: The ruling that a stressor may be started.
ALLOWED = Ruling(IDLE, "idle")


def idle_enough(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Ruling | None:
    """Explain why a GPU is not idle, or not for long enough; None if it is."""
    match gpu_state.occupancy:
        case Unknown(reason=reason):
            return Ruling("unknown", f"unknown: {reason}")
        case Busy(rule=rule, reason=reason):
            return Ruling(rule, reason)
        case Idle(since=since):
            if reading is None or reading.at <= since:
                return Ruling("confirm", "idle, seen once")
            if not is_fresh(reading, now, config):
                return Ruling("confirm", "idle when it was last read, some seconds ago")
            if now < since + gpu_state.rearm:
                reason = f"idle again for less than {format_duration(gpu_state.rearm)} (rearm)"
                return Ruling("rearm", reason, since + gpu_state.rearm)
            if config.idle_utilization is not None and reading.at < gpu_state.ended + OWN_LOAD_S:
                reason = "its utilization may still include the last stressor (idle.utilization)"
                return Ruling("idle.utilization", reason, gpu_state.ended + OWN_LOAD_S)
            if now < since + config.idle_wait:
                reason = f"idle for less than {format_duration(config.idle_wait)} (idle.wait)"
                return Ruling("idle.wait", reason, since + config.idle_wait)
    return None


def is_fresh(reading: Reading, now: float, config: Config) -> bool:
    """Check whether a reading is recent enough to start a stressor."""
    return age_s(reading, now) <= FRESH_POLLS * config.quick_poll


def may_start(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Ruling:
    """Decide whether the rules of one GPU allow a start now."""
    not_idle = idle_enough(gpu_state, reading, now, config)
    if not_idle is not None and not isinstance(gpu_state.occupancy, Idle):
        return not_idle
    # A stressor that has failed comes before what its GPU waits for besides.
    return by_stressor(gpu_state) or not_idle or ALLOWED


def by_stressor(gpu_state: GpuState) -> Ruling | None:
    """Explain by the state of its stressor why a GPU gets no other one; None without a stressor."""
    match gpu_state.stressor:
        case Stopped():
            return None
        case Starting() | Stopping() if gpu_state.launch.clearing:
            return Ruling("leak", "a context is opened and closed, to clear what is leaked")
        case Starting() as starting:
            failed = _describe_failures(gpu_state)
            return Ruling("starting", f"its stressor is starting: {waits_for(starting)}{failed}")
        case Running():
            return Ruling(RUNNING, "running")
        case Stopping() as stopping:
            return _ending(stopping)
        case Backoff(reason=why, until=until):
            reason = f"the stressor ended and starts again later: {why}"
            return Ruling("backoff", reason, until)
        case Fatal(reason=why):
            return Ruling("failed", f"the stressor failed and does not start again: {why}")


def _describe_failures(gpu_state: GpuState) -> str:
    """Describe how often stressors have failed; empty if the last one has ended otherwise."""
    times = gpu_state.failures
    if not times or times[-1] < gpu_state.ended:
        return ""
    return f"; {format_count(len(times), 'failure')} before, the last: {gpu_state.last_failure}"


def _ending(stopping: Stopping) -> Ruling:
    """Explain what a stressor that ends waits for."""
    if stopping.exit is not None:
        reason = "its stressor has ended, and its memory is not free yet"
        return Ruling("stopping", reason, stopping.exit.at + SETTLE_TIMEOUT_S)
    if stopping.reported:
        return Ruling("stopping", "its stressor has not ended although it was killed")
    reason = f"its stressor is ending: {_WHY_ENDING[stopping.cause]}"
    return Ruling("stopping", reason, None if stopping.kill_sent else stopping.kill_at)
