"""Load the driver of a package, and check all that it returns and raises.

Whatever it does wrong is an error of :mod:`sentinel.probe.driver`, of one GPU where it can be:
unknown, never idle. Only a call that hangs, ends the process or keeps the interpreter is left to
the supervisor, which replaces the probe.
"""

from __future__ import annotations

import functools
import importlib
import json
import operator
import re
import reprlib
import time
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sentinel.host.trusted_code import leave_out_untrusted
from sentinel.probe.driver import (
    Driver,
    DriverError,
    DriverGoneError,
    GpuLostError,
    ReadError,
    TooManyProcessesError,
    Xid,
    XidSource,
)
from sentinel.protocol.codec import from_json
from sentinel.protocol.gpu import MAX_MEMORY_BYTES, Gpu, GpuProcess, Telemetry
from sentinel.protocol.probe import DriverSpec

#: The error codes: a driver that cannot be loaded, one that raised an error that is none of its
#: own, and one that returned something wrong.
UNUSABLE, RAISED, WRONG = "driver_unusable", "driver_raised", "driver_wrong"

#: The calls of :class:`Driver` and of :class:`XidSource`, and what each returns.
_RESULTS: Mapping[str, Any] = {
    call: typing.get_type_hints(function)["return"]
    for kind in (XidSource, Driver)
    for call, function in vars(kind).items()
    if not call.startswith("_")
}
_CALLS = [call for call in vars(Driver) if not call.startswith("_")]
#: The calls without which there is no driver; an error of another one concerns one GPU.
_FOR_ALL = ("open", "version", "gpus")
#: The calls that return nothing to check: :class:`XidSource` has calls of its own.
_UNCHECKED = ("open", "xids", "close")

# --- what a GPU can have ----------------------------------------------------------------------

#: What a UUID may be: it is part of the names of files.
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{3,79}")
#: The kernel's PID_MAX_LIMIT.
_MAX_PID = 2**22
#: No device works at such temperatures; they are those of another unit.
_COLDEST_C, _HOTTEST_C = -40, 200
#: The names of 128 GPUs of this length, as JSON, fit into a message.
_MAX_NAME = 100
#: The longest path of the kernel.
_MAX_PATH = 4096
#: The most items of a result, far above what any GPU has: more would take seconds to check.
_MAX_ITEMS = 10_000
#: No watts, MHz or index of a GPU is higher.
_HIGHEST = 100_000
#: NVML numbers XIDs by 32 bits.
_MAX_XID = 2**32
_SHARES = frozenset({"utilization", "memory_utilization", "fan_share"})

#: The longest text of an error, and of what a call returned.
_MAX_TEXT = 300
_REPR = reprlib.Repr()
_REPR.maxother = 100


class _Rule(NamedTuple):
    """A limit of a result that has the right type and is not None."""

    allowed: str
    holds: Callable[[Any], object]


def _is_name(text: str | None, limit: int = _MAX_NAME) -> bool:
    return text is None or (text.isprintable() and len(json.dumps(text)) - 2 <= limit)


def _differ(items: Iterable[object]) -> bool:
    listed = list(items)
    return len(set(listed)) == len(listed)


def _are_named(gpus: Collection[Gpu]) -> bool:
    return all(_is_name(text) for gpu in gpus for text in (gpu.name, gpu.pci_bus_id, gpu.serial))


def _is_possible(telemetry: Telemetry) -> bool:
    """Check each field by the unit in its name."""
    for name, value in vars(telemetry).items():
        match value:
            case tuple():
                good = len(value) <= _MAX_NAME and all(map(_is_name, value))
            case None | bool():
                good = True
            case _ if name.endswith("_c"):
                good = _COLDEST_C <= value <= _HOTTEST_C
            case _ if name in _SHARES:
                good = 0 <= value <= 1
            case _:
                good = value >= 0
        if not good:
            return False
    return True


_LOAD = _Rule(f"0 to {_HIGHEST}, or None", lambda number: 0 <= number <= _HIGHEST)

