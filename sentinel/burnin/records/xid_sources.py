"""Join the XIDs of two sources, the kernel's log and NVML's events, and find what NVML missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sentinel.burnin.records.xid_event import XidEvent

#: Two sources report one XID within so many seconds: Sentinel's own number. NVML delivers it
#: milliseconds after the kernel's record, and repeats later.
SAME_S = 5.0
#: The watch of XIDs may begin so long after the spawn of a stressor, in seconds; a stressor takes
#: longer to use its GPU.
SPAWN_S = 1.0

#: What an event of NVML has instead of the kernel's words.
NO_DETAILS = "NVML gives no details"


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
        same = [one for one in unmatched if one.number == event.number and first <= one.at <= last]
        for one in same[: event.count]:
            unmatched.remove(one)
        if len(same) < event.count:
            found.append(replace(event, count=event.count - len(same)))
    return sorted(found, key=lambda one: one.at)


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
