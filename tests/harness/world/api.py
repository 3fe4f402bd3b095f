"""A fake API process that posts the commands of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentinel.core.observation import ApiFacts, ChildExit
from sentinel.protocol.commands import Caller, Command, CommandReply, Level, ReloadConfig
from sentinel.protocol.views import (
    GpuView,
    HostView,
    Session,
    SessionsView,
)

__all__ = ["FakeApi"]

SIGKILL = 9
_ADMINISTRATOR = Caller(via="unix", uid=1000, pid=1, started=1, level=Level.ADMINISTER)


class FakeApi:
    """Posts commands, and keeps the messages that it receives.

    Args:
        now: Returns the time of the world.

    Attributes:
        serving: Whether it reports that it serves clients.
        exits: Whether it exits at the next tick.
        fails_with: The error with which every API process ends, or None.
        garbage: The invalid message to send next, or "".
        replies: The replies, in order.
        views: The latest view of each GPU, by UUID.
        host: The latest view of the daemon.
        sessions: The latest view of the sessions.
        reloads: How often it was requested to reload the settings.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.generation = 0
        self.alive = False
        self.serving = True
        self.exits = False
        self.fails_with: str | None = None
        self.garbage = ""
        self.commands: list[Command] = []
        self.replies: list[CommandReply] = []
        self.views: dict[str, GpuView] = {}
        self.host: HostView | None = None
        self.sessions: tuple[Session, ...] = ()
        self.reloads = 0
        self._number = 0

    def post(self, command: Callable[..., Command], **arguments: Any) -> int:
        """Post a command; return its number."""
        self._number += 1
        by = arguments.pop("by", _ADMINISTRATOR)
        self.commands.append(command(number=self._number, by=by, **arguments))
        return self._number

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Start a new API process."""
        assert not excluded
        assert not self.alive, "a second API process beside a living one"
        self.generation, self.alive = generation, True

    def kill(self, generation: int) -> None:
        """End the API process."""
        assert generation == self.generation
        self.alive = False

    def send(self, message: object) -> None:
        """Store a message, if it is alive."""
        if not self.alive:
            return
        match message:
            case CommandReply():
                self.replies.append(message)
            case GpuView():
                self.views[message.uuid] = message
            case HostView():
                self.host = message
            case SessionsView():
                self.sessions = message.sessions
            case ReloadConfig():
                self.reloads += 1

    def files(self) -> list[int]:
        """Return no descriptors."""
        return []

    def collect(self) -> ApiFacts | None:
        """Return the posted commands and its state."""
        if not self.alive:
            return None
        if self.fails_with is not None:
            self.alive = False
            exit_ = ChildExit(code=1, at=self._now())
            return ApiFacts(generation=self.generation, failed=self.fails_with, exit=exit_)
        if self.exits:
            self.alive = self.exits = False
            exit_ = ChildExit(code=-SIGKILL, at=self._now())
            return ApiFacts(generation=self.generation, exit=exit_)
        commands, self.commands = tuple(self.commands), []
        garbage, self.garbage = self.garbage or None, ""
        return ApiFacts(
            generation=self.generation, works=self.serving, commands=commands, garbage=garbage
        )
