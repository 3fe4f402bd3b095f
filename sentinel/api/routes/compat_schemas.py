"""Requests and responses of the GPU Management System, converted from and to Sentinel's.

Field names, units and defaults follow its document; there, an MB is 2**20 bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from sentinel.api.bodies import AllocationId, RequestModel
from sentinel.api.history_recorder import HEALTH_ORDER
from sentinel.api.serializers import budget, moment
from sentinel.config.model import SETTINGS, Config
from sentinel.config.sources import MANAGEMENT_SYSTEM
from sentinel.protocol.history_types import Direction, TemperatureTrend
from sentinel.protocol.views import MULTIPLIERS, Allocation, GpuView, is_throttled

MB = 2**20

State = Literal["optimal", "normal", "throttled", "critical", "unavailable"]
Color = Literal["green", "blue", "orange", "red", "gray"]
#: From its dashboard.
_COLORS: dict[State, Color] = {
    "optimal": "green",
    "normal": "blue",
    "throttled": "orange",
    "critical": "red",
    "unavailable": "gray",
}

#: Its defaults: the number of readings, and the seconds between two.
_HISTORY_SIZE, _INTERVAL_S = 200, 3
#: Kept pauses; readings of earlier ones have left the history of these clients.
_MAX_PAUSES = 1000

# In the client's numbers, so that an error has the number that was sent; the settings have the same
# limits with units.
_CELSIUS = Field(default=None, ge=1, le=120, allow_inf_nan=False)
_PERCENT = Field(default=None, gt=0, le=100, allow_inf_nan=False)
_SECONDS = Field(default=None, ge=0.1, le=86400, allow_inf_nan=False)

#: The key without a number if there is no limit.
_LIMIT = "memory_limit_mb"
#: The number of each unit in one of Sentinel's.
_FACTORS = {"": 1.0, "%": 100.0, "MiB": 1 / MB, "s": 1.0}
_FIELDS = {setting.key: setting.field for setting in SETTINGS}
#: The name there of each setting, by its key.
NAMES = {key: name for name, (key, _) in MANAGEMENT_SYSTEM.items()}
_Number = float | None


class Failed(BaseModel):
    """The reason for a failure."""

    success: Literal[False] = False
    error: str


# --- monitoring ------------------------------------------------------------------------------


class Monitoring:
    """Which readings these clients get: how many, how often, and none of the time of a pause.

    It lasts as long as the API process. The daemon reads and yields its GPUs regardless.

    Args:
        now: Returns the time of the monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: The maximum number of readings.
        self.history_size = _HISTORY_SIZE
        #: Seconds between two readings.
        self.interval_s = _INTERVAL_S
        #: Ended pauses, by the monotonic clock.
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_MAX_PAUSES)
        self._stopped_at: float | None = None

    def stop(self) -> None:
        """Include no reading from now on."""
        if self._stopped_at is None:
            self._stopped_at = self._now()

    def start(self) -> None:
        """Include all readings from now on."""
        if self._stopped_at is not None:
            self._pauses.append((self._stopped_at, self._now()))
            self._stopped_at = None

    def includes(self, at: float) -> bool:
        """Check whether a reading at this time, of the monotonic clock, is included."""
        if self._stopped_at is not None and at >= self._stopped_at:
            return False
        return not any(begin <= at < end for begin, end in self._pauses)


# --- requests --------------------------------------------------------------------------------


class AllocateMemory(RequestModel):
    """Allocate memory to the calling process, or to another one of the same user."""

    allocation_id: AllocationId
    required_mb: float = Field(gt=0, le=2**30, allow_inf_nan=False)
    gpu_id: int = Field(default=0, ge=0, le=1023)
    pid: int | None = Field(default=None, gt=0, le=2**31 - 1)


class DeallocateMemory(RequestModel):
    """End an allocation of a GPU: by default of GPU 0, or else the only one of this id."""

    allocation_id: AllocationId
    gpu_id: int | None = Field(default=None, ge=0, le=1023)


def own_id(id_: str, index: int) -> str:
    """Return Sentinel's id of an allocation: there, it is unique over all GPUs."""
    return f"{id_}@{index}" if index else id_


