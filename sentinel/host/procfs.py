"""Facts about processes from /proc: alive, start time, session, ancestors, resource usage.

Read by hand because psutil gives the start as wall-clock time, which changes when the clock is set.
Ticks since boot do not, so the pair (pid, started) identifies a process uniquely.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import ConfigError

#: The longest chain of ancestors that is followed; no job starts through more processes.
_MAX_ANCESTORS = 64
#: The longest command line; those of some frameworks have thousands of characters.
MAX_COMMAND_LENGTH = 256
#: PF_EXITING of include/linux/sched.h.
_EXITING = 0x4


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """One line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    session: int
    #: Clock ticks since boot.
    started: int
    #: The PID of its parent, or 0 if that is not visible from here.
    parent: int = 0
    #: Whether the kernel tears it down, or has.
    exiting: bool = False

    @property
    def alive(self) -> bool:
        """Whether the process is neither a zombie nor dead."""
        return self.state not in {"Z", "X"}

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in {"T", "t"}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resource usage of a process."""

    #: Bytes of memory.
    resident: int
    #: Seconds of processor time.
    processor: float


def boot_id() -> str:
    """Read the identifier of this boot of the host; empty if /proc lacks it."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def read_stat(pid: int | str) -> ProcessStat | None:
    """Read the stat line of ``pid``, or None if there is no such process."""
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
        exiting=bool(int(fields[6]) & _EXITING),
    )


def living_in_session(session: int) -> list[int]:
    """List the PIDs of the living processes of a session; none if no descriptor is left.

    It reads all of /proc, 10 us for each process of the host.
    """
    found, wanted = [], str(session).encode()
    with contextlib.suppress(OSError):
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                line = file.read()
                fields = line[line.rindex(b")") + 2 :].split(maxsplit=4)
                if fields[3] == wanted and fields[0] not in {b"Z", b"X"}:
                    found.append(int(entry))
    return found


def read_usage(pid: int | str) -> Usage | None:
    """Read the usage of ``pid``, or None if there is no such process alive."""
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
    """List the PIDs of a process's parent, that one's parent and so on, without init's."""
    found: list[int] = []
    parent = stat.parent
    while parent > 1 and len(found) < _MAX_ANCESTORS:
        found.append(parent)
        above = read_stat(parent)
        if above is None:
            break
        parent = above.parent
    return tuple(found)


def read_status(pid: int, field: str) -> list[str]:
    """Read the words of one field of /proc/PID/status; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith(f"{field}:")), [])


def read_command(pid: int, started: int) -> str | None:
    """Read the command line of a process, as ``ps`` prints it, up to MAX_COMMAND_LENGTH characters.

    Returns:
        None if there is no such process, it has none, or the PID is that of a later process.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            data = file.read(4 * MAX_COMMAND_LENGTH)
    except OSError:
        return None
    stat = read_stat(pid)  # afterwards: what was read is of this process
    if stat is None or stat.started != started:
        return None
    words = data.rstrip(b"\0").decode(errors="replace").split("\0")
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(words))
    if len(text) > MAX_COMMAND_LENGTH:
        text = f"{text[: MAX_COMMAND_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}"
    return text or None


def own_stat() -> ProcessStat:
    """Read the stat line of this process.

    Raises:
        ConfigError: There is no /proc.
    """
    stat = read_stat("self")
    if stat is None:
        what = "/proc is not mounted, and sentinel recognises its own processes by it"
        raise ConfigError(f"{what}. Nothing was started.", "Mount it: mount -t proc proc /proc")
    return stat


def _line(pid: int | str) -> tuple[int, str, list[str]] | None:
    """Read /proc/PID/stat: the PID, the name, and the fields from the state on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read().decode(errors="replace")
    except OSError:
        return None
    number, _, rest = line.partition(" (")
    name, _, rest = rest.rpartition(") ")  # a name may contain spaces and brackets
    return int(number), name, rest.split()
