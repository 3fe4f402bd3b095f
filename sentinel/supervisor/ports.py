"""Define the parts around the supervisor's loop as protocols. Nothing in them blocks.

The real parts are assembled in ``bootstrap``; tests have others. Each protocol names its real part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sentinel.core.observation import ApiFacts, ChildFacts, ProbeFacts, ProcessFacts
from sentinel.core.step import Start
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import StressorCommand
from sentinel.protocol.views import View


class Clock(Protocol):
    """The time, random numbers, and the supervisor's only wait: ``bootstrap.HostClock``."""

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


class ManagedProcess(Protocol):
    """A process beside the stressors, and its replacements."""

    def start(self, generation: int, excluded: tuple[str, ...] = ()) -> None:
        """Spawn a process; a probe does not read the GPUs in ``excluded``."""

    def kill(self, generation: int) -> None:
        """Kill the process of this number and forget it, whether it ends or not."""

    def send(self, message: Any) -> object:
        """Send a message, or queue it until the channel has room."""

    def files(self) -> list[int]:
        """List the descriptors to wait for."""

    def collect(self) -> ProcessFacts | None:
        """Collect the new facts about the process; None without one."""


class Probe(ManagedProcess, Protocol):
    """The process that reads the GPUs: ``probe_process.ProbeProcess``."""

    def collect(self) -> ProbeFacts | None:
        """Collect the new facts about the probe, with the newest reading of each GPU."""

    def read_at(self, uuid: str) -> float:
        """Return when the probe last read the memory of a GPU; long ago if never."""

    def gone(self) -> bool:
        """Check that no probe is left, not even one that was killed."""


class Standby(ManagedProcess, Protocol):
    """The process that becomes the next stressor: ``stressor_pool.StandbyStressor``."""

    def memory_left(self) -> bool:
        """Check that the host has memory for it."""


class Api(ManagedProcess, Protocol):
    """The API process: ``api_process.ApiProcess``."""

    def send_views(self, views: Sequence[View]) -> None:
        """Send views, in this order."""

    def collect(self) -> ApiFacts | None:
        """Collect the new facts about the API process."""


class Spawner(Protocol):
    """The stressor children, at most one on each GPU: ``stressor_pool.StressorPool``."""

    def start(self, gpu: Gpu, order: Start) -> None:
        """Start a stressor, from the standby one if that is wanted and ready."""

    def kill(self, uuid: str, generation: int) -> None:
        """Send SIGKILL to the child and its process group."""

    def send(self, uuid: str, generation: int, message: StressorCommand) -> None:
        """Send a message to the child."""

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


class Interrupts(Protocol):
    """The source of shutdown and reload requests: ``signals.Signals``, or a test."""

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
    spare_probe: ManagedProcess
    standby: Standby
    #: None without an API process.
    api: Api | None = None
    spawner: Spawner
    interrupts: Interrupts
    clock: Clock
    manager: ServiceManager | None = None
