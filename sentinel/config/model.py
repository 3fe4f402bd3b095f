"""One frozen Config, built from what was given; an error says what was wrong and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from itertools import pairwise
from typing import Any, Self, TypeVar

from sentinel.config.gpu_selection import matching
from sentinel.config.ignore_rules import Ignored
from sentinel.config.schedule import Duty, Hours
from sentinel.config.settings import SETTINGS
from sentinel.config.settings.setting import Setting
from sentinel.errors import ConfigError
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import MemoryTarget

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Given:
    """A value as it was given, and where: ``--poll``, say."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Override:
    """Values that hold for one GPU only, named by index, UUID or PCI address, and where from."""

    selector: str
    source: str
    given: Mapping[str, Given]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that can be set. Seconds, bytes and watts throughout.

    ``dry_run`` is to decide and never start, ``drained`` to begin as after a word to hold nothing,
    ``explain`` to say whenever another rule decides.
    ``each`` has what holds for single GPUs, by UUID; :meth:`of` is the way to it.
    """

    gpus: tuple[str, ...] = ()
    memory: MemoryTarget = field(default_factory=lambda: MemoryTarget(share=0.88))
    chunk: int = 512 * 2**20
    reserve: int = 0
    workload: str = "gemm"
    goldens: str | None = None
    util: float | None = None
    util_tolerance: float = 0.01
    util_every: float = 1.0
    util_samples: int = 5
    power: float | None = None
    duty: Duty | None = None
    poll: float = 1.0
    watch_interval: float = 0.025
    rearm: float = 5.0
    rearm_longest: float = 600.0
    yield_to: str = "all"
    ignore: tuple[Ignored, ...] = ()
    yield_how: str = "kill"
    yield_grace: float = 2.0
    idle_memory: int | None = None
    idle_utilization: float | None = None
    idle_wait: float = 0.0
    idle_gate: str = "each"
    throttle: str = "on"
    temp_optimal: float = 65.0
    temp_normal: float = 75.0
    temp_throttle: float = 85.0
    temp_critical: float = 90.0
    memory_optimal: float = 0.70
    memory_normal: float = 0.85
    memory_critical: float = 0.95
    hysteresis: float = 2.0
    cooldown: float = 30.0
    critical_pause: float = 60.0
    budget_limit: int | None = None
    budget_reserve: int = 512 * 2**20
    max_gpus: int | None = None
    leave_idle: int = 0
    starts_per_second: float | None = None
    start_timeout: float = 180.0
    hang_after: float = 30.0
    stale_after: float = 5.0
    grace: float = 5.0
    status_every: float = 60.0
    quiet: tuple[Hours, ...] = ()
    run_for: float | None = None
    until: datetime | time | None = None
    tcp: str | None = None
    metrics: str | None = None
    socket_group: str | None = None
    history_size: int | None = 256 * 2**20
    dry_run: bool = False
    drained: bool = False
    explain: bool = False
    each: Mapping[str, Self] = field(default_factory=dict)

    def of(self, uuid: str) -> Self:
        """Return what holds for one GPU."""
        return self.each.get(uuid, self)


def build_config(given: Mapping[str, Given], overrides: Sequence[Override] = ()) -> Config:
    """Return the Config with the given values in it; the rest stays at its default.

    Args:
        given: Values by the keys of SETTINGS.
        overrides: Values for single GPUs, which are only checked here; see :func:`resolve`.

    Raises:
        ConfigError: A value is not allowed; the message names it, its source and what is.
    """
    for override in overrides:
        _values(override.given)
    return _checked(replace(Config(), **_values(given)), given)


def resolve(
    config: Config, overrides: Sequence[Override], gpus: tuple[Gpu, ...]
) -> tuple[Config, tuple[Override, ...]]:
    """Return the Config with what holds for each GPU in it, and the overrides that name none.

    A later override wins over an earlier one. One that names no GPU is no error: a card that fell
    off the bus must not keep the others from being cared for.

    Raises:
        ConfigError: An override names more than one GPU, or makes no sense with the rest.
    """
    each: dict[str, Config] = {}
    unused = []
    for override in overrides:
        named = matching(override.selector, gpus)
        if len(named) > 1:
            raise ConfigError(f"{override.source}: {override.selector!r} means more than one GPU")
        unused += [] if named else [override]
        for gpu in named:
            own = replace(each.get(gpu.uuid, config), **_values(override.given))
            each[gpu.uuid] = _checked(own, override.given)
    return replace(config, each=each), tuple(unused)


#: Settings that must rise in this order, by their keys and fields.
_RISING = (
    (
        ("throttle.temp_optimal", "temp_optimal"),
        ("throttle.temp_normal", "temp_normal"),
        ("throttle.temp_throttle", "temp_throttle"),
        ("throttle.temp_critical", "temp_critical"),
    ),
    (
        ("throttle.memory_optimal", "memory_optimal"),
        ("throttle.memory_normal", "memory_normal"),
        ("throttle.memory_critical", "memory_critical"),
    ),
)


def _checked(config: Config, given: Mapping[str, Given]) -> Config:
    """Return a Config of which the values make sense together.

    Raises:
        ConfigError: Two thresholds are in the wrong order; the message names those that were given.
    """
    for rising in _RISING:
        for (low, low_field), (high, high_field) in pairwise(rising):
            least, most = getattr(config, low_field), getattr(config, high_field)
            if least < most:
                continue
            sources = [given[key].source for key in (low, high) if key in given]
            where = f"{', '.join(sources)}: " if sources else ""
            text = f"{where}{low} is {least:g} and {high} is {most:g}"
            raise ConfigError(text, f"{low} must be below {high}")
    return config


def parse_given(parse: Callable[[str], T], given: Given) -> T:
    """Return the value of ``given``.

    Raises:
        ConfigError: It cannot be parsed; the message names its source and what is allowed.
    """
    try:
        return parse(given.text)
    except ValueError as error:
        raise ConfigError(f"{given.source}: {error}") from error


def _values(given: Mapping[str, Given]) -> dict[str, Any]:
    """Return what was given, by the names of the fields of Config."""
    settings = {setting.key: setting for setting in SETTINGS}
    for key, value in given.items():
        if key not in settings:
            raise ConfigError(f"{value.source}: there is no setting {key!r}")
    return {settings[key].field: _parse(settings[key], value) for key, value in given.items()}


def _parse(setting: Setting, given: Given) -> Any:
    """Return the value of one setting, within its bounds."""
    value = parse_given(setting.parse, given)
    least = setting.parse(setting.least) if setting.least else None
    most = setting.parse(setting.most) if setting.most else None
    if value is None:  # off, which has no bounds
        return None
    if (least is not None and value < least) or (most is not None and value > most):
        allowed = f"allowed is from {setting.least} to {setting.most}"
        raise ConfigError(f"{given.source}: {given.text!r} is out of range", allowed)
    return value
