"""Every error that a person or a caller can meet, each with the exit code that it means."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AccessDeniedError",
    "AlreadyRunningError",
    "ConfigError",
    "ConflictError",
    "DriverUnavailableError",
    "EndedEarlyError",
    "ExitCode",
    "GpuHeldError",
    "IncompleteError",
    "NoSuchGpuError",
    "NotRunningError",
    "SelftestError",
    "SentinelError",
    "ServiceError",
    "TimedOutError",
    "WireError",
    "WorkloadError",
]


class ExitCode(IntEnum):
    """What the exit codes of every command mean."""

    OK = 0
    FAIL = 1
    USAGE = 2
    NOT_RUNNING = 3
    NO_SUCH_GPU = 4
    NO_DRIVER = 5
    UNKILLABLE = 7
    HELD = 75
    INTERRUPTED = 130
    TERMINATED = 143


class SentinelError(Exception):
    """Say what was wrong, where it came from and what to do; the base of all our errors.

    Args:
        what: One sentence: what is wrong and where it came from.
        remedy: What to do about it, or an empty string.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}" if self.remedy else self.what


class ConfigError(SentinelError):
    """A value that is not allowed, named with its key, its source and what is allowed."""


class WorkloadError(ConfigError):
    """What is named as a workload is none: it cannot be imported, or not be called as one."""


class NoSuchGpuError(SentinelError):
    """No GPU is visible, or a selector names none that is."""

    exit_code = ExitCode.NO_SUCH_GPU


class AccessDeniedError(SentinelError):
    """This user or this place may not do what was asked."""

    exit_code = ExitCode.NO_SUCH_GPU


class DriverUnavailableError(SentinelError):
    """There is no NVIDIA driver here, or NVML cannot talk to it."""

    exit_code = ExitCode.NO_DRIVER


class GpuHeldError(SentinelError):
    """Another sentinel on this host holds a GPU that was asked for."""

    exit_code = ExitCode.HELD


class AlreadyRunningError(SentinelError):
    """A daemon runs at this socket already; it is named."""

    exit_code = ExitCode.HELD


class IncompleteError(SentinelError):
    """Something could not be done to its end: others needed the GPU, or a signal came."""

    exit_code = ExitCode.NOT_RUNNING


class SelftestError(SentinelError):
    """A selftest proved nothing: its stressor failed, or the GPU was wrong of its own."""

    exit_code = ExitCode.FAIL


class NotRunningError(SentinelError):
    """No daemon answers at the place where one was looked for."""

    exit_code = ExitCode.NOT_RUNNING


class ConflictError(SentinelError):
    """The daemon could not do it because somebody else has what was asked for."""

    exit_code = ExitCode.FAIL


class TimedOutError(SentinelError):
    """It was not done, or not answered, within the time that was allowed."""

    exit_code = ExitCode.FAIL


class ServiceError(SentinelError):
    """The daemon refused, went away in the middle of it, or gave an answer that makes no sense."""


class WireError(SentinelError):
    """A datagram that is not one of the messages that were expected."""


class EndedEarlyError(SentinelError):
    """A signal ended us before we were ready."""

    def __init__(self, name: str) -> None:
        super().__init__(f"ended by {name} before it was ready; nothing was started")
        self.exit_code = ExitCode.INTERRUPTED if name == "SIGINT" else ExitCode.TERMINATED
