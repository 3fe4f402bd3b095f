"""The process that sent a command: PID, start time, user and PID namespace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The process that sent a command, as far as the transport reveals it."""

    #: The transport, such as "unix" or "tcp".
    via: str
    uid: int | None = None
    pid: int | None = None
    #: Its start in clock ticks since boot, which distinguishes its PID from a later use of it.
    started: int | None = None
