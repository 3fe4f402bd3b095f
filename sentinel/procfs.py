"""What /proc says of a process, as far as identity goes: is it alive, since when, in whose session.

Read by hand because psutil gives the start as wall-clock time, which moves when the clock is set;
ticks since boot never do, so the pair (pid, started) names one process for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProcessStat", "own_stat", "read_stat"]


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """One line of /proc/PID/stat: ``started`` is in clock ticks since boot."""

    pid: int
    name: str
    state: str
    session: int
    started: int

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
        pid=int(number), name=name, state=fields[0], session=int(fields[3]), started=int(fields[19])
    )


def own_stat() -> ProcessStat:
    """Return the line of this very process."""
    stat = read_stat("self")
    if stat is None:
        message = "/proc is not mounted; sentinel cannot tell its own processes from others"
        raise OSError(message)
    return stat
