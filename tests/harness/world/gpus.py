"""Fake GPUs, and the fake children on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sentinel.protocol.gpu import Gpu, GpuProcess, Reading, Telemetry
from sentinel.protocol.stressor import (
    Announcement,
    ChildMessage,
    CreatingContext,
    MemoryCovered,
    MemoryLimit,
    MemoryTarget,
    Progress,
    Ready,
    StartStage,
)

__all__ = [
    "GIB",
    "IMPORT_TIME",
    "TEARDOWN_TIME",
    "FakeChild",
    "FakeGpu",
    "fake_gpu",
    "live",
]

GIB = 2**30
#: The time of a fake child until it creates its context, and from there until Ready, in seconds.
IMPORT_TIME = 2.0
ALLOCATION_TIME = 0.5
#: The time from a SIGKILL to the exit, in seconds, as on an H200 with 123 GiB in use.
TEARDOWN_TIME = 0.2
#: The stage of a child that works; in those below, it starts.
READY = 3


@dataclass(kw_only=True)
class FakeChild:
    """A stressor that exists only in a world."""

    generation: int
    pid: int
    started_at: float
    #: In bytes.
    memory: int = 0
    dies_at: float | None = None
    #: Its exit code.
    code: int = 0
    #: 0 importing, 1 creating its context, 2 holding its memory, 3 Ready.
    stage: int = 0
    #: When it last sent Ready or Progress.
    progress_at: float = 0.0
    #: It neither sends messages nor stops on request.
    unresponsive: bool = False
    #: Its pace, as last set.
    share: float = 1.0
    #: Free memory that it leaves to allocations, in bytes.
    committed: int = 0
    #: Beyond which memory it yields by itself, as last told.
    memory_limit: MemoryLimit = field(default_factory=lambda: MemoryLimit(used=None))
    #: It reads the memory of its GPU itself.
    watches: bool = True
    #: Messages to collect at the next tick.
    outbox: list[ChildMessage] = field(default_factory=list)


@dataclass(kw_only=True)
class FakeGpu:
    """One GPU: its processes, its memory and its faults."""

    gpu: Gpu
    #: Listed processes besides the child.
    foreign: list[GpuProcess] = field(default_factory=list)
    #: How many more processes there are than a reading lists.
    omitted_processes: int = 0
    #: Memory of no listed process, in bytes.
    unlisted: int = 0
    #: The difference of the child's listed PID from its own; None if it is not listed.
    child_pid_offset: int | None = 0
    #: Memory that the next child leaks at its end, in bytes.
    leaked: int = 0
    #: Opening and closing a context clears leaked memory and load.
    can_be_cleared: bool = False
    computing: tuple[int, ...] | None = None
    utilization: float | None = 0.0
    power: float | None = None
    temperature: int | None = None
    telemetry: Telemetry | None = None
    display: bool = False
    exclusive: bool = False
    mig: bool = False
    #: What a child reports each second: checked results, wrong ones, and covered patterns.
    checks: int = 0
    errors: int = 0
    patterns: tuple[str, ...] = ()
    #: The error of each reading, or None.
    fault: str | None = None
    #: Whether that is the driver's word that it is lost.
    lost: bool = False
    #: The fields of each reading that make no sense; a time is relative to that of the reading.
    senseless: dict[str, Any] = field(default_factory=dict)
    #: The last reading with such fields.
    senseless_reading: Reading | None = None
    #: The probe sends no readings.
    silent: bool = False
    child: FakeChild | None = None

    @property
    def used(self) -> int:
        """Used memory, listed or not, in bytes; a newcomer's may have to wait for the child's."""
        named = sum(process.memory or 0 for process in self.foreign)
        wanted = named + self.unlisted + (self.child.memory if self.child else 0)
        return min(wanted, self.gpu.memory_total)


def fake_gpu(index: int) -> Gpu:
    """Build the GPU with this index."""
    bus = f"00000000:{index + 1:02X}:00.0"
    return Gpu(
        uuid=f"GPU-{index}", index=index, name="Fake", pci_bus_id=bus, memory_total=140 * GIB
    )


def live(fake: FakeGpu, child: FakeChild, now: float, target: MemoryTarget) -> None:
    """Advance a child by its age: import, allocation, Ready, progress."""
    if child.unresponsive:
        return
    age = now - child.started_at
    if child.stage == 0 and age >= IMPORT_TIME:
        child.stage = 1
        child.outbox.append(CreatingContext(torch="fake"))
    elif child.stage == 1:
        free = fake.gpu.memory_total - fake.used - child.committed
        taken = int(free * target.share) if target.share else min(target.size or 0, free)
        taking = Announcement(stage=StartStage.TAKING, used=fake.used, more=taken)
        child.memory += taken
        child.outbox += [taking, Announcement(stage=StartStage.PREPARING, used=fake.used)]
        child.stage = 2
    elif child.stage == 2 and age >= IMPORT_TIME + ALLOCATION_TIME:
        child.stage = READY
        child.progress_at = now
        ready = Ready(held=child.memory, asked=child.memory, chunks=200, refused=False)
        child.outbox.append(ready)
    elif child.stage == READY and now - child.progress_at >= 1.0:
        work = Progress(
            seconds=now - child.progress_at,
            iterations=10,
            flops=1e12,
            bytes=1e9,
            checks=fake.checks,
            errors=fake.errors,
        )
        child.outbox.append(work)
        child.outbox += [
            MemoryCovered(pattern=pattern, patterns=len(fake.patterns), share=0.88)
            for pattern in fake.patterns
        ]
        child.progress_at = now
