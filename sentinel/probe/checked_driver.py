"""Import the driver of a probe, and check what it returns: what is wrong is unknown, never idle."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from sentinel.errors import WireError
from sentinel.probe.driver import (
    Driver,
    DriverError,
    DriverGoneError,
    ReadError,
    XidSource,
    one_line,
)
from sentinel.protocol.codec import decode, encode
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind
from sentinel.protocol.probe import DriverSpec
from sentinel.protocol.telemetry import Telemetry

T = TypeVar("T")

#: The methods of :class:`Driver`.
CALLS = (
    "open",
    "version",
    "gpus",
    "memory",
    "processes",
    "exclusive",
    "mig",
    "display",
    "utilization",
    "temperature",
    "power",
    "sm_clock",
    "telemetry",
    "computing",
    "node",
    "xids",
)

#: The error codes of a driver that raised something else, and that returned something wrong.
RAISED, WRONG = "driver_raised", "driver_wrong"

#: What a UUID may be: it is part of the names of files.
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{3,79}")

#: The kernel's PID_MAX_LIMIT.
_MAX_PID = 2**22

#: No device works at such temperatures; they are those of another unit.
_COLDEST_C, _HOTTEST_C = -40, 200


class CheckedDriver:
    """A driver of a package; whatever is wrong with it is an error of :class:`Driver`.

    Args:
        name: Its name, for errors.
        driver: It has all methods of the protocol.
    """

    def __init__(self, name: str, driver: Driver) -> None:
        self._name = name
        self._driver = driver

    def open(self) -> None:
        """Load and initialize it."""
        self._call(DriverGoneError, "open", _anything)

    def version(self) -> str:
        """Return its name and its version."""
        return f"{self._name} {self._call(DriverGoneError, 'version', _text)}"

    def gpus(self, skip: Collection[str]) -> tuple[Gpu, ...]:
        """List the GPUs."""
        return self._call(DriverGoneError, "gpus", _gpus, skip)

    def memory(self, uuid: str) -> Memory:
        """Read the memory of one GPU."""
        return self._call(ReadError, "memory", _memory, uuid)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List every process on one GPU."""
        return self._call(ReadError, "processes", _processes, uuid)

    def exclusive(self, uuid: str) -> bool:
        """Check whether one GPU is not shared."""
        return self._call(ReadError, "exclusive", _truth, uuid)

    def mig(self, uuid: str) -> bool:
        """Check whether one GPU is divided."""
        return self._call(ReadError, "mig", _truth, uuid)

    def display(self, uuid: str) -> bool:
        """Check whether a display is active on one GPU."""
        return self._call(ReadError, "display", _truth, uuid)

    def utilization(self, uuid: str) -> float | None:
        """Return the utilization as a share."""
        return self._call(ReadError, "utilization", _share, uuid)

    def temperature(self, uuid: str) -> int | None:
        """Read the temperature in degrees Celsius."""
        return self._call(ReadError, "temperature", _celsius, uuid)

    def power(self, uuid: str) -> float | None:
        """Read the power in watts."""
        return self._call(ReadError, "power", _amount, uuid)

    def sm_clock(self, uuid: str) -> int | None:
        """Read the clock in MHz."""
        return self._call(ReadError, "sm_clock", _count, uuid)

    def telemetry(self, uuid: str) -> Telemetry:
        """Read all telemetry of one GPU."""
        return self._call(ReadError, "telemetry", _telemetry, uuid)

    def computing(self, uuid: str) -> tuple[int, ...] | None:
        """List the host PIDs of processes that used one GPU since the last call."""
        return self._call(ReadError, "computing", _pids, uuid)

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node; None also if the driver fails."""
        try:
            return self._call(ReadError, "node", lambda path: path and _text(path), uuid)
        except DriverError:
            return None

    def xids(self) -> XidSource:
        """Create a source of XIDs, whose faults cost XIDs and nothing else."""
        source: XidSource = self._call(ReadError, "xids", _anything)
        return source

    def _call(
        self, kind: type[DriverError], name: str, check: Callable[[Any], T], *arguments: object
    ) -> T:
        """Make a call, and return what ``check`` makes of the result.

        Raises:
            DriverError: The driver raised it, or ``kind``: it raised something else, or ``check``
                raised a ValueError.
        """
        try:
            found = getattr(self._driver, name)(*arguments)
        except DriverError:
            raise
        except Exception as error:
            reason = f"driver {self._name}: {name}() raised {one_line(error)}"
            raise kind(RAISED, reason) from error
        try:
            return check(found)
        except ValueError as error:
            reason = f"driver {self._name}: {name}() returned {error}"
            raise kind(WRONG, reason) from error


# --- what a call may return ------------------------------------------------------------------


def _require(holds: object, found: object, allowed: str) -> None:
    if not holds:
        shown = repr(found)
        message = f"{shown[:100]}{'...' if len(shown) > 100 else ''}; allowed is {allowed}"  # noqa: PLR2004
        raise ValueError(message)


def _is_count(found: object, most: float = math.inf) -> bool:
    return type(found) is int and 0 <= found <= most


def _anything(found: Any) -> Any:
    return found


def _text(found: object) -> str:
    _require(isinstance(found, str) and found, found, "a text")
    return str(found)


def _truth(found: object) -> bool:
    _require(isinstance(found, bool), found, "True or False")
    return bool(found)


def _share(found: Any) -> float | None:
    if found is None:
        return None
    _require(type(found) in {int, float} and 0 <= found <= 1, found, "a share from 0 to 1, or None")
    return float(found)


def _celsius(found: Any) -> int | None:
    if found is None:
        return None
    allowed = f"whole degrees from {_COLDEST_C} to {_HOTTEST_C}, or None"
    _require(type(found) is int and _COLDEST_C <= found <= _HOTTEST_C, found, allowed)
    return int(found)


def _amount(found: Any) -> float | None:
    if found is None:
        return None
    good = type(found) in {int, float} and 0 <= found < math.inf
    _require(good, found, "a finite number, 0 or more, or None")
    return float(found)


def _count(found: Any) -> int | None:
    _require(found is None or _is_count(found), found, "a whole number, 0 or more, or None")
    return None if found is None else int(found)


def _gpus(found: Any) -> tuple[Gpu, ...]:
    _require(isinstance(found, list | tuple), found, "a tuple of Gpu")
    for gpu in found:
        _require(isinstance(gpu, Gpu), gpu, "a tuple of Gpu")
        good = isinstance(gpu.uuid, str) and _UUID.fullmatch(gpu.uuid)
        _require(good, gpu.uuid, "a UUID of 4 to 80 letters, digits and ._:-")
        _require(_is_count(gpu.index), gpu.index, "an index, 0 or more")
        _require(_is_count(gpu.memory_total), gpu.memory_total, "memory_total in bytes")
        texts = (gpu.name, gpu.pci_bus_id, gpu.serial or "")
        _require(all(isinstance(text, str) for text in texts), texts, "names as text")
    for key in ("uuid", "index"):
        keys = [getattr(gpu, key) for gpu in found]
        _require(len(set(keys)) == len(keys), keys, f"each {key} once")
    return tuple(found)


def _memory(found: Any) -> Memory:
    _require(isinstance(found, Memory), found, "a Memory")
    good = _is_count(found.total) and found.total > 0
    good = good and _is_count(found.used, found.total) and _is_count(found.free, found.total)
    _require(good, found, "used and free from 0 to total, in bytes")
    return Memory(total=found.total, used=found.used, free=found.free)


def _processes(found: Any) -> tuple[GpuProcess, ...]:
    _require(isinstance(found, list | tuple), found, "a tuple of GpuProcess")
    for process in found:
        _require(isinstance(process, GpuProcess), process, "a tuple of GpuProcess")
        good = _is_count(process.pid, _MAX_PID) and process.pid > 0
        _require(good, process.pid, f"a PID from 1 to {_MAX_PID}")
        _require(isinstance(process.kind, ProcessKind), process.kind, "a ProcessKind")
        good = process.memory is None or _is_count(process.memory)
        _require(good, process.memory, "memory in bytes, or None")
    pids = [process.pid for process in found]
    _require(len(set(pids)) == len(pids), pids, "each PID once")
    # The other fields are those of /proc, which the probe reads.
    own = (
        GpuProcess(pid=process.pid, kind=process.kind, memory=process.memory) for process in found
    )
    return tuple(sorted(own, key=lambda process: process.pid))


def _pids(found: Any) -> tuple[int, ...] | None:
    if found is None:
        return None
    good = isinstance(found, list | tuple) and all(_is_count(pid) for pid in found)
    _require(good, found, "a tuple of PIDs, or None")
    return tuple(found)


def _telemetry(found: Any) -> Telemetry:
    _require(isinstance(found, Telemetry), found, "a Telemetry")
    try:
        return decode(encode(found), [Telemetry])
    except (WireError, TypeError, ValueError) as error:
        message = f"telemetry that cannot be sent: {one_line(error)}"
        raise ValueError(message) from error


#: The error code of a driver of a package that cannot be loaded.
UNUSABLE = "driver_unusable"


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
    missing = [call for call in CALLS if not callable(getattr(driver, call, None))]
    if missing:
        raise DriverGoneError(UNUSABLE, f"{named} has no {', '.join(missing)}()")
    return CheckedDriver(spec.name, driver)


def _create(spec: DriverSpec) -> Driver:
    """Import what creates the driver, and call it with the options."""
    module, _, attribute = spec.place.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    create: object = found
    if not callable(create):
        message = f"{spec.place} is a {type(create).__name__}, which cannot be called"
        raise TypeError(message)
    driver: Driver = create(**spec.options)
    return driver
