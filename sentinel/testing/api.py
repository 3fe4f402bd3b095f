"""A service in a test's own world: posts the orders of clients that the test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentinel.core.observation import ChildExit, ServiceFacts
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Command, CommandReply, ReloadConfig
from sentinel.protocol.views import GpuView, HostView

__all__ = ["FakeService"]

SIGKILL = 9


class FakeService:
    """Serves clients that a test plays: it posts orders and keeps what it was told.

    Args:
        now: Tells the world's time.

    Attributes:
        serves: Whether it says that it answers clients.
        dies: Whether it is to die before it says anything more.
        said: What it is to send that is no message.
        answers: To its orders, in their order.
        views: The last of each GPU, by UUID; ``host`` is the last of the daemon.
        rereads: How often it was asked to read the settings anew.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.generation = 0
        self.alive = False
        self.serves = True
        self.dies = False
        self.said = ""
        self.orders: list[Command] = []
        self.answers: list[CommandReply] = []
        self.views: dict[str, GpuView] = {}
        self.host: HostView | None = None
        self.rereads = 0
        self._number = 0

    def ask(self, order: Callable[..., Command], **arguments: Any) -> int:
        """Post an order; return its number."""
        self._number += 1
        by = arguments.pop("by", Caller(via="unix", uid=1000, pid=1, started=1))
        self.orders.append(order(number=self._number, by=by, **arguments))
        return self._number

    def start(self, generation: int) -> None:
        """Begin a new service."""
        assert not self.alive, "a second service beside a living one"
        self.generation, self.alive = generation, True

    def kill(self, generation: int) -> None:
        """End the service."""
        assert generation == self.generation
        self.alive = False

    def send(self, message: object) -> None:
        """Keep what a living service is told."""
        if not self.alive:
            return
        match message:
            case CommandReply():
                self.answers.append(message)
            case GpuView():
                self.views[message.uuid] = message
            case HostView():
                self.host = message
            case ReloadConfig():
                self.rereads += 1

    def files(self) -> list[int]:
        """Return nothing to wait for."""
        return []

    def collect(self) -> ServiceFacts | None:
        """Return the orders that were posted, and that it serves."""
        if not self.alive:
            return None
        if self.dies:
            self.alive = self.dies = False
            exit_ = ChildExit(code=-SIGKILL, at=self._now())
            return ServiceFacts(generation=self.generation, exit=exit_)
        orders, self.orders = tuple(self.orders), []
        garbage, self.said = self.said or None, ""
        return ServiceFacts(
            generation=self.generation, serving=self.serves, commands=orders, garbage=garbage
        )
