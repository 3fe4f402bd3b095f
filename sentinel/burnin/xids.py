"""The XIDs of a run, by the kernel's log and by NVML's events, and what NVML missed. Pure.

What the kernel's log has besides XIDs is parsed by sentinel.burnin.kernel_faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sentinel.burnin.kernel_faults import MAX_TEXT, SAME_S, KernelFault, MessageJoiner, find_address
from sentinel.protocol.gpu_names import device_of

#: How the line of an XID begins.
_XID = "NVRM: Xid"
#: ``NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=python, Graphics Exception ...``; the address
#: may be followed by the instance of MIG. An XID counts whatever is where its address should be.
_LINES = (
    re.compile(
        r"NVRM: Xid\b\s{0,4}(?:\((?P<place>[^)]{0,100})\))?:?\s{0,4}"
        r"(?P<number>\d{1,5})\b(?P<text>.*)"
    ),
    re.compile(
        r"NVRM: Xid\b(?P<place>.{0,100}?)[:)]\s{0,4}(?P<number>\d{1,5})(?=[,\s]|$)(?P<text>.*)"
    ),
)
_PID = re.compile(r"\bpid='?(\d{1,9})")

#: The watch of XIDs may begin so long after the spawn of a stressor, in seconds; a stressor takes
#: longer to use its GPU.
SPAWN_S = 1.0

#: What an event of NVML has instead of the kernel's words.
NO_DETAILS = "NVML gives no details"


@dataclass(frozen=True, kw_only=True)
class XidEvent:
    """One XID that the driver reported."""

    number: int
    #: The GPU, as in NVML's addresses but without the function; empty if the source names none, or
    #: in a way that cannot be read.
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

    @property
    def same(self) -> tuple[object, ...]:
        """What equal events have in common."""
        return self.number, device_of(self.pci_bus_id), self.pid, self.text


def parse(text: str, at: float) -> XidEvent | KernelFault | None:
    """Parse one record of the kernel's log; None if it has neither an XID nor another fault."""
    return next(LogParser().parse(text, at), None)


class LogParser:
    """Parses the records of the kernel's log, in their order."""

    def __init__(self) -> None:
        self._messages = MessageJoiner()

    def parse(self, text: str, at: float) -> Iterator[XidEvent | KernelFault]:
        """Yield the XIDs and the other faults of a record.

        Args:
            text: Its lines.
            at: When it was written, by the monotonic clock.
        """
        for line in text.split("\n"):
            found = parse_xid(line, at) or _cut_xid(line, at) or self._messages.join(line, at)
            if found is not None:
                yield found


def _cut_xid(line: str, at: float) -> KernelFault | None:
    """Parse the line of an XID that ends before its number; None if it is no such line."""
    where = line.find(_XID)
    if where < 0:
        return None
    text = line[where:][:MAX_TEXT].strip()
    return KernelFault(kind="nvrm.xid", device=find_address(text) or "", at=at, text=text)


def parse_xid(line: str, at: float) -> XidEvent | None:
    """Parse one line of the kernel's log; None if it has no XID."""
    where = line.find(_XID)
    if where < 0:
        return None
    match = next(filter(None, (pattern.match(line, where) for pattern in _LINES)), None)
    if match is None:
        return None
    text = match["text"].strip(" ,")
    pid = _PID.search(text)
    address = find_address(match["place"] or "") or ""
    return XidEvent(
        number=int(match["number"]),
        pci_bus_id=address.partition(".")[0],
        at=at,
        pid=int(pid[1]) if pid else None,
        text=text[:MAX_TEXT],
    )


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
