"""The GPUs of a world of fakes, and the children that live on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.protocol.gpu import Gpu, GpuProcess
from sentinel.protocol.stressor import ChildMessage, CreatingContext, Progress, Ready

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
#: Seconds that a fake child takes until it creates its context, and from there until it is Ready.
IMPORT_TIME = 2.0
ALLOCATION_TIME = 0.5
#: Seconds from a SIGKILL to the exit, as on an H200 with 123 GiB in use.
TEARDOWN_TIME = 0.2


@dataclass(kw_only=True)
class FakeChild:
    """A stressor that exists only in the world; ``share`` is the pace that it was told.

    ``committed`` bytes of what is free it leaves.
    """

    generation: int
    pid: int
    born: float
    memory: int = 0
    dies_at: float | None = None
    code: int = 0
    said: int = 0
    spoke_at: float = 0.0
    mute: bool = False
    share: float = 1.0
    committed: int = 0
    waiting: list[ChildMessage] = field(default_factory=list)


@dataclass(kw_only=True)
class FakeGpu:
    """One GPU: who is on it besides us, and what is wrong with it.

    ``child_as`` is how far from its own the PID is under which our child is listed; ``None`` where
    it is not. ``left`` are bytes that stay in use when our child has gone, and
    ``can_be_cleared`` says whether to open and close a context helps.
    """

    gpu: Gpu
    foreign: list[GpuProcess] = field(default_factory=list)
    unlisted: int = 0
    child_as: int | None = 0
    left: int = 0
    can_be_cleared: bool = False
    computing: tuple[int, ...] | None = None
    utilization: float | None = 0.0
    power: float | None = None
    temperature: int | None = None
    display: bool = False
    fault: str | None = None
    silent: bool = False
    child: FakeChild | None = None

    @property
    def used(self) -> int:
        """Memory in use, listed or not, in bytes."""
        named = sum(process.memory or 0 for process in self.foreign)
        return named + self.unlisted + (self.child.memory if self.child else 0)


def fake_gpu(index: int) -> Gpu:
    """Return one of a world's GPUs."""
    bus = f"00000000:{index + 1:02X}:00.0"
    return Gpu(
        uuid=f"GPU-{index}", index=index, name="Fake", pci_bus_id=bus, memory_total=140 * GIB
    )


def live(place: FakeGpu, child: FakeChild, now: float) -> None:
    """Let a child import, allocate, be Ready and report its progress, as its age says."""
    if child.mute:
        return
    age = now - child.born
    if child.said == 0 and age >= IMPORT_TIME:
        child.said = 1
        child.waiting.append(CreatingContext(torch="fake"))
    elif child.said == 1:
        free = place.gpu.memory_total - place.used - child.committed
        child.memory += int(free * 0.88)
        child.said = 2
    elif child.said == 2 and age >= IMPORT_TIME + ALLOCATION_TIME:  # noqa: PLR2004 - its next word
        child.said = 3
        child.spoke_at = now
        ready = Ready(held=child.memory, asked=child.memory, chunks=200, refused=False)
        child.waiting.append(ready)
    elif child.said == 3 and now - child.spoke_at >= 1.0:  # noqa: PLR2004
        work = Progress(
            seconds=now - child.spoke_at, iterations=10, flops=1e12, bytes=1e9, checks=0, errors=0
        )
        child.waiting.append(work)
        child.spoke_at = now
