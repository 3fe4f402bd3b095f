"""The process that sent a command: PID, start time, user and PID namespace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks: the peer's user and process where the socket tells, and by which way.

    ``started`` tells its PID from a later use of the same number, in clock ticks since boot.
    """

    via: str
    uid: int | None = None
    pid: int | None = None
    started: int | None = None
