"""What the daemon answers, as frozen values; each is read field by field from its JSON.

Ages and spans are in seconds and say so by ``_s``, moments are datetimes with their offset, sizes
are bytes, rates are per second, shares are of 1. ``None`` is not known. Fields that are not known
here are passed over: a newer daemon may say more.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from sentinel.errors import ServiceError
from sentinel.protocol.telemetry import Telemetry

T = TypeVar("T")
_Reader = Callable[[Any, str], Any]

#: The shape of answers that is understood here.
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of somebody else on a GPU."""

    pid: int
    name: str | None = None
    user: str | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class Handover:
    """The last time that a GPU was given to somebody: how long ago, and how long each step took.

    All but ``ago_s`` are seconds from the first sign of the newcomer. ``kill`` is ``None`` where
    our stressor was asked to end, ``memory_back`` where the newcomer's memory took its place at
    once.
    """

    ago_s: float
    evidence: str
    exit: float
    kill: float | None = None
    memory_back: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuTelemetry(Telemetry):
    """What a GPU told of itself ``age_s`` seconds ago."""

    at: float = 0.0
    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GpuStatus:
    """One GPU. ``occupancy``, ``stressor`` and ``admin`` are the names of states.

    ``health`` is optimal, normal, throttled or critical, and ``multiplier`` the share of its
    speed that it leaves to whoever works there; ``memory_foreign`` is what is used and not our
    stressor's, ``budget`` how much memory may be promised in all, ``guests`` are processes of those
    to whom some was promised.

    ``since_s`` is how long ``stressor`` has been what it is, ``read_s`` how long ago the GPU was
    read, ``until_s`` in how long its pause or reservation ends. ``held`` is our memory on it.
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_total: int
    occupancy: str
    stressor: str
    admin: str
    rule: str
    reason: str
    findings: int = 0
    since_s: float | None = None
    read_s: float | None = None
    until_s: float | None = None
    reservation: str | None = None
    processes: tuple[Process, ...] = ()
    pid: int | None = None
    memory_used: int | None = None
    held: int | None = None
    utilization: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    workload: str | None = None
    note: str | None = None
    share: float | None = None
    iterations_per_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    checks: int | None = None
    errors: int | None = None
    handover: Handover | None = None
    last_finding: str | None = None
    health: str | None = None
    health_since_s: float | None = None
    multiplier: float = 1.0
    memory_foreign: int | None = None
    budget: int = 0
    allocated_processes: tuple[Process, ...] = ()
    yields: int = 0
    starts: int = 0
    telemetry: GpuTelemetry | None = None

    @property
    def occupied(self) -> bool:
        """Whether a stressor of ours holds its memory and works."""
        return self.stressor.upper() == "RUNNING"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who made a reservation, as far as the way by which it was asked for tells."""

    uid: int | None = None
    pid: int | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReservationInfo:
    """GPUs, by UUID, that are kept free for somebody.

    ``until`` is when it ends by itself; ``bound``: it ends with the process of its holder.
    """

    id: str
    gpus: tuple[str, ...]
    reason: str
    since: datetime
    indices: tuple[int, ...] = ()
    until: datetime | None = None
    bound: bool = False
    holder: Holder = field(default_factory=Holder)


@dataclass(frozen=True, kw_only=True)
class AllocationInfo:
    """Memory of a GPU, in bytes, that was promised to its holder and the children of that."""

    id: str
    gpu: str
    size: int
    since: datetime
    index: int | None = None
    holder: Holder = field(default_factory=Holder)


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """How much of a GPU's memory may be allocated in all (``limit``), is, and may be yet; bytes."""

    gpu: str
    index: int
    total: int
    limit: int
    allocated: int
    available: int
    count: int


@dataclass(frozen=True, kw_only=True)
class DaemonInfo:
    """The daemon as a whole; ``age_s`` is how old is what it shows, ``ending`` why it ends.

    ``tcp`` is the address that it listens on besides its socket, ``token`` the file with the secret
    for that, and ``host`` the name of its host.
    """

    pid: int
    version: str
    phase: str
    since: datetime
    driver: str
    simulated: bool
    workload: str
    socket: str
    log: str | None = None
    host: str | None = None
    tcp: str | None = None
    token: str | None = None
    age_s: float | None = None
    ending: str | None = None


@dataclass(frozen=True, kw_only=True)
class Status:
    """Everything that the daemon shows; ``json`` is the same as it came, with what is new in it."""

    daemon: DaemonInfo
    gpus: tuple[GpuStatus, ...]
    reservations: tuple[ReservationInfo, ...] = ()
    allocations: tuple[AllocationInfo, ...] = ()
    json: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a request, in a sentence, and the UUIDs of the GPUs that it was about."""

    text: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EventInfo:
    """One event: ``fields`` is its JSON object; ``id`` counts them and continues a stream."""

    id: int | None
    name: str
    fields: Mapping[str, Any]


# --- reading ---------------------------------------------------------------------------------


def read(kind: type[T], value: Any, where: str) -> T:
    """Return the ``kind`` that a JSON value says; ``where`` names it in an error.

    Raises:
        ServiceError: A field is missing or is not what it must be.
    """
    known: Any = kind  # type[T] alone is not known to be hashable
    return typing.cast("T", _reader(known)(value, where))


def read_list(kind: type[T], value: Any, where: str) -> tuple[T, ...]:
    """Return the ``kind``s in a JSON list.

    Raises:
        ServiceError: It is no list, or one of them is not what it must be.
    """
    known: Any = kind
    return typing.cast("tuple[T, ...]", _list(_reader(known))(value, where))


@cache
def _reader(kind: Any) -> _Reader:
    """Return what makes a ``kind``, which may be nested, of a JSON value and its name."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return _optional(_reader(arguments[0]))
    if origin is tuple:
        return _list(_reader(arguments[0]))
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    if kind is datetime:
        return _moment
    return _number if kind is float else _exactly(kind)


def _wrong(where: str, wanted: str) -> ServiceError:
    return ServiceError(
        f"the daemon's answer makes no sense: {where} is not {wanted}",
        "Client and daemon may be of different versions: sentinel --version; sentinel status",
    )


def _optional(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _list(reader: _Reader) -> _Reader:
    def read_items(value: Any, where: str) -> Any:
        if type(value) is not list:
            raise _wrong(where, "a list")
        return tuple(reader(item, f"{where}[{number}]") for number, item in enumerate(value))

    return read_items


def _record(kind: Any) -> _Reader:
    hints = typing.get_type_hints(kind)
    wanted = {
        one.name: (
            _reader(hints[one.name]),
            one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING,
        )
        for one in dataclasses.fields(kind)
        if one.name != "json"
    }

    def read_record(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _wrong(where, "an object")
        given = {}
        for name, (reader, needed) in wanted.items():
            if name in value:
                given[name] = reader(value[name], f"{where}.{name}")
            elif needed:
                raise _wrong(f"{where}.{name}", "there")
        return kind(**given)

    return read_record


def _moment(value: Any, where: str) -> datetime:
    """Return a moment with its offset; one without could be anywhere in a day."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _wrong(where, "a moment") from None
    if moment.tzinfo is None:
        raise _wrong(where, "a moment with its offset")
    return moment


def _number(value: Any, where: str) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):
        raise _wrong(where, "a number")
    return float(value)


def _exactly(kind: type) -> _Reader:
    names = {int: "a whole number", str: "text", bool: "true or false"}

    def read_exactly(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _wrong(where, names[kind])
        return value

    return read_exactly
