"""The XIDs of NVIDIA's driver as data: what each says about the hardware, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sentinel.protocol.shipped_tables import shipped_table

#: The source of the table: "Analyzing Xid Errors with the Xid Catalog".
CATALOG = "NVIDIA's Xid Catalog"
#: How long after Sentinel killed a process its XIDs are Sentinel's doing, in seconds.
KILL_WINDOW_S = 10.0
#: How long before its exit is seen a process may have been killed, in seconds. The driver reports
#: the XIDs of a kill while the process ends.
BEFORE_EXIT_S = 5.0
#: What the driver reports of a process that was killed while the GPU worked for it.
_OF_A_KILL = (43, 45)


class XidMeaning(StrEnum):
    """What an XID says about the hardware."""

    FAIL = "fail"
    WARN = "warn"
    #: A fault under Sentinel's own load, else a warning: the counter behind it may be of before.
    LOAD = "load"
    #: Of the application: no evidence, unless it repeats in a process of Sentinel's own.
    APPLICATION = "application"
    #: No evidence at all.
    PASS = "pass"  # noqa: S105 - not a password


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One XID."""

    number: int
    name: str
    #: NVIDIA's bucket of immediate actions.
    bucket: str
    meaning: XidMeaning
    source: str = CATALOG


@dataclass(frozen=True, kw_only=True)
class OwnEnd:
    """The end that Sentinel gave one of its processes: by a kill, or by asking it to end."""

    pid: int
    #: When it was killed or asked, or shortly before its exit.
    at: float


def is_of_own_end(number: int, at: float, pid: int | None, ends: Iterable[OwnEnd]) -> bool:
    """Check whether an XID follows from the end that Sentinel gave one of its processes.

    Args:
        number: The XID.
        at: When the driver reported it.
        pid: The process that the driver names; None if it names none, as NVML never does.
        ends: The ends of Sentinel's processes on the same GPU.
    """
    return number in _OF_A_KILL and any(
        pid in {None, end.pid} and 0 <= at - end.at <= KILL_WINDOW_S for end in ends
    )


def _load() -> dict[int, Xid]:
    """Load the XIDs by number, in ascending order."""
    found = [
        Xid(
            number=int(number),
            name=name,
            bucket=bucket,
            meaning=XidMeaning(group["meaning"]),
            source="; ".join(filter(None, (CATALOG, group.get("note")))),
        )
        for group in shipped_table("sentinel.protocol", "xids.toml")["group"]
        for number, (name, bucket) in group["xids"].items()
    ]
    return {xid.number: xid for xid in sorted(found, key=lambda xid: xid.number)}


#: All XIDs by number.
XIDS = _load()
