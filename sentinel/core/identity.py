"""Distinguish own processes from foreign ones in the driver's list of processes. Pure.

A driver lists the stressor by its PID, by a PID of another namespace, or not at all. Which of these
applies is learned from the stressor's first context (gpu/pid_mapping.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sentinel.protocol.gpu import GpuProcess


@dataclass(frozen=True, kw_only=True)
class OwnChild:
    """A child that the supervisor started and whose end was not seen yet."""

    pid: int
    #: Its start time in clock ticks, as in /proc.
    started: int | None
    #: The PID under which NVML lists it, if that differs from its own.
    listed_as: int | None = None


class IdentityMode(StrEnum):
    """How NVML lists the stressor of a GPU."""

    #: Not known yet.
    UNLEARNED = "unlearned"
    #: By its PID.
    DIRECT = "direct"
    #: By a PID of another namespace, which appeared together with it.
    MAPPED = "mapped"
    #: Not at all.
    BLIND = "blind"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How far the list of processes of one GPU can be trusted."""

    mode: IdentityMode = IdentityMode.UNLEARNED
    #: The reason for ``mode``.
    reason: str = "no stressor has run here yet"
    #: Why foreign processes may be missing from the list; None if they are not.
    hidden: str | None = None
    #: The child from which ``mode`` was learned.
    generation: int = 0

    @property
    def complete(self) -> bool:
        """Whether the list contains every process; if not, memory is the main evidence."""
        return self.hidden is None and self.mode in {IdentityMode.UNLEARNED, IdentityMode.DIRECT}

    @property
    def names_known(self) -> bool:
        """Whether /proc describes the listed processes."""
        return self.complete or self.mode is IdentityMode.DIRECT


@dataclass(frozen=True, kw_only=True)
class ResidentProcess:
    """A process whose memory on a GPU has been steady."""

    started: int | None
    since: float
    #: In bytes; None if it could not be read.
    memory: int | None


def is_own(process: GpuProcess, child: OwnChild | None) -> bool:
    """Check whether a process is the child, or was started by it within its session."""
    if child is None:
        return False
    if child.listed_as is not None:
        return process.pid == child.listed_as
    if process.pid == child.pid:
        return process.started is None or process.started == child.started
    return process.session == child.pid
