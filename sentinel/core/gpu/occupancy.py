"""Decide who uses a GPU, and whether it has been idle for long enough to start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import outstanding
from sentinel.core.gpu.memory_accounting import SLACK_BYTES, idle_memory
from sentinel.core.gpu.newcomer import OWN_LOAD_S
from sentinel.core.gpu_state import Busy, GpuState, Idle, Occupancy, Unknown
from sentinel.core.stressor_state import Backoff, Fatal, Starting, Stopped, Stopping
from sentinel.protocol.gpu import Reading

#: A start needs a reading no older than so many polls: the next is under way by then, and a rule
#: that ends between two polls must not start a stressor on an outdated reading.
FRESH_POLLS = 1.5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a stressor may be started, the rule that decided, and its reason for people."""

    allowed: bool
    rule: str
    reason: str

    @classmethod
    def deny(cls, rule: str, reason: str) -> Self:
        """Return a verdict by which ``rule`` forbids the start."""
        return cls(allowed=False, rule=rule, reason=reason)


def occupancy(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> Occupancy:
    """Decide who uses a GPU by the latest reading.

    Args:
        gpu_state: The GPU with the attribution of this reading; an unbroken idle time keeps its
            beginning.
        reading: The latest reading, or None before the first.
        now: The time of this tick.
        config: The configuration of this GPU.
    """
    unknown = _why_unknown(reading, now, config)
    if unknown is not None or reading is None:
        return Unknown(reason=unknown or "not read yet")
    if reading.exclusive:
        return Busy(
            rule="exclusive",
            reason="its compute mode is exclusive: a newcomer could not even start",
        )
    if reading.mig:
        return Busy(rule="mig", reason="MIG is enabled")
    if reading.display and config.yield_to == "all":
        return Busy(rule="display", reason="a display is active on it")
    foreign = gpu_state.attribution.foreign
    if foreign or reading.omitted_processes:
        more = reading.omitted_processes
        reason = "used by foreign processes"
        if more:
            reason += f", {more} of them not listed"
        return Busy(rule="process", reason=reason, processes=foreign)
    stressor = gpu_state.stressor
    clearing = isinstance(stressor, Starting | Stopping) and stressor.clearing
    if gpu_state.child is None or clearing:
        busy = _used_by_no_process(gpu_state, reading, config)
        if busy is not None:
            return busy
    if isinstance(gpu_state.occupancy, Idle):
        return gpu_state.occupancy
    return Idle(since=reading.at)


def _used_by_no_process(gpu_state: GpuState, reading: Reading, config: Config) -> Busy | None:
    """Check memory, compute activity and utilisation of a GPU without any listed process."""
    return (
        _unattributed_memory(gpu_state, config)
        or _unlisted_compute(gpu_state, reading)
        or _utilization(gpu_state, reading, config)
    )


def _unattributed_memory(gpu_state: GpuState, config: Config) -> Busy | None:
    """Compare the unattributed memory with a leak and with ``idle.memory``."""
    # The first memory of an allocated process appears before the process is listed.
    unattributed = max(0, gpu_state.attribution.unattributed - outstanding(gpu_state))
    before = gpu_state.leak.unattributed
    left = before is not None and unattributed > before + SLACK_BYTES
    if left and gpu_state.identity.complete:
        reason = "memory is still in use by no process since the last stressor ended"
        return Busy(rule="leak", reason=reason)
    if gpu_state.leak.load:
        reason = "it is used all the time by no process since the last stressor ended"
        return Busy(rule="leak", reason=reason)
    if left or unattributed > idle_memory(gpu_state, config):
        reason = "memory is in use that no listed process accounts for (idle.memory)"
        return Busy(rule="idle.memory", reason=reason)
    return None


def _unlisted_compute(gpu_state: GpuState, reading: Reading) -> Busy | None:
    """Check for computing processes that are not listed, after the stressor's own load is over."""
    if not reading.computing or gpu_state.identity.complete:
        return None
    if reading.at < gpu_state.ended + OWN_LOAD_S:
        return None
    pids = ", ".join(map(str, reading.computing))
    return Busy(rule="computing", reason=f"used by an unlisted process (the host's PID {pids})")


def _utilization(gpu_state: GpuState, reading: Reading, config: Config) -> Busy | None:
    """Compare the utilisation with ``idle.utilization``, after the stressor's own load is over."""
    if config.idle_utilization is None or reading.at < gpu_state.ended + OWN_LOAD_S:
        return None
    if reading.utilization is None:
        reason = "its utilisation cannot be read (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    if reading.utilization >= config.idle_utilization:
        reason = f"it is used {reading.utilization:.0%} of the time (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    return None


def _why_unknown(reading: Reading | None, now: float, config: Config) -> str | None:
    """Explain why a reading is unusable, or return None if it is usable."""
    if reading is None:
        return "not read yet"
    if reading.fault is not None:
        return reading.fault
    if reading.memory is None or reading.processes is None:
        return "its memory or its processes could not be read"
    if _age_s(reading, now) > config.stale_after:
        return f"not read for {_age_s(reading, now):.1f} s"
    return None


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
                age = _age_s(reading, now)
                return Verdict.deny("confirm", f"idle when it was last read, {age:.1f} s ago")
            if now < since + gpu_state.rearm:
                left = since + gpu_state.rearm - now
                return Verdict.deny("rearm", f"idle again, left alone for {left:.1f} s")
            if config.idle_utilization is not None and reading.at < gpu_state.ended + OWN_LOAD_S:
                reason = "its utilisation may still include the last stressor (idle.utilization)"
                return Verdict.deny("idle.utilization", reason)
            if now < since + config.idle_wait:
                left = since + config.idle_wait - now
                return Verdict.deny("idle.wait", f"idle, for {left:.0f} s more to be (idle.wait)")
    return None


def is_fresh(reading: Reading, now: float, config: Config) -> bool:
    """Check whether a reading is recent enough to start a stressor."""
    return _age_s(reading, now) <= FRESH_POLLS * config.poll


def _age_s(reading: Reading, now: float) -> float:
    return now - min(reading.at, reading.processes_at)


def may_start(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Verdict:
    """Decide whether the rules of one GPU allow a start now."""
    denied = idle_enough(gpu_state, reading, now, config)
    if denied is not None:
        return denied
    match gpu_state.stressor:
        case Stopped():
            return Verdict(allowed=True, rule="idle", reason="idle")
        case Stopping():
            return Verdict.deny("stressor", "its last stressor is not gone yet")
        case Backoff(reason=why):
            return Verdict.deny("stressor", f"its stressor ended, and is started later: {why}")
        case Fatal(reason=why):
            return Verdict.deny("stressor", f"its stressor failed, and is not started: {why}")
        case other:
            return Verdict.deny("stressor", f"its stressor is {type(other).__name__.upper()}")
