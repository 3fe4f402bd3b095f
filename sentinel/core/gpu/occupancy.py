"""Who uses a GPU, and may it be occupied now? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import outstanding
from sentinel.core.gpu.ignored_processes import foreign_processes
from sentinel.core.gpu.memory_accounting import SLACK, idle_memory, unattributed_memory
from sentinel.core.gpu.newcomer import OWN_LOAD
from sentinel.core.identity import OwnChild
from sentinel.core.state import (
    Busy,
    GpuState,
    Idle,
    Occupancy,
    Starting,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.protocol.gpu import Reading

#: A start needs a reading that is no older than so many polls: one is under way by then, and a rule
#: that ends between two must not make us start on what was true long ago.
FRESH = 1.5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a stressor may be started, the rule that decided, and its reason for people."""

    allowed: bool
    rule: str
    reason: str

    @classmethod
    def no(cls, rule: str, reason: str) -> Self:
        """Return that ``rule`` forbids it."""
        return cls(allowed=False, rule=rule, reason=reason)


def occupancy(
    gpu_state: GpuState,
    reading: Reading | None,
    now: float,
    config: Config,
    *,
    child: OwnChild | None,
) -> Occupancy:
    """Return who uses the GPU, as far as the latest reading tells.

    Args:
        gpu_state: What was known before; an unbroken idleness keeps its beginning.
        reading: The latest reading, or ``None`` before the first.
        now: The time of this tick.
        config: What holds for this GPU.
        child: Our child on this GPU, dead or alive, or ``None``.
    """
    unknown = _why_unknown(reading, now, config)
    if unknown is not None or reading is None or reading.processes is None:
        return Unknown(reason=unknown or "its processes could not be read")
    if reading.exclusive:
        return Busy(
            rule="exclusive",
            reason="its compute mode is exclusive: a newcomer could not even start",
        )
    if reading.mig:
        return Busy(rule="mig", reason="MIG is enabled")
    if reading.display and config.yield_to == "all":
        return Busy(rule="display", reason="a display is active on it")
    others = foreign_processes(gpu_state, reading, child, config)
    if others:
        return Busy(rule="process", reason="in use by others", processes=others)
    clearing = isinstance(gpu_state.stressor, Starting | Stopping) and gpu_state.stressor.clearing
    in_use = _in_use(gpu_state, reading, config) if child is None or clearing else None
    if in_use is not None:
        return in_use
    if isinstance(gpu_state.occupancy, Idle):
        return gpu_state.occupancy
    return Idle(since=reading.at)


def _in_use(gpu_state: GpuState, reading: Reading, config: Config) -> Busy | None:
    """Return by which rule a GPU is in use on which nobody is listed, and nothing of ours lives."""
    if reading.memory is not None:
        # A guest's first memory is seen before it is listed.
        unattributed = max(0, unattributed_memory(reading) - outstanding(gpu_state, reading))
        before = gpu_state.leak.unattributed
        left = before is not None and unattributed > before + SLACK
        if left and gpu_state.identity.complete:
            reason = "memory is still in use by no process since our stressor has gone"
            return Busy(rule="leak", reason=reason)
        if gpu_state.leak.load:
            reason = "it is used all the time by no process since our stressor has gone"
            return Busy(rule="leak", reason=reason)
        if left or unattributed > idle_memory(gpu_state, config):
            reason = "memory is in use that no listed process accounts for (idle.memory)"
            return Busy(rule="idle.memory", reason=reason)
    if (
        reading.computing
        and not gpu_state.identity.complete
        and reading.at >= gpu_state.ended + OWN_LOAD
    ):
        pids = ", ".join(map(str, reading.computing))
        reason = f"used by somebody who is not listed here (the host's PID {pids})"
        return Busy(rule="computing", reason=reason)
    if config.idle_utilization is None or reading.at < gpu_state.ended + OWN_LOAD:
        return None
    if reading.utilization is None:
        reason = "its utilisation is not told (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    if reading.utilization >= config.idle_utilization:
        reason = f"it is used {reading.utilization:.0%} of the time (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    return None


def _why_unknown(reading: Reading | None, now: float, config: Config) -> str | None:
    """Return why a reading tells nothing, or ``None`` when it can be believed."""
    if reading is None:
        return "not read yet"
    if reading.fault is not None:
        return reading.fault
    if reading.memory is None or reading.processes is None:
        return "its memory or its processes could not be read"
    age = now - min(reading.at, reading.processes_at)
    if age > config.stale_after:
        return f"not read for {age:.1f} s"
    return None


def idle_enough(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Verdict | None:
    """Return why this GPU is not idle, or not for long enough; ``None`` where it is."""
    match gpu_state.occupancy:
        case Unknown(reason=reason):
            return Verdict.no("unknown", f"unknown: {reason}")
        case Busy(rule=rule, reason=reason):
            return Verdict.no(rule, reason)
        case Idle(since=since):
            if reading is None or reading.at <= since:
                return Verdict.no("confirm", "idle, seen once")
            if not is_fresh(reading, now, config):
                age = now - min(reading.at, reading.processes_at)
                return Verdict.no("confirm", f"idle when it was last read, {age:.1f} s ago")
            if now < since + gpu_state.rearm:
                left = since + gpu_state.rearm - now
                return Verdict.no("rearm", f"idle again, left alone for {left:.1f} s")
            if config.idle_utilization is not None and reading.at < gpu_state.ended + OWN_LOAD:
                reason = "our own load may still be in its utilisation (idle.utilization)"
                return Verdict.no("idle.utilization", reason)
            if now < since + config.idle_wait:
                left = since + config.idle_wait - now
                return Verdict.no("idle.wait", f"idle, for {left:.0f} s more to be (idle.wait)")
    return None


def is_fresh(reading: Reading, now: float, config: Config) -> bool:
    """Return whether a reading is young enough to start something on."""
    return now - min(reading.at, reading.processes_at) <= FRESH * config.poll


def may_start(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Verdict:
    """Return whether this GPU's own rules allow a stressor now, and if not, which forbids it."""
    forbidden = idle_enough(gpu_state, reading, now, config)
    if forbidden is not None:
        return forbidden
    match gpu_state.stressor:
        case Stopped():
            return Verdict(allowed=True, rule="idle", reason="idle")
        case Stopping():
            return Verdict.no("stressor", "its last stressor is not gone yet")
        case other:
            return Verdict.no("stressor", f"its stressor is {type(other).__name__.upper()}")
