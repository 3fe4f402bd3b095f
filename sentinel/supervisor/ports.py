"""The parts around the supervisor's loop, as protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sentinel.core.observation import ChildFacts, ProbeFacts, ServiceFacts
from sentinel.protocol.commands import CommandReply, ReloadConfig
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import Watch
from sentinel.protocol.views import GpuView, HostView


class Clock(Protocol):
    """The time, chance, and the only place where the supervisor waits."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def local(self) -> datetime:
        """Return what a clock on the wall shows."""

    def chance(self) -> float:
        """Return a number from 0 to 1 that nobody can know; it spreads pauses."""

    def wait(self, files: Sequence[int], timeout: float) -> None:
        """Return when one of ``files`` can be read, or after ``timeout`` seconds."""


class Probe(Protocol):
    """The process that reads the GPUs, as the supervisor sees it."""

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe; it leaves the UUIDs in ``skip`` out."""

    def kill(self, generation: int) -> None:
        """Kill the probe and forget it, whether it dies or not."""

    def watch(self, what: Watch) -> None:
        """Tell the probe what to read."""

    def gone(self) -> bool:
        """Return whether no probe of ours lives, not even one that was killed."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Return what became known since the last call, and the newest reading of each GPU."""


class Spawner(Protocol):
    """The stressor children, as the supervisor sees them. Nothing here blocks."""

    def start(
        self, gpu: Gpu, generation: int, *, clearing: bool = False, committed: int = 0
    ) -> None:
        """Spawn a stressor on ``gpu`` that leaves ``committed`` bytes more than it is told to.

        One for ``clearing`` ends once it has had a context.
        """

    def kill(self, uuid: str, generation: int) -> None:
        """Send SIGKILL to the child and everything it started."""

    def ask(self, uuid: str, generation: int) -> None:
        """Ask the child to end."""

    def acknowledge(self, uuid: str, generation: int, number: int) -> None:
        """Tell the child that its finding of this number is known."""

    def pace(self, uuid: str, generation: int, share: float) -> None:
        """Tell the child to keep its GPU busy for this share of the time."""

    def renew(self) -> None:
        """Renew the lease of every child."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> dict[str, ChildFacts]:
        """Return what became known of each child since the last call."""


class Service(Protocol):
    """The process that talks to clients, as the supervisor sees it. Nothing here blocks."""

    def start(self, generation: int) -> None:
        """Spawn a service."""

    def kill(self, generation: int) -> None:
        """Kill the service and forget it."""

    def tell(self, message: CommandReply | GpuView | HostView | ReloadConfig) -> None:
        """Send it a view, an answer or a wish, once it has room for it."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> ServiceFacts | None:
        """Return what became known since the last call."""


class Interrupts(Protocol):
    """Where requests to end come from: signals, or the clock of a test."""

    def files(self) -> list[int]:
        """Return what to wait for."""

    def collect(self) -> tuple[str | None, bool]:
        """Return why to end, if somebody asked since the last call, and whether at once."""

    def reread(self) -> bool:
        """Return whether somebody asked since the last call for the settings to be read anew."""


class Manager(Protocol):
    """Who started us and wants to know how we are: systemd, or nobody."""

    #: How long it waits for a sign of life, in seconds; ``None`` where it does not.
    watchdog: float | None

    @property
    def listened(self) -> bool:
        """Whether it wants to know."""

    def send(self, lines: Sequence[str]) -> bool:
        """Tell it; return whether that went out. Must not block."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that a supervisor has around it; without a ``service`` nobody is served."""

    probe: Probe
    spawner: Spawner
    interrupts: Interrupts
    clock: Clock
    service: Service | None = None
    manager: Manager | None = None
