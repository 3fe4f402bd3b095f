"""Build a Config from values as they were given, with errors that name their source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from sentinel.config.gpu_selection import matching
from sentinel.config.model import SETTINGS, Config
from sentinel.config.setting import Setting
from sentinel.errors import ConfigError, raise_error
from sentinel.protocol.commands import GivenOverride, GivenSetting
from sentinel.protocol.gpu import Gpu

T = TypeVar("T")

_BY_KEY = {setting.key: setting for setting in SETTINGS}

#: The keys of settings that must increase in this order.
_ASCENDING = (
    (
        "throttle.temp_normal_from",
        "throttle.temp_throttled_from",
        "throttle.temp_critical_from",
        "throttle.temp_overheating_from",
    ),
    (
        "throttle.memory_normal_from",
        "throttle.memory_throttled_from",
        "throttle.memory_critical_from",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A value as text, and its source, such as ``--poll``."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Override:
    """Values for one GPU."""

    #: The GPU's index, UUID or PCI address.
    selector: str
    source: str
    #: The values by key.
    given: Mapping[str, Given]


def given_values(values: Iterable[GivenSetting]) -> dict[str, Given]:
    """Convert the settings in a message to values by key."""
    return {value.key: Given(text=value.text, source=value.source) for value in values}


def given_overrides(overrides: Iterable[GivenOverride]) -> tuple[Override, ...]:
    """Convert the settings for single GPUs in a message."""
    return tuple(
        Override(selector=one.selector, source=one.source, given=given_values(one.given))
        for one in overrides
    )


def build_config(
    given: Mapping[str, Given],
    overrides: Sequence[Override] = (),
    report: Callable[[ConfigError], None] = raise_error,
) -> Config:
    """Build a Config from the given values and the defaults.

    Args:
        given: Values by key.
        overrides: Values for single GPUs; they are only checked here. See :func:`resolve`.
        report: Called with each value that is not allowed; it is left out.

    Raises:
        ConfigError: A value is not allowed. The message names it, its source and what is allowed.
    """
    for override in overrides:
        _values(override.given, report)
    values = _values(given, report)
    config = replace(Config(), **values)
    return _checked(config, given, report) if len(values) == len(given) else config


def resolve(
    config: Config, overrides: Sequence[Override], gpus: tuple[Gpu, ...]
) -> tuple[Config, tuple[Override, ...]]:
    """Add the values for single GPUs to a Config; return it and the overrides that match no GPU.

    A later override wins over an earlier one. An override without a GPU is no error: a card that
    fell off the bus must not stop the others.

    Raises:
        ConfigError: An override matches several GPUs, or contradicts other values.
    """
    each: dict[str, Config] = {}
    unused = []
    for override in overrides:
        named = matching(override.selector, gpus)
        if len(named) > 1:
            raise ConfigError(f"{override.source}: {override.selector!r} matches several GPUs")
        if not named:
            unused.append(override)
        for gpu in named:
            each[gpu.uuid] = lay_over(each.get(gpu.uuid, config), override.given)
    return replace(config, each=each, lasting=each), tuple(unused)


def lay_over(config: Config, given: Mapping[str, Given]) -> Config:
    """Return the configuration of one GPU with these values in place of its own.

    Raises:
        ConfigError: A value is not allowed, or contradicts another one.
    """
    own = replace(config, each={}, lasting={}, **_values(given, raise_error))
    return _checked(own, given, raise_error)


def parse_given(parse: Callable[[str], T], given: Given) -> T:
    """Parse the text of one value.

    Raises:
        ConfigError: The text is not allowed. The message names its source and what is allowed.
    """
    try:
        return parse(given.text)
    except ValueError as error:
        raise ConfigError(f"{given.source}: {error}") from error


def _checked(
    config: Config, given: Mapping[str, Given], report: Callable[[ConfigError], None]
) -> Config:
    """Check that thresholds are in ascending order; report the source of those that are not."""
    for keys in _ASCENDING:
        for low, high in pairwise(keys):
            lower, higher = (getattr(config, _BY_KEY[key].field) for key in (low, high))
            if lower < higher:
                continue
            sources = [given[key].source for key in (low, high) if key in given]
            where = f"{', '.join(sources)}: " if sources else ""
            text = f"{where}{low} is {lower:g} and {high} is {higher:g}"
            report(ConfigError(text, f"{low} must be below {high}"))
    return config


def _values(given: Mapping[str, Given], report: Callable[[ConfigError], None]) -> dict[str, Any]:
    """Parse values by key; return those that are allowed by the field of Config."""
    values = {}
    for key, value in given.items():
        if key not in _BY_KEY:
            report(ConfigError(f"{value.source}: there is no setting {key!r}"))
            continue
        try:
            values[_BY_KEY[key].field] = _parse(_BY_KEY[key], value)
        except ConfigError as error:
            report(error)
    return values


def _parse(setting: Setting, given: Given) -> Any:
    """Parse the value of one setting and check its limits; None, for ``off``, has no limits."""
    form = setting.form
    value = parse_given(form.parse, given)
    if value is None or form.least is None or form.most is None:
        return value
    if not form.parse(form.least) <= value <= form.parse(form.most):
        allowed = f"allowed is from {form.least} to {form.most}"
        raise ConfigError(f"{given.source}: {given.text!r} is out of range", allowed)
    return value
