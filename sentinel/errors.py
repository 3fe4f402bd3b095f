"""Errors for users and callers, each with the exit code of a command that raises it."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AccessDeniedError",
    "AlreadyRunningError",
    "ConfigError",
    "ConflictError",
    "ConnectionLostError",
    "DriverUnavailableError",
    "EndedEarlyError",
    "ExitCode",
    "GpuHeldError",
    "IncompleteError",
    "MemoryContentionError",
    "MemoryHeldError",
    "NoSuchGpuError",
    "NotRunningError",
    "PeersError",
    "SelftestError",
    "SentinelError",
    "ServiceError",
    "TimedOutError",
    "WireError",
    "WorkloadError",
]


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAIL = 1
    USAGE = 2
    NOT_RUNNING = 3
    #: The same number: not everything was done.
    INCOMPLETE = 3
    NO_SUCH_GPU = 4
    NO_DRIVER = 5
    UNKILLABLE = 7
    #: Inside the daemon only: it starts again.
    RESTART = 8
    HELD = 75
    INTERRUPTED = 130
    TERMINATED = 143


class ChildExitCode(IntEnum):
    """The exit codes of the supervisor's children; any other is a crash."""

    DONE = 0
    LEASE_RAN_OUT = 80
    ORPHANED = 81
    FAILED = 82


class SentinelError(Exception):
    """The base of all errors: what is wrong, where it came from and what to do.

    Args:
        what: One sentence: what is wrong and where it came from.
        remedy: What to do about it, or an empty string.
    """

    exit_code: ExitCode = ExitCode.USAGE
    #: Why, for programs; the API's code where the API has one.
    code: str = "error"
    #: The values that could have been given instead, if they can be listed.
    allowed: tuple[str, ...] = ()
    #: The errors that this one joins, if it does.
    parts: tuple[SentinelError, ...] = ()

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}" if self.remedy else self.what


class ConfigError(SentinelError):
    """A value is not allowed; the message has its key, its source and what is allowed."""

    code = "invalid"


def raise_error(error: ConfigError) -> None:
    """Raise an error: how an error is reported where the first one ends the work."""
    raise error


class WorkloadError(ConfigError):
    """The named object is not a workload: it cannot be imported or called as one."""

    code = "workload"


class PeersError(SentinelError):
    """The other stressors of a group did not come, or went; proves nothing about this GPU."""

    code = "peers"


class MemoryContentionError(SentinelError):
    """Another process took ``grown`` bytes of a GPU while a stressor started."""

    code = "contention"

    def __init__(self, grown: int) -> None:
        super().__init__(f"{grown} bytes were taken by another process")
        self.grown = grown


class NoSuchGpuError(SentinelError):
    """No GPU is visible, or a selector matches no visible GPU."""

    code = "no_such_gpu"
    exit_code = ExitCode.NO_SUCH_GPU


class AccessDeniedError(SentinelError):
    """The caller may not do this, or a path is not accessible."""

    code = "forbidden"
    exit_code = ExitCode.NO_SUCH_GPU


class DriverUnavailableError(SentinelError):
    """The NVIDIA driver is missing, or NVML cannot use it."""

    code = "no_driver"
    exit_code = ExitCode.NO_DRIVER


class GpuHeldError(SentinelError):
    """Another sentinel on this host holds a requested GPU."""

    code = "held"
    exit_code = ExitCode.HELD


class AlreadyRunningError(SentinelError):
    """A daemon already runs at this socket."""

    code = "already_running"
    exit_code = ExitCode.HELD


class IncompleteError(SentinelError):
    """The task was not completed: a process needed the GPU, or a signal came."""

    code = "incomplete"
    exit_code = ExitCode.NOT_RUNNING


class SelftestError(SentinelError):
    """A self-test proved nothing: its stressor failed, or the GPU had a fault of its own."""

    code = "selftest"
    exit_code = ExitCode.FAIL


class NotRunningError(SentinelError):
    """No daemon answers at the socket."""

    code = "not_running"
    exit_code = ExitCode.NOT_RUNNING


class ConflictError(SentinelError):
    """The daemon refused because another client has the resource."""

    code = "conflict"
    exit_code = ExitCode.FAIL


class TimedOutError(SentinelError):
    """The request was not completed or answered within its timeout."""

    code = "timeout"
    exit_code = ExitCode.FAIL


class ServiceError(SentinelError):
    """The daemon refused, closed the connection, or sent an invalid response."""

    code = "service"


class ConnectionLostError(ServiceError):
    """The daemon's API process has ended within its response, or its successor has no state yet."""


class MemoryHeldError(SentinelError):
    """A daemon has ended, and memory that its stressors had is still in use."""

    exit_code = ExitCode.FAIL
    code = "memory_held"


class WireError(SentinelError):
    """A datagram is not one of the expected messages."""

    code = "wire"


class EndedEarlyError(SentinelError):
    """A signal came before startup was complete."""

    code = "ended_early"

    def __init__(self, name: str) -> None:
        super().__init__(f"ended by {name} before it was ready; nothing was started")
        self.exit_code = ExitCode.INTERRUPTED if name == "SIGINT" else ExitCode.TERMINATED
