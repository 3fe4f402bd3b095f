"""The calls that the probe makes to a driver, how they fail, and the checks of their results."""

from __future__ import annotations

import functools
import importlib
import json
import operator
import re
import time
import typing
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sentinel.protocol.codec import from_json
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Telemetry
from sentinel.protocol.probe import DriverSpec

#: Which list determines the kind of a process that is in several. Some drivers put MPS clients in
#: the compute list, too, and only the MPS list gives their kind; compute outranks graphics.
_RANKS = {ProcessKind.MPS: 0, ProcessKind.COMPUTE: 1, ProcessKind.GRAPHICS: 2}

#: The maximum length of an error of foreign code, and of what it returned.
_MAX_TEXT_LENGTH = 300
_MAX_SHOWN = 100


class DriverError(Exception):
    """A driver call failed.

    Args:
        code: A short name for programs, such as ``gpu_is_lost``.
        reason: One sentence for users, with the remedy if one is known.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class DriverGoneError(DriverError):
    """The whole driver: missing, not loaded, or of another version than its library."""


class GpuLostError(DriverError):
    """One GPU left the bus or needs a reset; a retry cannot help."""


class ReadError(DriverError):
    """One call failed; the next may succeed."""


class TooManyProcessesError(DriverError):
    """A list of processes is too long to read in a moment.

    Args:
        count: The number of processes in it.
    """

    def __init__(self, count: int) -> None:
        super().__init__("too_many_processes", f"{count} processes are on the GPU")
        self.count = count


@dataclass(frozen=True, kw_only=True)
class Xid:
    """An XID as the driver delivers it."""

    uuid: str
    number: int


class XidSource(Protocol):
    """Delivers the XIDs of the GPUs that were added to it, to one thread.

    Calls may block without limit and raise one of the errors of :class:`Driver`.
    """

    def add(self, uuid: str) -> bool:
        """Deliver the XIDs of this GPU from now on; return False if it does not report any."""

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait for the next XID; return None if there was none, or another event."""

    def close(self) -> None:
        """Release what the driver keeps for it."""


class Driver(Protocol):
    """A driver; every call may block without limit.

    Calls for different GPUs may run at the same time in different threads. All but :meth:`node`
    raise one of the first three errors above. The calls that a device may lack have the body of a
    device that lacks them.
    """

    @abstractmethod
    def open(self) -> None:
        """Load and initialize it; called once, first."""

    @abstractmethod
    def version(self) -> str:
        """Return the version of the driver."""

    @abstractmethod
    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the GPUs in nvidia-smi's order.

        Unreachable GPUs are left out. ``memory_total`` is 0 if it could not be read, and for GPUs
        in ``skip``, for which only the UUID is read.
        """

    @abstractmethod
    def memory(self, uuid: str) -> Memory:
        """Read the memory of one GPU, without the driver's own."""

    @abstractmethod
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List every process on one GPU once, by PID.

        Raises:
            TooManyProcessesError: The list would take so long that other GPUs would notice.
        """

    def exclusive(self, uuid: str) -> bool:
        """Check whether one GPU is in a compute mode other than the shared one."""
        return False

    def mig(self, uuid: str) -> bool:
        """Check whether one GPU is divided by MIG; False if it cannot be."""
        return False

    def display(self, uuid: str) -> bool:
        """Check whether a display is active on one GPU; False without displays."""
        return False

    def utilization(self, uuid: str) -> float | None:
        """Return the recent share of the time in which a kernel ran, or None if not supported."""
        return None

    def temperature(self, uuid: str) -> int | None:
        """Read the temperature in degrees Celsius, or None if not supported."""
        return None

    def power(self, uuid: str) -> float | None:
        """Read the recent mean power in watts, or None if not supported."""
        return None

    def sm_clock(self, uuid: str) -> int | None:
        """Read the clock of the multiprocessors in MHz, or None if not supported."""
        return None

    def telemetry(self, uuid: str) -> Telemetry:
        """Read all telemetry of one GPU; unsupported fields are None."""
        return Telemetry(at=time.monotonic())

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """List the host PIDs of processes that used one GPU since the last call.

        None at the first call, and if the driver does not support it.
        """
        return None

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node; without it no program is noticed opening it."""
        return None

    def xids(self) -> XidSource:
        """Create a source of XIDs without any GPU."""
        return NoXids()


