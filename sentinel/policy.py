"""May this GPU be occupied now, and has somebody come to one that we hold? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sentinel.config import Config
from sentinel.identity import Identity, OwnChild, is_ours
from sentinel.messages import GpuProcess, ProcessKind, Reading
from sentinel.model import (
    Busy,
    Idle,
    Occupancy,
    Running,
    Sign,
    SignKind,
    Slot,
    Starting,
    Stopped,
    Stopping,
    Unknown,
)

__all__ = [
    "Verdict",
    "foreign_processes",
    "idle_enough",
    "idle_memory",
    "let_be",
    "may_start",
    "newcomer",
    "nobodys_memory",
    "occupancy",
]

#: Graphics processes below this many bytes together share a GPU with us: an X server that only
#: shows a login screen holds a few MiB on every GPU.
GRAPHICS_ALLOWANCE = 100 * 2**20

#: Memory that no process accounts for and that is nobody's, unless ``idle.memory`` says otherwise,
#: in bytes: where every process is listed, and where some may not be. Any CUDA context takes more
#: than the latter, 520 MiB on an H200, and an idle H200 shows none at all.
UNNAMED = 2**30
HIDDEN = 32 * 2**20

#: For so long after a stressor of ours, a GPU's utilisation tells of that, in seconds: NVML's
#: sampling period is up to a second, and the reading that shows it may be as old.
OWN_LOAD = 2.0

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


def foreign_processes(
    processes: tuple[GpuProcess, ...], child: OwnChild | None, config: Config, identity: Identity
) -> tuple[GpuProcess, ...]:
    """Return the processes that make a GPU busy: all that are not ours and are not let be."""
    others = tuple(process for process in processes if not is_ours(process, child))
    spared = let_be(others, config, identity)
    return tuple(process for process in others if process.pid not in spared)


def let_be(others: tuple[GpuProcess, ...], config: Config, identity: Identity) -> dict[int, str]:
    """Return by PID which of the processes that are not ours make no GPU busy, and why not.

    Names and users count only where /proc is known to speak of the processes that NVML lists.
    """
    graphics = [process for process in others if process.kind is ProcessKind.GRAPHICS]
    spared = {}
    if config.yield_to == "compute":
        spared = {process.pid: "graphics (yield_to = compute)" for process in graphics}
    elif _are_light(graphics):
        spared = {process.pid: "light graphics" for process in graphics}
    for process in others if identity.names_known else ():
        for rule in config.ignore:
            if rule.covers(process):
                spared[process.pid] = f"ignored by {rule}"
    return spared


def _are_light(graphics: list[GpuProcess]) -> bool:
    """Return whether they are known to hold little together; what nobody tells is not little."""
    amounts = [process.memory for process in graphics]
    return None not in amounts and sum(a for a in amounts if a is not None) <= GRAPHICS_ALLOWANCE


def occupancy(
    slot: Slot, reading: Reading | None, now: float, config: Config, *, child: OwnChild | None
) -> Occupancy:
    """Return who uses the GPU, as far as the latest reading tells.

    Args:
        slot: What was known before; an unbroken idleness keeps its beginning.
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
    others = foreign_processes(reading.processes, child, config, slot.identity)
    if others:
        return Busy(rule="process", reason="in use by others", by=others)
    in_use = _in_use(slot, reading, config) if child is None else None
    if in_use is not None:
        return in_use
    if isinstance(slot.occupancy, Idle):
        return slot.occupancy
    return Idle(since=reading.at)


def _in_use(slot: Slot, reading: Reading, config: Config) -> Busy | None:
    """Return by which rule a GPU is in use on which nobody is listed, and nothing of ours lives."""
    if reading.memory is not None:
        unnamed = nobodys_memory(reading)
        left = slot.unnamed is not None and unnamed > slot.unnamed + SLACK
        if left and slot.identity.complete:
            reason = "memory is still in use by no process since our stressor has gone"
            return Busy(rule="ghost", reason=reason)
        if left or unnamed > idle_memory(slot, config):
            reason = "memory is in use that no listed process accounts for (idle.memory)"
            return Busy(rule="idle.memory", reason=reason)
    if reading.computing and not slot.identity.complete and reading.at >= slot.ended + OWN_LOAD:
        pids = ", ".join(map(str, reading.computing))
        reason = f"used by somebody who is not listed here (the host's PID {pids})"
        return Busy(rule="computing", reason=reason)
    if config.idle_utilization is None or reading.at < slot.ended + OWN_LOAD:
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


def nobodys_memory(reading: Reading) -> int:
    """Return how much memory is in use that no listed process holds, in bytes."""
    named = sum(process.memory or 0 for process in reading.processes or ())
    return reading.memory.used - named if reading.memory is not None else 0


