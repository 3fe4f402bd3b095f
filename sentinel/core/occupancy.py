"""Decide who uses a GPU by its latest reading, and whether its rules allow a stressor. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.model import Config
from sentinel.core.attribution import SLACK_BYTES, idle_memory, outstanding
from sentinel.core.gpu_state import (
    NOT_READ,
    Backoff,
    Busy,
    Fatal,
    GpuState,
    Idle,
    Occupancy,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.core.lifecycle import waits_for
from sentinel.core.newcomer import OWN_LOAD_S
from sentinel.core.teardown import SETTLE_TIMEOUT_S
from sentinel.protocol.gpu import Reading
from sentinel.protocol.rules import IDLE, RUNNING
from sentinel.units import format_count, format_duration

#: How late a slow poll may be, in seconds: a call that takes longer hangs.
LATE_S = 3.0


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
    unknown = _why_unknown(gpu_state, reading, now, config)
    if unknown is not None or reading is None:
        return Unknown(reason=unknown or NOT_READ)
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
    if gpu_state.child is None or gpu_state.launch.clearing:
        busy = _used_by_no_process(gpu_state, reading, config)
        if busy is not None:
            return busy
    if isinstance(gpu_state.occupancy, Idle):
        return gpu_state.occupancy
    return Idle(since=reading.at)


def stale_at(gpu_state: GpuState, reading: Reading, config: Config) -> float:
    """Compute when a reading says nothing any more.

    A GPU without a child may be read at the slow poll. A start needs a fresh reading besides.
    """
    limit = config.stale_after
    if not gpu_state.is_held:
        limit = max(limit, config.poll + LATE_S)
    return min(reading.at, reading.processes_at) + limit


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
    if reading.utilization is None or not 0 <= reading.utilization <= 1:  # NaN is not either
        reason = "its utilisation cannot be read (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    if reading.utilization >= config.idle_utilization:
        reason = f"it is used {reading.utilization:.0%} of the time (idle.utilization)"
        return Busy(rule="idle.utilization", reason=reason)
    return None


def _why_unknown(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> str | None:
    """Explain why a reading is unusable, or return None if it is usable."""
    if reading is None:
        return NOT_READ
    if reading.fault is not None:
        return reading.fault
    if reading.memory is None or reading.processes is None:
        return "its memory or its processes could not be read"
    memory = reading.memory
    if not memory.plausible:
        parts = f"{memory.used} used and {memory.free} free of {memory.total} bytes"
        return f"the figures for its memory make no sense: {parts}"
    if max(reading.at, reading.processes_at) > now:  # it would never become stale
        return "the time of its reading is in the future"
    if now >= stale_at(gpu_state, reading, config):
        return f"not read for {age_s(reading, now):.1f} s"
    return None


def age_s(reading: Reading, now: float) -> float:
    """Compute the age of a reading: of its older part, in seconds."""
    return now - min(reading.at, reading.processes_at)


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
                reason = "its utilisation may still include the last stressor (idle.utilization)"
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
            reason = f"its stressor ended, and is started again later: {why}"
            return Ruling("backoff", reason, until)
        case Fatal(reason=why):
            return Ruling("failed", f"its stressor failed, and is not started again: {why}")


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