_RULES: Mapping[str, tuple[_Rule, ...]] = {
    "version": (
        _Rule("a text", bool),
        _Rule(f"at most {_MAX_NAME} printable characters", _is_name),
    ),
    "gpus": (
        _Rule(
            "UUIDs of 4 to 80 letters, digits and ._:-",
            lambda gpus: all(_UUID.fullmatch(gpu.uuid) for gpu in gpus),
        ),
        _Rule(f"names of at most {_MAX_NAME} printable characters", _are_named),
        _Rule(
            "an index and a memory_total of 0 or more",
            lambda gpus: all(
                0 <= gpu.index <= _HIGHEST and 0 <= gpu.memory_total <= MAX_MEMORY_BYTES
                for gpu in gpus
            ),
        ),
        _Rule("each uuid once", lambda gpus: _differ(gpu.uuid for gpu in gpus)),
        _Rule("each index once", lambda gpus: _differ(gpu.index for gpu in gpus)),
    ),
    "memory": (
        _Rule(
            f"used and free from 0 to total, in bytes, and total up to {MAX_MEMORY_BYTES}",
            operator.attrgetter("plausible"),
        ),
    ),
    "processes": (
        _Rule(
            f"a PID from 1 to {_MAX_PID}", lambda found: all(0 < p.pid <= _MAX_PID for p in found)
        ),
        _Rule(
            f"memory of 0 to {MAX_MEMORY_BYTES} bytes",
            lambda found: all(0 <= (p.memory or 0) <= MAX_MEMORY_BYTES for p in found),
        ),
        _Rule("each PID once", lambda found: _differ(p.pid for p in found)),
    ),
    "utilization": (_Rule("a share from 0 to 1, or None", lambda share: 0 <= share <= 1),),
    "temperature": (
        _Rule(
            f"whole degrees from {_COLDEST_C} to {_HOTTEST_C}, or None",
            lambda degrees: _COLDEST_C <= degrees <= _HOTTEST_C,
        ),
    ),
    "power": (_LOAD,),
    "sm_clock": (_LOAD,),
    "telemetry": (_Rule("figures that a GPU can have, in the units of their names", _is_possible),),
    "computing": (
        _Rule(f"PIDs of 0 to {_MAX_PID}", lambda pids: all(0 <= p <= _MAX_PID for p in pids)),
    ),
    "node": (_Rule("a path of printable characters", lambda path: _is_name(path, _MAX_PATH)),),
    "wait": (_Rule("a number of 32 bits", lambda xid: 0 <= xid.number < _MAX_XID),),
}


# --- calls ------------------------------------------------------------------------------------


