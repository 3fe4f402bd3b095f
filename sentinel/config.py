"""One frozen Config and the table of its settings: keys, flags, what is allowed, and why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sentinel.errors import ConfigError
from sentinel.messages import MemoryTarget
from sentinel.units import parse_duration, parse_memory, parse_size

T = TypeVar("T")

__all__ = ["SETTINGS", "Config", "Given", "Setting", "build_config", "parse_given"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that can be set. Seconds and bytes throughout."""

    memory: MemoryTarget = field(default_factory=lambda: MemoryTarget(share=0.88))
    chunk: int = 512 * 2**20
    workload: str = "elementwise"
    poll: float = 1.0
    watch_interval: float = 0.025
    rearm: float = 5.0
    start_timeout: float = 180.0
    hang_after: float = 30.0
    stale_after: float = 5.0
    grace: float = 5.0
    status_every: float = 60.0
    run_for: float | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of Config as a person sets it.

    ``parse`` raises ValueError with a message that says what is allowed; ``least`` and ``most``
    bound numbers and are written the way a person would.
    """

    key: str
    flag: str
    metavar: str
    default: str
    help: str
    parse: Callable[[str], Any]
    least: str | None = None
    most: str | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """A value as it was given, and where: ``--poll``, say."""

    text: str
    source: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="memory",
        flag="--memory",
        metavar="SHARE|SIZE",
        default="88%",
        help="How much to hold on each GPU: a share of its free memory, or a size such as 20GiB.",
        parse=parse_memory,
    ),
    Setting(
        key="chunk",
        flag="--chunk",
        metavar="SIZE",
        default="512MiB",
        help="Take the memory in pieces of this size.",
        parse=parse_size,
        least="2MiB",
        most="16GiB",
    ),
    Setting(
        key="workload",
        flag="--workload",
        metavar="NAME[:key=value,...]",
        default="elementwise",
        help="What to do with the memory: elementwise, gemm, hold, one of yours, module:attribute.",
        parse=str,
    ),
    Setting(
        key="rearm",
        flag="--rearm",
        metavar="TIME",
        default="5s",
        help="Leave a GPU alone until the last foreign process has been gone for so long (+-50 %).",
        parse=parse_duration,
        least="100ms",
        most="7d",
    ),
    Setting(
        key="poll",
        flag="--poll",
        metavar="TIME",
        default="1s",
        help="Read every GPU fully this often.",
        parse=parse_duration,
        least="100ms",
        most="2s",
    ),
    Setting(
        key="watch_interval",
        flag="--watch-interval",
        metavar="TIME",
        default="25ms",
        help="Read a GPU that we hold this often.",
        parse=parse_duration,
        least="2ms",
        most="40ms",
    ),
    Setting(
        key="start_timeout",
        flag="--start-timeout",
        metavar="TIME",
        default="180s",
        help="A stressor that is not ready after so long has failed.",
        parse=parse_duration,
        least="1s",
        most="1h",
    ),
    Setting(
        key="hang_after",
        flag="--hang-after",
        metavar="TIME",
        default="30s",
        help="A stressor without progress for so long has failed.",
        parse=parse_duration,
        least="3s",
        most="1h",
    ),
    Setting(
        key="grace",
        flag="--grace",
        metavar="TIME",
        default="5s",
        help="At an ordinary stop, kill what has not ended by itself after so long.",
        parse=parse_duration,
        least="100ms",
        most="5m",
    ),
    Setting(
        key="status_every",
        flag="--status-every",
        metavar="TIME",
        default="1m",
        help="Say each GPU's state and rate this often.",
        parse=parse_duration,
        least="1s",
        most="1d",
    ),
    Setting(
        key="run_for",
        flag="--for",
        metavar="TIME",
        default="",
        help="End after so long; without it, run until stopped.",
        parse=parse_duration,
    ),
)


def build_config(given: Mapping[str, Given]) -> Config:
    """Return the Config with the given values in it; the rest stays at its default.

    Raises:
        ConfigError: A value is not allowed; the message names it, its source and what is.
    """
    settings = {setting.key: setting for setting in SETTINGS}
    values = {key: _parse(settings[key], value) for key, value in given.items()}
    return replace(Config(), **values)


def parse_given(parse: Callable[[str], T], given: Given) -> T:
    """Return the value of ``given``.

    Raises:
        ConfigError: It cannot be parsed; the message names its source and what is allowed.
    """
    try:
        return parse(given.text)
    except ValueError as error:
        raise ConfigError(f"{given.source}: {error}") from error


def _parse(setting: Setting, given: Given) -> Any:
    """Return the value of one setting, within its bounds."""
    value = parse_given(setting.parse, given)
    least = setting.parse(setting.least) if setting.least else None
    most = setting.parse(setting.most) if setting.most else None
    if (least is not None and value < least) or (most is not None and value > most):
        allowed = f"allowed is from {setting.least} to {setting.most}"
        raise ConfigError(f"{given.source}: {given.text!r} is out of range", allowed)
    return value
