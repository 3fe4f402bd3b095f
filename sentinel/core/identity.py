"""Which processes on a GPU are ours, and how far the driver's list can be trusted. Pure.

A driver names our own stressor by its PID, by a PID that means nothing here, or not at all. Which
it is, is learned when a stressor has its first context, and never assumed (learning.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sentinel.protocol.gpu import GpuProcess


@dataclass(frozen=True, kw_only=True)
class OwnChild:
    """A child that we started and have not yet seen end.

    ``listed_as`` is the PID under which NVML lists it, where that is another than its own.
    """

    pid: int
    started: int | None
    listed_as: int | None = None


class IdentityMode(StrEnum):
    """How NVML names our stressor on a GPU."""

    UNLEARNED = "unlearned"
    DIRECT = "direct"
    """By its PID."""
    MAPPED = "mapped"
    """By a PID of another namespace, which appeared together with it."""
    BLIND = "blind"
    """Not at all."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How processes are told apart on one GPU, why so, and of which child it was learned.

    ``hidden`` is why the list may leave out other people's processes, whatever it says of ours.
    """

    mode: IdentityMode = IdentityMode.UNLEARNED
    reason: str = "no stressor has run here yet"
    hidden: str | None = None
    generation: int = 0

    @property
    def complete(self) -> bool:
        """Whether the list names everybody; if not, memory is the witness that carries."""
        return self.hidden is None and self.mode in {IdentityMode.UNLEARNED, IdentityMode.DIRECT}

    @property
    def names_known(self) -> bool:
        """Whether /proc here speaks of the processes that are listed."""
        return self.complete or self.mode is IdentityMode.DIRECT


@dataclass(frozen=True, kw_only=True)
class ResidentProcess:
    """A process that has been on a GPU since then without changing its memory, in bytes."""

    started: int | None
    since: float
    memory: int | None


def is_ours(process: GpuProcess, child: OwnChild | None) -> bool:
    """Return whether ``process`` is our child, or was started by it within its session."""
    if child is None:
        return False
    if child.listed_as is not None:
        return process.pid == child.listed_as
    if process.pid == child.pid:
        return process.started is None or process.started == child.started
    return process.session == child.pid
