"""What /proc says of a process, as far as identity goes: is it alive, since when, in whose session.

Read by hand because psutil gives the start as wall-clock time, which moves when the clock is set;
ticks since boot never do, so the pair (pid, started) names one process for ever.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

#: Nobody starts a job over more processes than this; what is beyond is not looked at.
_MOST_ANCESTORS = 64


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """One line of /proc/PID/stat: ``started`` is in clock ticks since boot.

    ``parent`` is the PID of its parent, 0 where that is not seen from here.
    """

    pid: int
    name: str
    state: str
    session: int
    started: int
    parent: int = 0

    @property
    def alive(self) -> bool:
        """Whether it is neither a zombie nor dead."""
        return self.state not in {"Z", "X"}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a process uses: bytes of memory now, seconds of processor time so far."""

    resident: int
    processor: float


def read_stat(pid: int | str) -> ProcessStat | None:
    """Return what /proc says of ``pid``, or ``None`` when there is no such process to see."""
    line = _line(pid)
    if line is None:
        return None
    number, name, fields = line
    return ProcessStat(
        pid=number,
        name=name,
        state=fields[0],
        session=int(fields[3]),
        started=int(fields[19]),
        parent=int(fields[1]),
    )


def read_usage(pid: int | str) -> Usage | None:
    """Return what ``pid`` has used, or ``None`` when there is no such process that is alive."""
    line = _line(pid)
    if line is None or line[2][0] in {"Z", "X"}:
        return None
    _, _, fields = line
    ticks = int(fields[11]) + int(fields[12])  # user and system mode
    return Usage(
        resident=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        processor=ticks / os.sysconf("SC_CLK_TCK"),
    )


def ancestors_of(stat: ProcessStat) -> tuple[int, ...]:
    """Return the PIDs of a process's parent, of the parent of that and so on, without init's."""
    found: list[int] = []
    parent = stat.parent
    while parent > 1 and len(found) < _MOST_ANCESTORS:
        found.append(parent)
        above = read_stat(parent)
        if above is None:
            break
        parent = above.parent
    return tuple(found)


def own_stat() -> ProcessStat:
    """Return the line of this very process."""
    stat = read_stat("self")
    if stat is None:
        message = "/proc is not mounted; sentinel cannot tell its own processes from others"
        raise OSError(message)
    return stat


def _line(pid: int | str) -> tuple[int, str, list[str]] | None:
    """Return /proc/PID/stat: the PID, the name, and what follows from the state on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read().decode(errors="replace")
    except OSError:
        return None
    number, _, rest = line.partition(" (")
    name, _, rest = rest.rpartition(") ")  # a name may hold spaces and brackets
    return int(number), name, rest.split()