class BasicDriver(Driver):
    """A base class of drivers, which have to add the first five calls."""


class NoXids:
    """A source for a driver that reports no XIDs."""

    def add(self, uuid: str) -> bool:
        """Return False: no GPU reports any."""
        return False

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait in vain."""
        time.sleep(timeout_s)
        return None

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def one_line(error: BaseException) -> str:
    """Describe an error of foreign code in one line of limited length."""
    try:
        text = " ".join(str(error).split())[:_MAX_TEXT_LENGTH]
    except Exception:  # noqa: BLE001 - an exception whose __str__ raises
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def merge_lists(lists: dict[ProcessKind, list[tuple[int, int | None]]]) -> tuple[GpuProcess, ...]:
    """Merge the ``(pid, memory)`` of three lists into one, with each PID once.

    A PID that occurs repeatedly gets the first kind of MPS, compute and graphics, and the largest
    memory of its entries.
    """
    merged: dict[int, GpuProcess] = {}
    for kind in sorted(lists, key=_RANKS.__getitem__):
        for pid, memory in lists[kind]:
            known = merged.get(pid)
            amounts = [m for m in (memory, known.memory if known else None) if m is not None]
            merged[pid] = GpuProcess(
                pid=pid, kind=known.kind if known else kind, memory=max(amounts, default=None)
            )
    return tuple(merged[pid] for pid in sorted(merged))


# --- drivers of packages ---------------------------------------------------------------------

#: The error codes of a driver of a package: one that cannot be loaded, one that raised an error
#: that is none of the above, and one that returned something wrong.
UNUSABLE, RAISED, WRONG = "driver_unusable", "driver_raised", "driver_wrong"

#: The calls of :class:`Driver`, and what each returns.
_RESULTS: Mapping[str, Any] = {
    call: typing.get_type_hints(function)["return"]
    for call, function in vars(Driver).items()
    if not call.startswith("_")
}
#: The calls without which there is no driver; an error of another one concerns one GPU.
_FOR_ALL = ("open", "version", "gpus")
#: The calls that return nothing to check: :class:`XidSource` has calls of its own.
_UNCHECKED = ("open", "xids")

#: What a UUID may be: it is part of the names of files.
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{3,79}")
#: The kernel's PID_MAX_LIMIT.
_MAX_PID = 2**22
#: No device works at such temperatures; they are those of another unit.
_COLDEST_C, _HOTTEST_C = -40, 200


class _Rule(NamedTuple):
    """A limit of a result that has the right type and is not None."""

    allowed: str
    holds: Callable[[Any], object]


_NOT_NEGATIVE = _Rule("0 or more, or None", lambda number: number >= 0)

_RULES: Mapping[str, tuple[_Rule, ...]] = {
    "version": (_Rule("a text", bool),),
    "gpus": (
        _Rule(
            "UUIDs of 4 to 80 letters, digits and ._:-",
            lambda gpus: all(_UUID.fullmatch(gpu.uuid) for gpu in gpus),
        ),
        _Rule(
            "an index and a memory_total of 0 or more",
            lambda gpus: all(gpu.index >= 0 and gpu.memory_total >= 0 for gpu in gpus),
        ),
        _Rule("each uuid once", lambda gpus: _differ(gpu.uuid for gpu in gpus)),
        _Rule("each index once", lambda gpus: _differ(gpu.index for gpu in gpus)),
    ),
    "memory": (_Rule("used and free from 0 to total, in bytes", operator.attrgetter("plausible")),),
    "processes": (
        _Rule(
            f"a PID from 1 to {_MAX_PID}", lambda found: all(0 < p.pid <= _MAX_PID for p in found)
        ),
        _Rule("memory of 0 bytes or more", lambda found: all((p.memory or 0) >= 0 for p in found)),
        _Rule("each PID once", lambda found: _differ(p.pid for p in found)),
    ),
    "utilization": (_Rule("a share from 0 to 1, or None", lambda share: 0 <= share <= 1),),
    "temperature": (
        _Rule(
            f"whole degrees from {_COLDEST_C} to {_HOTTEST_C}, or None",
            lambda degrees: _COLDEST_C <= degrees <= _HOTTEST_C,
        ),
    ),
    "power": (_NOT_NEGATIVE,),
    "sm_clock": (_NOT_NEGATIVE,),
    "computing": (_Rule("PIDs of 0 or more", lambda pids: min(pids, default=0) >= 0),),
}


def _differ(items: Iterable[object]) -> bool:
    listed = list(items)
    return len(set(listed)) == len(listed)


class CheckedDriver:
    """A driver of a package; whatever is wrong with it is an error of :class:`Driver`.

    What is wrong is unknown, never idle. It has all calls of :class:`Driver`.

    Args:
        name: Its name, for errors.
        driver: It has all methods of the protocol.
    """

    def __init__(self, name: str, driver: Driver) -> None:
        self._name = name
        self._driver = driver

    def __getattr__(self, call: str) -> Callable[..., Any]:
        """Return a call of the driver with its checks."""
        if call not in _RESULTS:
            raise AttributeError(call)
        return functools.partial(self._call, call)

    def version(self) -> str:
        """Return its name and its version."""
        return f"{self._name} {self._call('version')}"

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List every process on one GPU; the probe itself reads the other fields from /proc."""
        found = self._call("processes", uuid)
        own = [GpuProcess(pid=p.pid, kind=p.kind, memory=p.memory) for p in found]
        return tuple(sorted(own, key=lambda process: process.pid))

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node; None also if the driver fails."""
        try:
            return self._call("node", uuid) or None
        except DriverError:
            return None

    def _call(self, call: str, *arguments: object) -> Any:
        """Make a call, and check its result.

        Raises:
            DriverError: The driver raised it, or it raised something else or returned something
                wrong.
        """
        kind = DriverGoneError if call in _FOR_ALL else ReadError
        try:
            found = getattr(self._driver, call)(*arguments)
        except DriverError:
            raise
        except Exception as error:
            reason = f"driver {self._name}: {call}() raised {one_line(error)}"
            raise kind(RAISED, reason) from error
        try:
            return found if call in _UNCHECKED else _checked(call, found)
        except Exception as error:
            shown = repr(found)
            shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
            reason = f"driver {self._name}: {call}() returned {shown}; {error}"
            raise kind(WRONG, reason) from error


def _checked(call: str, found: object) -> Any:
    """Return a result of a call as its type.

    Raises:
        TypeError: It is of another type.
        ValueError: A part of it is of another type, or breaks a rule.
    """
    kind = _RESULTS[call]
    name = kind.__name__ if isinstance(kind, type) else kind
    if isinstance(kind, type) and not isinstance(found, kind):
        raise TypeError(f"allowed is a {name}: it is a {type(found).__name__}")
    try:
        result: Any = from_json(kind, json.loads(json.dumps(found, default=vars)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"allowed is a {name}: {error}") from error
    for rule in _RULES.get(call, ()):
        if result is not None and not rule.holds(result):
            raise ValueError(f"allowed is {rule.allowed}")
    return result


def load_driver(spec: DriverSpec) -> Driver:
    """Create a driver; one of a package is wrapped in checks of all that it returns.

    Raises:
        DriverGoneError: The driver of a package cannot be imported or created, or lacks a method.
    """
    if spec.origin is None:
        driver: Driver = _create(spec)
        return driver

    named = f"driver {spec.name} of {spec.origin}"
    try:
        driver = _create(spec)
    except Exception as error:
        reason = f"{named} cannot be loaded: {one_line(error)}"
        raise DriverGoneError(UNUSABLE, reason) from error
    missing = [call for call in _RESULTS if not callable(getattr(driver, call, None))]
    if missing:
        raise DriverGoneError(UNUSABLE, f"{named} has no {', '.join(missing)}()")
    return typing.cast("Driver", CheckedDriver(spec.name, driver))


def _create(spec: DriverSpec) -> Driver:
    """Import what creates the driver, and call it with the options."""
    module, _, attribute = spec.target.partition(":")
    create: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    if not callable(create):
        message = f"{spec.target} is a {type(create).__name__}, which cannot be called"
        raise TypeError(message)
    driver: Driver = create(**spec.options)
    return driver