def find_allocation(
    id_: str, views: Iterable[GpuView], allocations: Iterable[Allocation]
) -> Allocation | None:
    """Find an allocation of some GPUs: on the first one, or else the only one of this id.

    It may also have been made by Sentinel's own route, without the number of its GPU.
    """
    found = [
        (view.index, allocation)
        for view in views
        for allocation in allocations
        if allocation.gpu == view.uuid and allocation.id in {id_, own_id(id_, view.index)}
    ]
    is_clear = len(found) == 1 or any(index == 0 for index, _ in found[:1])
    return found[0][1] if is_clear else None


class ConfigChange(RequestModel):
    """New values for some keys; all others are kept."""

    temp_optimal: _Number = _CELSIUS
    temp_normal: _Number = _CELSIUS
    temp_throttle: _Number = _CELSIUS
    temp_critical: _Number = _CELSIUS
    memory_optimal: _Number = _PERCENT
    memory_normal: _Number = _PERCENT
    memory_critical: _Number = _PERCENT
    memory_limit_mb: _Number = Field(default=None, gt=0, allow_inf_nan=False)
    memory_reserve_mb: _Number = Field(default=None, ge=0, allow_inf_nan=False)
    monitor_interval: int | None = Field(default=None, ge=1, le=3600)
    history_size: int | None = Field(default=None, ge=1, le=3600)
    throttle_cooldown_seconds: _Number = _SECONDS
    critical_pause_seconds: _Number = _SECONDS

    @field_validator("*", mode="before")
    @classmethod
    def _check_null(cls, value: object, info: ValidationInfo) -> object:
        """Refuse null for a key that always has a number; defaults are not validated."""
        if value is None and info.field_name != _LIMIT:
            raise ValueError("null is not a number; only memory_limit_mb may be null, no limit")
        return value


def as_settings(change: ConfigChange) -> dict[str, str]:
    """Convert a change into Sentinel's settings."""
    given = change.model_dump(exclude_unset=True)
    return {
        key: "off" if given[name] is None else f"{_format(given[name])}{unit}"
        for name, (key, unit) in MANAGEMENT_SYSTEM.items()
        if name in given
    }


def _format(number: float) -> str:
    """Format a number without an exponent and without binary rounding errors."""
    return f"{Decimal(f'{number:.12g}'):f}"


def list_keys() -> str:
    """List the keys of a configuration, for people."""
    return f"The keys are: {', '.join(ConfigChange.model_fields)}."


# --- responses -------------------------------------------------------------------------------


class ManagedMemory(BaseModel):
    """The memory of a GPU, and its allocations."""

    used_mb: float | None
    total_mb: float
    percent: float | None
    allocation_stats: dict[str, Any]


class Throttling(BaseModel):
    """The required slowdown of work on a GPU."""

    is_throttled: bool
    should_throttle: bool
    speed_multiplier: float


class ManagedGpu(BaseModel):
    """One GPU; null is not known."""

    available: bool
    gpu_id: int
    name: str
    state: State
    state_color: Color
    temperature_celsius: float | None
    temp_trend: Direction
    load_percent: float | None
    memory: ManagedMemory
    thresholds: dict[str, float]
    throttling: Throttling
    timestamp: datetime | None


class Metrics(BaseModel):
    """The last reading of one GPU."""

    timestamp: datetime | None
    gpu_id: int
    gpu_name: str
    load_percent: float | None
    memory_used_mb: float | None
    memory_total_mb: float
    memory_percent: float | None
    temperature_celsius: float | None
    fan_speed_percent: float | None
    power_draw_watts: float | None
    state: State


class Past(BaseModel):
    """One past reading of a GPU."""

    timestamp: datetime
    gpu_id: int
    load_percent: float | None
    memory_percent: float | None
    temperature_celsius: float | None
    state: State


class Temperature(BaseModel):
    """The trend of the temperature."""

    duration_minutes: int
    sample_count: int
    current_temp: float | None
    min_temp: float | None
    max_temp: float | None
    avg_temp: float | None
    trend: str
    is_stable: bool | None


class Configuration(BaseModel):
    """The configuration; without a limit, all memory except the reserve may be allocated."""

    temp_optimal: float
    temp_normal: float
    temp_throttle: float
    temp_critical: float
    memory_optimal: float
    memory_normal: float
    memory_critical: float
    memory_limit_mb: float | None
    memory_reserve_mb: float
    monitor_interval: int
    history_size: int
    throttle_cooldown_seconds: float
    critical_pause_seconds: float


