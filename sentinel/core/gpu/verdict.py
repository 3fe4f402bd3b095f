"""Decide by the rules of one GPU whether a stressor may be started, and explain it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sentinel.config.model import Config
from sentinel.core.gpu.newcomer import OWN_LOAD_S
from sentinel.core.gpu.occupancy import age_s
from sentinel.core.gpu.slow_start import waits_for
from sentinel.core.gpu.teardown import SETTLE_TIMEOUT_S
from sentinel.core.gpu_state import Busy, GpuState, Idle, Unknown
from sentinel.core.stressor_state import (
    Backoff,
    Fatal,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Stressor,
)
from sentinel.protocol.gpu import Reading
from sentinel.protocol.rules import IDLE, RUNNING
from sentinel.units import format_duration

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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a stressor may be started, the rule that decided, and its reason for people."""

    allowed: bool
    #: One of :data:`sentinel.protocol.rules.RULES`.
    rule: str
    reason: str
    #: When the rule may decide otherwise, by the monotonic clock; None if that is not known.
    until: float | None = None

    @classmethod
    def deny(cls, rule: str, reason: str, until: float | None = None) -> Self:
        """Return a verdict by which ``rule`` forbids the start."""
        return cls(allowed=False, rule=rule, reason=reason, until=until)


def idle_enough(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Verdict | None:
    """Explain why a GPU is not idle, or not for long enough; None if it is."""
    match gpu_state.occupancy:
        case Unknown(reason=reason):
            return Verdict.deny("unknown", f"unknown: {reason}")
        case Busy(rule=rule, reason=reason):
            return Verdict.deny(rule, reason)
        case Idle(since=since):
            if reading is None or reading.at <= since:
                return Verdict.deny("confirm", "idle, seen once")
            if not is_fresh(reading, now, config):
                return Verdict.deny("confirm", "idle when it was last read, some seconds ago")
            if now < since + gpu_state.rearm:
                reason = f"idle again, left alone for {format_duration(gpu_state.rearm)} (rearm)"
                return Verdict.deny("rearm", reason, since + gpu_state.rearm)
            if config.idle_utilization is not None and reading.at < gpu_state.ended + OWN_LOAD_S:
                reason = "its utilisation may still include the last stressor (idle.utilization)"
                return Verdict.deny("idle.utilization", reason, gpu_state.ended + OWN_LOAD_S)
            if now < since + config.idle_wait:
                reason = f"idle for less than {format_duration(config.idle_wait)} (idle.wait)"
                return Verdict.deny("idle.wait", reason, since + config.idle_wait)
    return None


def is_fresh(reading: Reading, now: float, config: Config) -> bool:
    """Check whether a reading is recent enough to start a stressor."""
    return age_s(reading, now) <= FRESH_POLLS * config.quick_poll


def may_start(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Verdict:
    """Decide whether the rules of one GPU allow a start now."""
    not_idle = idle_enough(gpu_state, reading, now, config)
    if not_idle is not None and not isinstance(gpu_state.occupancy, Idle):
        return not_idle
    # A stressor that has failed comes before what its GPU waits for besides.
    return (
        by_stressor(gpu_state.stressor)
        or not_idle
        or Verdict(allowed=True, rule=IDLE, reason="idle")
    )


def by_stressor(stressor: Stressor) -> Verdict | None:
    """Explain by the state of its stressor why a GPU gets no other one; None without a stressor."""
    match stressor:
        case Stopped():
            return None
        case Starting(clearing=True) | Stopping(clearing=True):
            return Verdict.deny("leak", "a context is opened and closed, to clear what is leaked")
        case Starting() as starting:
            return Verdict.deny("starting", f"its stressor is starting: {waits_for(starting)}")
        case Running():
            return Verdict.deny(RUNNING, "running")
        case Stopping() as stopping:
            return _ending(stopping)
        case Backoff(reason=why, until=until):
            reason = f"its stressor ended, and is started again later: {why}"
            return Verdict.deny("backoff", reason, until)
        case Fatal(reason=why):
            return Verdict.deny("failed", f"its stressor failed, and is not started again: {why}")


def _ending(stopping: Stopping) -> Verdict:
    """Explain what a stressor that ends waits for."""
    if stopping.exit is not None:
        reason = "its stressor has ended, and its memory is not free yet"
        return Verdict.deny("stopping", reason, stopping.exit.at + SETTLE_TIMEOUT_S)
    if stopping.reported:
        return Verdict.deny("stopping", "its stressor has not ended although it was killed")
    reason = f"its stressor is ending: {_WHY_ENDING[stopping.cause]}"
    return Verdict.deny("stopping", reason, None if stopping.kill_sent else stopping.kill_at)
