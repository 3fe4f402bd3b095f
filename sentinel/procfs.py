"""What /proc says of a process, as far as identity goes: is it alive, since when, in whose session.

Read by hand because psutil gives the start as wall-clock time, which moves when the clock is set;
ticks since boot never do, so the pair (pid, started) names one process for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProcessStat", "ancestors_of", "own_stat", "read_stat"]

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


def read_stat(pid: int | str) -> ProcessStat | None:
    """Return what /proc says of ``pid``, or ``None`` when there is no such process to see."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read().decode(errors="replace")
    except OSError:
        return None
    number, _, rest = line.partition(" (")
    name, _, rest = rest.rpartition(") ")  # a name may hold spaces and brackets
    fields = rest.split()
    return ProcessStat(
        pid=int(number),
        name=name,
        state=fields[0],
        session=int(fields[3]),
        started=int(fields[19]),
        parent=int(fields[1]),
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
