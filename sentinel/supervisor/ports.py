"""Define the parts around the supervisor's loop as protocols. Nothing in them blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sentinel.core.observation import ApiFacts, ChildFacts, ProbeFacts, SpareFacts
from sentinel.protocol.commands import CommandReply, ReloadConfig
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import Watch
from sentinel.protocol.stressor import MemoryLimit, StressorGroup
from sentinel.protocol.views import View


class Clock(Protocol):
    """The time, random numbers, and the only place where the supervisor waits."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def local(self) -> datetime:
        """Return the local wall-clock time."""

    def random_value(self) -> float:
        """Return an unpredictable number from 0 to 1."""

    def wait(self, files: Sequence[int], timeout: float) -> bool:
        """Wait until one of ``files`` is readable, for at most ``timeout`` seconds.

        Returns:
            Whether one is.
        """


class Probe(Protocol):
    """The process that reads the GPUs."""

    def start(self, generation: int, skip: tuple[str, ...]) -> None:
        """Spawn a probe that does not read the GPUs in ``skip``."""

    def kill(self, generation: int) -> None:
        """Kill the probe and forget it, whether it ends or not."""

    def start_spare(self) -> None:
        """Spawn a spare probe, which the next start activates if it is ready."""

    def kill_spare(self) -> None:
        """Kill the spare probe and forget it."""

    def collect_spare(self) -> SpareFacts | None:
        """Collect the new facts about the spare probe; None without one."""

    def watch(self, what: Watch) -> None:
        """Send the probe what to read."""

    def read_at(self, uuid: str) -> float:
        """Return when the probe last read the memory of a GPU; long ago if never."""

    def gone(self) -> bool:
        """Check that no probe is left, not even one that was killed."""

    def files(self) -> list[int]:
        """List the descriptors to wait for."""

    def collect(self) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Collect the new facts about the probe, and the newest reading of each GPU."""


class Spawner(Protocol):
    """The stressor children, at most one on each GPU."""

    def start(
        self,
        gpu: Gpu,
        generation: int,
        *,
        clearing: bool = False,
        committed: int = 0,
        standby: bool = False,
        group: StressorGroup | None = None,
    ) -> None:
        """Start a stressor.

        Args:
            gpu: The GPU.
            generation: The number of the child on this GPU.
            clearing: The child ends once it has created a context.
            committed: Memory to leave free besides the reserve, in bytes.
            standby: Whether the standby stressor becomes this child, if it is ready.
            group: Its place in a group of stressors, or None if it works alone.
        """

    def kill(self, uuid: str, generation: int) -> None:
        """Send SIGKILL to the child and its process group."""

    def request_stop(self, uuid: str, generation: int) -> None:
        """Request the child to stop."""

    def acknowledge(self, uuid: str, generation: int, number: int) -> None:
        """Acknowledge the child's finding of this number."""

    def set_pace(self, uuid: str, generation: int, share: float) -> None:
        """Set the share of the time for which the child keeps its GPU busy."""

    def limit_memory(self, uuid: str, generation: int, limit: MemoryLimit) -> None:
        """Tell the child from which used memory of its GPU on it is to yield by itself."""

    def watched_at(self, uuid: str) -> float:
        """Return when the child last saw its GPU's memory within its limit; long ago if never."""

    def renew_lease(self, uuid: str, seconds: float, *, shared: bool = False) -> None:
        """Let the child on a GPU live for so long from now on.

        Args:
            uuid: The GPU.
            seconds: The duration.
            shared: Whether the probe reads its memory in alternation.
        """

    def files(self) -> list[int]:
        """List the descriptors to wait for."""

    def collect(self) -> dict[str, ChildFacts]:
        """Collect the new facts about each child."""


class Standby(Protocol):
    """The process that becomes the next stressor."""

    def start(self) -> None:
        """Spawn a standby stressor."""

    def kill(self) -> None:
        """Kill the standby stressor and forget it."""

    def files(self) -> list[int]:
        """List the descriptors to wait for."""

    def collect(self) -> SpareFacts | None:
        """Collect the new facts about it; None without one."""

    def memory_left(self) -> bool:
        """Check that the host has memory for it."""


class Api(Protocol):
    """The API process."""

    def start(self, generation: int) -> None:
        """Spawn an API process."""

    def kill(self, generation: int) -> None:
        """Kill the API process and forget it."""

    def send(self, message: CommandReply | View | ReloadConfig) -> None:
        """Queue a message, to be sent as soon as the socket has room."""

    def files(self) -> list[int]:
        """List the descriptors to wait for."""

    def collect(self) -> ApiFacts | None:
        """Collect the new facts about the API process."""


class Interrupts(Protocol):
    """The source of shutdown and reload requests: signals, or a test."""

    def files(self) -> list[int]:
        """List the descriptors to wait for."""

    def collect(self) -> tuple[str | None, bool]:
        """Return the reason of a new shutdown request, or None, and whether to kill at once."""

    def reload_requested(self) -> bool:
        """Check, once per request, whether a reload of the settings was requested."""


class ServiceManager(Protocol):
    """The service manager that started the supervisor: systemd, or none."""

    #: The time limit of its watchdog, in seconds; None without one.
    watchdog: float | None

    @property
    def enabled(self) -> bool:
        """Whether there is a service manager."""

    def send(self, lines: Sequence[str]) -> bool:
        """Send a notification; return whether it was sent."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts around a supervisor."""

    probe: Probe
    spawner: Spawner
    interrupts: Interrupts
    clock: Clock
    standby: Standby
    #: None without an API process.
    api: Api | None = None
    manager: ServiceManager | None = None