def idle_memory(slot: Slot, config: Config) -> int:
    """Return how much memory that nobody accounts for is nobody's, in bytes."""
    if config.idle_memory is not None:
        return config.idle_memory
    return UNNAMED if slot.identity.complete else HIDDEN


def newcomer(slot: Slot, reading: Reading | None, config: Config) -> Sign | None:
    """Return the first evidence of somebody else on a GPU on which our child lives.

    Two witnesses: the process list, and memory that grew although our child is steady. Memory tells
    from RUNNING on, and before that while the child has not begun to create its context; while it
    takes its memory, the child itself does, where it was told to be wary. Where the list may leave
    somebody out, there is a third: who computes.
    """
    if reading is None or reading.fault is not None or reading.memory is None:
        return None
    grown = _grown(slot, reading.memory.used, config)
    by: tuple[GpuProcess, ...] = ()
    if isinstance(slot.occupancy, Busy):
        by = slot.occupancy.by
    if grown > SLACK:
        return Sign(kind=SignKind.MEMORY, at=reading.at, took=reading.took, grown=grown, by=by)
    if isinstance(slot.occupancy, Busy):
        return Sign(kind=SignKind.PROCESS, at=reading.processes_at, took=reading.took, by=by)
    if _others_compute(slot, reading):
        return Sign(kind=SignKind.COMPUTING, at=reading.at, took=reading.took)
    return None


def _grown(slot: Slot, used: int, config: Config) -> int:
    """Return how many bytes are in use that neither our child nor what was there explains."""
    live = slot.stressor
    if isinstance(live, Starting) and live.crowded is not None:
        return live.crowded
    expected = _expected_memory(slot)
    grown = used - expected if expected is not None else 0
    if grown > SLACK or not isinstance(live, Running) or slot.identity.complete:
        return grown
    # Only now is it known that the list is not to be trusted: was the GPU idle at all?
    return live.unnamed if live.unnamed > idle_memory(slot, config) else grown


def _others_compute(slot: Slot, reading: Reading) -> bool:
    """Return whether more processes compute than are ours, on a GPU where not all are listed.

    The driver names who computes by PIDs of the host, which do not tell ours from others; so they
    are counted.
    """
    running = slot.stressor
    if not isinstance(running, Running) or slot.identity.complete or reading.computing is None:
        return False
    if reading.at < running.since + OWN_LOAD:
        return False
    own = sum(is_ours(process, running.child) for process in reading.processes or ())
    return len(set(reading.computing)) > max(1, own)


#: Growth up to this many bytes is nobody. On an H200 the driver's figure did not move beside NVML
#: clients, and by 64 KiB for a moment while CUDA programs started on other GPUs of the host; a
#: newcomer's first growth is larger (docs/handing-over.md).
SLACK = 2**20


def _expected_memory(slot: Slot) -> int | None:
    """Return the used memory that is explained, in bytes; ``None`` while our child's own grows."""
    match slot.stressor:
        case Starting(attaching=False, baseline=baseline):
            return baseline
        case Running(expected=expected):
            return expected
        case _:
            return None


def idle_enough(slot: Slot, reading: Reading | None, now: float, config: Config) -> Verdict | None:
    """Return why this GPU is not idle, or not for long enough; ``None`` where it is."""
    match slot.occupancy:
        case Unknown(reason=reason):
            return Verdict.no("unknown", f"unknown: {reason}")
        case Busy(rule=rule, reason=reason):
            return Verdict.no(rule, reason)
        case Idle(since=since):
            if reading is None or reading.at <= since:
                return Verdict.no("confirm", "idle, seen once")
            age = now - min(reading.at, reading.processes_at)
            if age > FRESH * config.poll:
                return Verdict.no("confirm", f"idle when it was last read, {age:.1f} s ago")
            if now < since + slot.rearm:
                left = since + slot.rearm - now
                return Verdict.no("rearm", f"idle again, left alone for {left:.1f} s")
            if config.idle_utilization is not None and reading.at < slot.ended + OWN_LOAD:
                reason = "our own load may still be in its utilisation (idle.utilization)"
                return Verdict.no("idle.utilization", reason)
            if now < since + config.idle_wait:
                left = since + config.idle_wait - now
                return Verdict.no("idle.wait", f"idle, for {left:.0f} s more to be (idle.wait)")
    return None


def may_start(slot: Slot, reading: Reading | None, now: float, config: Config) -> Verdict:
    """Return whether this GPU's own rules allow a stressor now, and if not, which forbids it."""
    forbidden = idle_enough(slot, reading, now, config)
    if forbidden is not None:
        return forbidden
    match slot.stressor:
        case Stopped():
            return Verdict(allowed=True, rule="idle", reason="idle")
        case Stopping():
            return Verdict.no("stressor", "its last stressor is not gone yet")
        case other:
            return Verdict.no("stressor", f"its stressor is {type(other).__name__.upper()}")
