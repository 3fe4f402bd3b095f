"""The XIDs of the kernel's log."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: ``NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=python, Graphics Exception ...``; the address
#: may be followed by the instance of MIG.
_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})"
    r"[^)]{0,40}\): (?P<number>\d{1,5})(?P<text>.*)"
)
_PID = re.compile(r"\bpid='?(\d{1,9})")


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
