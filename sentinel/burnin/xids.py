"""The XIDs of a run, by the kernel's log and by NVML's events, and what NVML missed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

#: ``NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=python, Graphics Exception ...``; the address
#: may be followed by the instance of MIG.
_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})"
    r"[^)]{0,40}\): (?P<number>\d{1,5})(?P<text>.*)"
)
_PID = re.compile(r"\bpid='?(\d{1,9})")

#: Two sources report one XID within so many seconds: Sentinel's own number. NVML delivers it
#: milliseconds after the kernel's record, and repeats later.
SAME_S = 5.0
#: The watch of XIDs may begin so long after the spawn of a stressor, in seconds; a stressor takes
#: longer to use its GPU.
SPAWN_S = 1.0

#: What an event of NVML has instead of the kernel's words.
NO_DETAILS = "NVML gives no details"


@dataclass(frozen=True, kw_only=True)
class XidEvent:
    """One XID that the driver reported."""

    number: int
    #: The GPU, as in NVML's addresses but without the function.
    pci_bus_id: str
    #: When, by the monotonic clock.
    at: float
    #: The process that caused it, or None if the driver does not name one.
    pid: int | None
    text: str
    #: How many it stands for.
    count: int = 1
    #: When the last of them was, or None for one.
    last_at: float | None = None

    @property
    def last(self) -> float:
        """When the last of them was."""
        return self.at if self.last_at is None else self.last_at


def parse(line: str, at: float) -> XidEvent | None:
    """Parse one line of the kernel's log; None if it has no XID."""
    match = _LINE.search(line)
    if match is None:
        return None
    text = match["text"].strip(" ,")
    pid = _PID.search(text)
    return XidEvent(
        number=int(match["number"]),
        pci_bus_id=match["address"],
        at=at,
        pid=int(pid[1]) if pid else None,
        text=text[:200],
    )


def is_of(event: XidEvent, pci_bus_id: str) -> bool:
    """Check whether an event is of the GPU with this address, which NVML writes in other forms."""
    return _parts(event.pci_bus_id) == _parts(pci_bus_id.partition(".")[0])


def _parts(address: str) -> list[int]:
    try:
        return [int(part, 16) for part in address.split(":")]
    except ValueError:
        return []


def joined(kernel: Iterable[XidEvent], nvml: Iterable[XidEvent]) -> list[XidEvent]:
    """Join the XIDs of one GPU; one that both sources report is counted once, as the kernel's.

    Args:
        kernel: Those of the kernel's log, which name the process.
        nvml: Those of NVML, each of which may stand for several.
    """
    found = list(kernel)
    unmatched = list(found)
    for event in nvml:
        first, last = event.at - SAME_S, event.last + SAME_S
        same = [xid for xid in unmatched if xid.number == event.number and first <= xid.at <= last]
        for xid in same[: event.count]:
            unmatched.remove(xid)
        if len(same) < event.count:
            found.append(replace(event, count=event.count - len(same)))
    return sorted(found, key=lambda xid: xid.at)


def missed(
    needed: Iterable[tuple[float, float]], watched: Sequence[tuple[float, float]]
) -> str | None:
    """Explain why NVML may have missed XIDs of a GPU, or return None.

    Args:
        needed: The beginnings and ends of the times in which stressors were on it.
        watched: Those of the times in which its XIDs were watched without a break.
    """
    if not watched:
        return "NVML reports no XIDs of this GPU"
    for first, last in needed:
        if not any(begin - SPAWN_S <= first and last <= end for begin, end in watched):
            return "NVML's events were not watched all the time"
    return None
