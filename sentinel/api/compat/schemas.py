"""What the GPU Management System's clients send and get, made of what is shown here.

Its field names, units and defaults are those of its document; MB are 2**20 bytes, as it has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, Field

from sentinel.api.compat.readings import PastReading
from sentinel.api.history.trend import Trend
from sentinel.api.requests import Name, RequestModel
from sentinel.api.state.memory_budget import budget
from sentinel.config.model import Config
from sentinel.protocol.views import Allocation, GpuView

MB = 2**20
#: A trend within so many degrees is stable, as its document has it.
_STABLE = 5.0
#: A GPU is throttled in these.
_THROTTLED = {"throttled", "critical"}

State = Literal["optimal", "normal", "throttled", "critical", "unavailable"]


class Failed(BaseModel):
    """Why something was not done."""

    success: Literal[False] = False
    error: str


# --- what clients send -----------------------------------------------------------------------


class AllocateMemory(RequestModel):
    """Have memory kept for the process that asks, or for another one of the same user."""

    allocation_id: Name
    required_mb: float = Field(gt=0, le=2**30, allow_inf_nan=False)
    gpu_id: int = Field(default=0, ge=0, le=1023)
    pid: int | None = Field(default=None, gt=0, le=2**31 - 1)


class DeallocateMemory(RequestModel):
    """Give memory back; ids are unique on all GPUs, so which GPU it is need not be said."""

    allocation_id: Name
    gpu_id: int | None = Field(default=None, ge=0, le=1023)


_Number = float | None
_ANY = Field(default=None, allow_inf_nan=False)


class ConfigChange(RequestModel):
    """New values for some keys; all others stay."""

    temp_optimal: _Number = _ANY
    temp_normal: _Number = _ANY
    temp_throttle: _Number = _ANY
    temp_critical: _Number = _ANY
    memory_optimal: _Number = _ANY
    memory_normal: _Number = _ANY
    memory_critical: _Number = _ANY
    memory_limit_mb: _Number = _ANY
    memory_reserve_mb: _Number = _ANY
    monitor_interval: _Number = _ANY
    history_size: int | None = Field(default=None, ge=1, le=3600)
    throttle_cooldown_seconds: _Number = _ANY
    critical_pause_seconds: _Number = _ANY


#: By which setting each key is one of ours, and how its number is written there.
_SETTINGS = {
    "temp_optimal": ("throttle.temp_optimal", "{}"),
    "temp_normal": ("throttle.temp_normal", "{}"),
    "temp_throttle": ("throttle.temp_throttle", "{}"),
    "temp_critical": ("throttle.temp_critical", "{}"),
    "memory_optimal": ("throttle.memory_optimal", "{}%"),
    "memory_normal": ("throttle.memory_normal", "{}%"),
    "memory_critical": ("throttle.memory_critical", "{}%"),
    "memory_limit_mb": ("budget.limit", "{}MiB"),
    "memory_reserve_mb": ("budget.reserve", "{}MiB"),
    "monitor_interval": ("poll", "{}s"),
    "throttle_cooldown_seconds": ("throttle.cooldown", "{}s"),
    "critical_pause_seconds": ("throttle.critical_pause", "{}s"),
}


def as_settings(change: ConfigChange) -> dict[str, str]:
    """Return what is to change as settings of ours."""
    given = change.model_dump(exclude_none=True)
    return {
        key: form.format(_written(given[name]))
        for name, (key, form) in _SETTINGS.items()
        if name in given
    }


def _written(number: float) -> str:
    """Return a number as people write it: without an exponent, and without what floats add."""
    return f"{Decimal(f'{number:.12g}'):f}"


def failed_keys() -> str:
    """Return which keys a configuration has, for people."""
    return f"There are: {', '.join(ConfigChange.model_fields)}."


# --- what they get ---------------------------------------------------------------------------


class ManagedMemory(BaseModel):
    """The memory of a GPU, and what is promised of it."""

    used_mb: float | None
    total_mb: float
    percent: float | None
    allocation_stats: dict[str, Any]


class Throttling(BaseModel):
    """How far work on a GPU is to be slowed down."""

    is_throttled: bool
    should_throttle: bool
    speed_multiplier: float


class ManagedGpu(BaseModel):
    """One GPU; null is what nobody could read."""

    available: bool
    gpu_id: int
    name: str
    state: State
    temperature_celsius: float | None
    load_percent: float | None
    memory: ManagedMemory
    thresholds: dict[str, float]
    throttling: Throttling
    timestamp: datetime | None


class Metrics(BaseModel):
    """What was read of one GPU last."""

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
    """What was read of a GPU once."""

    timestamp: datetime
    gpu_id: int
    load_percent: float | None
    memory_percent: float | None
    temperature_celsius: float | None
    state: State


class Temperature(BaseModel):
    """How the temperature went."""

    duration_minutes: int
    sample_count: int
    current_temp: float | None
    min_temp: float | None
    max_temp: float | None
    avg_temp: float | None
    trend: str
    is_stable: bool | None


class Configuration(BaseModel):
    """The configuration; without a limit, all of the memory but the reserve may be promised."""

    temp_optimal: float
    temp_normal: float
    temp_throttle: float
    temp_critical: float
    memory_optimal: float
    memory_normal: float
    memory_critical: float
    memory_limit_mb: float | None
    memory_reserve_mb: float
    monitor_interval: float
    history_size: int
    throttle_cooldown_seconds: float
    critical_pause_seconds: float


def status(view: GpuView, held: Config, allocations: Iterable[Allocation]) -> ManagedGpu:
    """Return one GPU; its thresholds are those of ``held``."""
    here = [one for one in allocations if one.gpu == view.uuid]
    left = budget(view, here)
    thresholds = ("temp_optimal", "temp_normal", "temp_throttle", "temp_critical")
    return ManagedGpu(
        available=view.occupancy != "UNKNOWN",
        gpu_id=view.index,
        name=view.name,
        state=_state(view.health),
        temperature_celsius=view.temperature_c,
        load_percent=_percent(view.utilization),
        memory=ManagedMemory(
            used_mb=_mb(view.memory_used),
            total_mb=view.memory_total / MB,
            percent=_part(view.memory_used, view.memory_total),
            allocation_stats={
                "total_mb": left.total / MB,
                "limit_mb": left.limit / MB,
                "allocated_mb": left.allocated / MB,
                "available_mb": left.available / MB,
                "allocation_count": left.count,
                "allocations": {one.id: one.size / MB for one in here},
            },
        ),
        thresholds={name: getattr(held, name) for name in thresholds},
        throttling=throttling(view),
        timestamp=_moment(view.read),
    )


def throttling(view: GpuView) -> Throttling:
    """Return how far work on a GPU is to be slowed down."""
    throttled = _state(view.health) in _THROTTLED
    return Throttling(
        is_throttled=throttled, should_throttle=throttled, speed_multiplier=view.multiplier
    )


def metrics(view: GpuView) -> Metrics:
    """Return what was read of a GPU last."""
    told = view.telemetry
    return Metrics(
        timestamp=_moment(view.read),
        gpu_id=view.index,
        gpu_name=view.name,
        load_percent=_percent(view.utilization),
        memory_used_mb=_mb(view.memory_used),
        memory_total_mb=view.memory_total / MB,
        memory_percent=_part(view.memory_used, view.memory_total),
        temperature_celsius=view.temperature_c,
        fan_speed_percent=_percent(told.fan_share if told is not None else None),
        power_draw_watts=view.power_w,
        state=_state(view.health),
    )


def past(view: GpuView, reading: PastReading) -> Past:
    """Return what was read of a GPU once."""
    return Past(
        timestamp=datetime.fromtimestamp(reading.at, UTC),
        gpu_id=view.index,
        load_percent=_percent(reading.utilization),
        memory_percent=_part(reading.memory_used, view.memory_total),
        temperature_celsius=reading.temperature_c,
        state=_state(reading.health),
    )


def temperature(minutes: int, trend: Trend) -> Temperature:
    """Return how the temperature of a GPU went."""
    known = trend.maximum is not None and trend.minimum is not None
    return Temperature(
        duration_minutes=minutes,
        sample_count=trend.samples,
        current_temp=trend.current,
        min_temp=trend.minimum,
        max_temp=trend.maximum,
        avg_temp=trend.average,
        trend=trend.direction.value,
        is_stable=(trend.maximum or 0) - (trend.minimum or 0) < _STABLE if known else None,
    )


def config(held: Config, history_size: int) -> Configuration:
    """Return the settings that hold, as a configuration."""
    limit = held.budget_limit
    return Configuration(
        temp_optimal=held.temp_optimal,
        temp_normal=held.temp_normal,
        temp_throttle=held.temp_throttle,
        temp_critical=held.temp_critical,
        memory_optimal=100 * held.memory_optimal,
        memory_normal=100 * held.memory_normal,
        memory_critical=100 * held.memory_critical,
        memory_limit_mb=None if limit is None else limit / MB,
        memory_reserve_mb=held.budget_reserve / MB,
        monitor_interval=held.poll,
        history_size=history_size,
        throttle_cooldown_seconds=held.cooldown,
        critical_pause_seconds=held.critical_pause,
    )


def _state(health: str | None) -> Any:
    """Return a state; what nobody knows is none of the good ones."""
    return "unavailable" if health is None else str(health)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _part(some: int | None, total: int) -> float | None:
    return None if some is None or not total else round(100 * some / total, 1)


def _mb(size: int | None) -> float | None:
    return None if size is None else round(size / MB, 1)


def _moment(at: float | None) -> datetime | None:
    """Return a time of the monotonic clock as a date."""
    if at is None:
        return None
    return datetime.fromtimestamp(time.time() - (time.monotonic() - at), UTC)