def one_line(text: object) -> str:
    """Describe an object of foreign code in one line of limited length; empty if it cannot."""
    try:
        line = " ".join(str(text)[: 4 * _MAX_TEXT].split())[:_MAX_TEXT]
    except BaseException:  # noqa: BLE001 - a __str__ that raises
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _described(error: BaseException) -> str:
    """Describe an error of foreign code."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shown(found: object) -> str:
    """Describe what a call returned."""
    try:
        return one_line(_REPR.repr(found))
    except BaseException:  # noqa: BLE001 - an int of thousands of digits
        return f"an unprintable {type(found).__name__}"


def _call(
    name: str, owner: object, call: str, *arguments: object, kind: type[DriverError] = ReadError
) -> Any:
    """Make a call, and check its result.

    Args:
        name: The driver, for errors.
        owner: Has the call.
        call: One of ``_RESULTS``.
        arguments: Its arguments.
        kind: The error for whatever is wrong.

    Raises:
        DriverError: The driver raised one, or did something wrong.
    """
    place = f"driver {name}: {call}()"
    try:
        found = getattr(owner, call)(*arguments)
    except DriverError as error:
        raise _rebuilt(error, f"{place} raised {_described(error)}", kind) from error
    except BaseException as error:  # SystemExit would end the thread, and other GPUs with it
        raise kind(RAISED, f"{place} raised {_described(error)}") from error
    try:
        return found if call in _UNCHECKED else _checked(call, found)
    except BaseException as error:
        raise kind(WRONG, f"{place} returned {_shown(found)}; {one_line(error)}") from error


def _rebuilt(error: DriverError, otherwise: str, kind: type[DriverError]) -> DriverError:
    """Build an error of the driver again, since its parts may be anything."""
    own = vars(error)
    if isinstance(error, TooManyProcessesError):
        count = own.get("count")
        if type(count) is int and 0 < count <= _MAX_PID:
            return TooManyProcessesError(count)
        return ReadError(RAISED, otherwise)
    for family in (DriverGoneError, GpuLostError, ReadError):
        if isinstance(error, family):
            kind = family
            break
    code, reason = own.get("code"), own.get("reason")
    if type(code) is str and type(reason) is str and code and reason:
        return kind(one_line(code), one_line(reason))
    return kind(RAISED, otherwise)


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
    if isinstance(found, Collection) and len(found) > _MAX_ITEMS:
        if call == "processes":
            raise ValueError(f"allowed are {_MAX_ITEMS}; raise TooManyProcessesError for more")
        raise ValueError(f"allowed is a {name} of at most {_MAX_ITEMS}")
    try:
        result: Any = from_json(kind, json.loads(json.dumps(found, default=vars)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"allowed is a {name}: {error}") from error
    for rule in _RULES.get(call, ()):
        if result is not None and not rule.holds(result):
            raise ValueError(f"allowed is {rule.allowed}")
    return result


class CheckedDriver:
    """A driver of a package with all calls of :class:`Driver`, and only errors of those.

    Args:
        name: Its name, for errors.
        driver: It has all methods of the protocol.
    """

    def __init__(self, name: str, driver: Driver) -> None:
        self._name = name
        self._driver = driver

    def __getattr__(self, call: str) -> Callable[..., Any]:
        """Return a call of the driver with its checks."""
        if call not in _CALLS:
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

    def telemetry(self, uuid: str) -> Telemetry:
        """Read all telemetry of one GPU; its time is that of the call."""
        at = time.monotonic()
        telemetry: Telemetry = self._call("telemetry", uuid)
        return replace(telemetry, at=at)

    def node(self, uuid: str) -> str | None:
        """Return the path of one GPU's device node; None also if the driver fails."""
        try:
            return self._call("node", uuid) or None
        except DriverError:
            return None

    def xids(self) -> XidSource:
        """Create a source of XIDs with checks of its own."""
        return CheckedXids(self._name, self._call("xids"))

    def _call(self, call: str, *arguments: object) -> Any:
        kind = DriverGoneError if call in _FOR_ALL else ReadError
        return _call(self._name, self._driver, call, *arguments, kind=kind)


class CheckedXids:
    """The source of XIDs of a package's driver; it reports those of GPUs that were added.

    Args:
        name: The driver, for errors.
        source: The source.
    """

    #: A wait that returns nothing at once is repeated after this pause, in seconds.
    _PAUSE_S = 0.05

    def __init__(self, name: str, source: XidSource) -> None:
        self._name = name
        self._source = source
        self._added: set[str] = set()

    def add(self, uuid: str) -> bool:
        """Deliver the XIDs of this GPU from now on; return False if it does not report any."""
        added: bool = _call(self._name, self._source, "add", uuid)
        self._added |= {uuid} if added else set()
        return added

    def wait(self, timeout_s: float) -> Xid | None:
        """Wait for the next XID of a GPU that was added; None also for one of another."""
        until = time.monotonic() + min(timeout_s, self._PAUSE_S)
        xid: Xid | None = _call(self._name, self._source, "wait", timeout_s)
        if xid is not None and xid.uuid in self._added:
            return xid
        time.sleep(max(0.0, until - time.monotonic()))
        return None

    def close(self) -> None:
        """Release what the driver keeps for it."""
        _call(self._name, self._source, "close")


# --- loading ----------------------------------------------------------------------------------


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
        missing = [call for call in _CALLS if not callable(getattr(driver, call, None))]
    except BaseException as error:  # SystemExit names no driver
        reason = f"{named} cannot be loaded: {_described(error)}"
        raise DriverGoneError(UNUSABLE, reason) from error
    if missing:
        raise DriverGoneError(UNUSABLE, f"{named} has no {', '.join(missing)}()")
    return typing.cast("Driver", CheckedDriver(spec.name, driver))


def _create(spec: DriverSpec) -> Driver:
    """Import what creates the driver, and call it with the options."""
    leave_out_untrusted()
    module, _, attribute = spec.target.partition(":")
    create: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    if not callable(create):
        message = f"{spec.target} is a {type(create).__name__}, which cannot be called"
        raise TypeError(message)
    driver: Driver = create(**spec.options)
    return driver