def status(
    view: GpuView, settings: Config, allocations: Iterable[Allocation], trend: Direction
) -> ManagedGpu:
    """Describe one GPU, with the thresholds of the settings."""
    here = [allocation for allocation in allocations if allocation.gpu == view.uuid]
    memory = budget(view, here)
    return ManagedGpu(
        available=view.occupancy != "UNKNOWN",
        gpu_id=view.index,
        name=view.name,
        state=_state(view.health),
        state_color=_COLORS[_state(view.health)],
        temperature_celsius=view.temperature_c,
        temp_trend=trend,
        load_percent=_percent(view.utilization),
        memory=ManagedMemory(
            used_mb=_mb(view.memory_used),
            total_mb=view.memory_total / MB,
            percent=_part(view.memory_used, view.memory_total),
            allocation_stats={
                "total_mb": memory.total / MB,
                "limit_mb": memory.limit / MB,
                "allocated_mb": memory.allocated / MB,
                "available_mb": memory.available / MB,
                "allocation_count": memory.count,
                "allocations": {
                    allocation.id.removesuffix(own_id("", view.index)): allocation.size / MB
                    for allocation in here
                },
            },
        ),
        thresholds={
            name: _number(settings, name) for name in MANAGEMENT_SYSTEM if name.startswith("temp")
        },
        throttling=throttling(view),
        timestamp=moment(view.read),
    )


def throttling(view: GpuView) -> Throttling:
    """Describe the required slowdown of work on a GPU: that of its state, as in its table."""
    multiplier = 0.0 if view.health is None else MULTIPLIERS[view.health]
    throttled = is_throttled(multiplier)
    return Throttling(
        is_throttled=throttled, should_throttle=throttled, speed_multiplier=multiplier
    )


def metrics(view: GpuView) -> Metrics:
    """Describe the last reading of a GPU."""
    telemetry = view.telemetry
    return Metrics(
        timestamp=moment(view.read),
        gpu_id=view.index,
        gpu_name=view.name,
        load_percent=_percent(view.utilization),
        memory_used_mb=_mb(view.memory_used),
        memory_total_mb=view.memory_total / MB,
        memory_percent=_part(view.memory_used, view.memory_total),
        temperature_celsius=view.temperature_c,
        fan_speed_percent=_percent(telemetry.fan_share if telemetry is not None else None),
        power_draw_watts=view.power_w,
        state=_state(view.health),
    )


def past(view: GpuView, row: Mapping[str, Any]) -> Past:
    """Describe a past reading of a GPU, given as a row of the history."""
    degrees, health = row["temperature_c"], row["health"]
    return Past(
        timestamp=datetime.fromtimestamp(row["at"], UTC),
        gpu_id=view.index,
        load_percent=_percent(row["utilization"]),
        memory_percent=_part(row["memory_used"], view.memory_total),
        temperature_celsius=None if degrees is None else round(degrees),
        state=_state(None if health is None else HEALTH_ORDER[health]),
    )


def temperature(fitted: TemperatureTrend) -> Temperature:
    """Describe the trend of a GPU's temperature."""
    is_known = fitted.trend is not Direction.UNKNOWN
    return Temperature(
        duration_minutes=fitted.minutes,
        sample_count=fitted.samples,
        current_temp=fitted.current_c,
        min_temp=fitted.minimum_c,
        max_temp=fitted.maximum_c,
        avg_temp=fitted.average_c,
        trend=fitted.trend.value,
        is_stable=fitted.trend is Direction.STABLE if is_known else None,
    )


def config(settings: Config, monitoring: Monitoring) -> Configuration:
    """Convert settings into a configuration."""
    return Configuration(
        **{name: _number(settings, name) for name in MANAGEMENT_SYSTEM},
        monitor_interval=monitoring.interval_s,
        history_size=monitoring.history_size,
    )


def _number(settings: Config, name: str) -> Any:
    """Convert the value of a setting into the number of a key; None if there is no limit."""
    key, unit = MANAGEMENT_SYSTEM[name]
    value = getattr(settings, _FIELDS[key])
    return None if value is None else value * _FACTORS[unit]


def _state(health: str | None) -> Any:
    """Convert a health into a state; unknown is unavailable."""
    return "unavailable" if health is None else str(health)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _part(some: float | None, total: int) -> float | None:
    return None if some is None or not total else round(100 * some / total, 1)


def _mb(size: int | None) -> float | None:
    return None if size is None else round(size / MB, 1)
