"""The process that sent a command: PID, start time, user, PID namespace and level of access."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Level(IntEnum):
    """What a client may do; each level includes those below it."""

    NONE = 0
    #: Status, events, history and metrics.
    READ = 1
    #: Reserve, allocate and pause GPUs, and end what the same user has begun.
    OPERATE = 2
    #: Also end what others have begun, stop the daemon, and change settings.
    ADMINISTER = 3
    #: Also set what names code or a file: the daemon's own user and root, over the Unix socket.
    OWN = 4


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The process that sent a command, as far as the transport reveals it."""

    #: The transport, such as "unix" or "tcp".
    via: str
    uid: int | None = None
    #: The name of that user, or None if it has none or the name service has not answered. For
    #: people: the same caller has it at one time and not at another.
    user: str | None = field(default=None, compare=False)
    pid: int | None = None
    #: Its start in clock ticks since boot, which distinguishes its PID from a later use of it.
    started: int | None = None
    #: What it may do; that of a stored caller is not known.
    level: Level = Level.NONE

    def __str__(self) -> str:
        """Name the user for people, or else the transport."""
        if self.user is not None:
            return self.user
        return f"user {self.uid}" if self.uid is not None else f"a client over {self.via}"

    def may_end(self, begun_by: Caller) -> bool:
        """Check whether this caller may end what ``begun_by`` has begun.

        All holders of a token count as one user.
        """
        same = (self.via, self.uid) == (begun_by.via, begun_by.uid)
        return same or self.level >= Level.ADMINISTER
