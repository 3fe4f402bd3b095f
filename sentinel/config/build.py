"""Build a Config from values as they were given, with errors that name their source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, TypeVar

from sentinel.config.gpu_selection import present
from sentinel.config.model import SETTINGS, Config
from sentinel.config.schedule import is_ever_open, parse_hours
from sentinel.config.setting import Setting
from sentinel.errors import ConfigError, raise_error
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu

T = TypeVar("T")

_BY_KEY = {setting.key: setting for setting in SETTINGS}

#: The keys of the targets of a load, and the workload that computes nothing.
LOAD = ("util.target", "power", "duty")
_WITHOUT_LOAD = "hold"

#: A zero with or without a unit, which some settings do not allow.
_ZERO = re.compile(r"0+(?:\.0+)?[A-Za-z%°]*")
#: A share that may be above 100 % or below 0.
_PERCENT = re.compile(r"-?\d+(?:\.\d+)?\s*%", re.ASCII)

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


def combine(*layers: Iterable[Given]) -> tuple[Given, ...]:
    """Combine layers of given values, of which later ones win.

    Returns:
        Each key once for all GPUs; then those for single GPUs.
    """
    values = [value for layer in layers for value in layer]
    common = {value.key: value for value in values if value.gpu is None}
    return (*common.values(), *(value for value in values if value.gpu is not None))


def build_config(
    given: Iterable[Given], report: Callable[[ConfigError], None] = raise_error
) -> Config:
    """Build a Config from the given values and the defaults.

    Args:
        given: All values; of one key for all GPUs, the last one counts. Those for single GPUs are
            only checked here. See :func:`resolve`.
        report: Called with each value that is not allowed; it is left out.

    Raises:
        ConfigError: A value is not allowed. The message names it, its source and what is allowed.
    """
    values = tuple(given)
    _values((value for value in values if value.gpu is not None), report)
    common = {value.key: value for value in values if value.gpu is None}
    parsed = _values(common.values(), report)
    config = replace(Config(), **parsed)
    return _checked(config, common.values(), report) if len(parsed) == len(common) else config


def without_effect(given: Iterable[Given]) -> tuple[str, ...]:
    """Describe each setting to which others leave no effect: targets of a load, and hours.

    A workload of all GPUs, or of a single one, may have no load; quiet hours may cover all others.

    Args:
        given: Values as for :func:`build_config`; those of one selector are taken together.
    """
    found, values = [], tuple(given)
    common = {value.key: value for value in values if value.gpu is None}
    for gpu in dict.fromkeys(value.gpu for value in values):
        own = {value.key: value for value in values if value.gpu == gpu}
        all_ = {**common, **own}
        if "workload" not in all_ or all_["workload"].text.strip() != _WITHOUT_LOAD:
            continue
        targets = [all_[key] for key in LOAD if key in all_ and {key, "workload"} & own.keys()]
        found += [
            f"{target.source}: no effect with the workload {_WITHOUT_LOAD}, which has no load"
            for target in targets
            if target.text
        ]
    hours, quiet = common.get("hours"), common.get("quiet")
    if quiet is not None and quiet.text:
        only = parse_hours(hours.text) if hours is not None and hours.text else ()
        if not is_ever_open(parse_hours(quiet.text), only):
            found.append(f"{quiet.source}: no GPU is ever occupied: these hours cover all others")
    return tuple(dict.fromkeys(found))


def resolve(
    config: Config, given: Iterable[Given], gpus: tuple[Gpu, ...]
) -> tuple[Config, tuple[Given, ...]]:
    """Add the values for single GPUs to a Config; return it and the values that match no GPU.

    Later values win over earlier ones; successive values of one selector are applied together. A
    selector without a GPU is no error: a card that fell off the bus must not stop the others.

    Raises:
        ConfigError: A selector is malformed or matches several GPUs, or values contradict each
            other.
    """
    each: dict[str, Config] = {}
    unused: list[Given] = []
    single = (value for value in given if value.gpu is not None)
    for selector, group in groupby(single, key=lambda value: value.gpu or ""):
        values = tuple(group)
        named = parse_given(lambda text: present(text, gpus), selector, values[0].source)
        unused += () if named else values
        for gpu in named:
            each[gpu.uuid] = lay_over(each.get(gpu.uuid, config), values)
    return replace(config, each=each, lasting=each), tuple(unused)


def lay_over(config: Config, given: Sequence[Given]) -> Config:
    """Return the configuration of one GPU with these values in place of its own.

    Raises:
        ConfigError: A value is not allowed, or contradicts another one.
    """
    own = replace(config, each={}, lasting={}, **_values(given, raise_error))
    return _checked(own, given, raise_error)


def parse_given(parse: Callable[[str], T], text: str, source: str) -> T:
    """Parse the text of one value.

    Raises:
        ConfigError: The text is not allowed. The message names its source and what is allowed.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def _checked(
    config: Config, given: Iterable[Given], report: Callable[[ConfigError], None]
) -> Config:
    """Report thresholds that are not in ascending order, and an address that is given twice."""
    sources = {value.key: value.source for value in given}
    for keys in _ASCENDING:
        for low, high in pairwise(keys):
            lower, higher = (getattr(config, _BY_KEY[key].field) for key in (low, high))
            if lower < higher:
                continue
            where = ", ".join(sources[key] for key in (low, high) if key in sources)
            # Of one form, so in one unit: a share is written in percent.
            factor, unit = (100, "%") if _BY_KEY[low].default.endswith("%") else (1, "")
            text = f"{low} is {factor * lower:g}{unit} and {high} is {factor * higher:g}{unit}"
            text = f"{where}: {text}" if where else text
            report(ConfigError(text, f"{low} must be below {high}"))
    if config.tcp is not None and config.tcp == config.metrics and not config.tcp.endswith(":0"):
        text = f"{sources['metrics.address']}: {config.metrics} is the address of api.tcp, too"
        report(ConfigError(text, "Give each an address of its own."))
    return config


def _values(given: Iterable[Given], report: Callable[[ConfigError], None]) -> dict[str, Any]:
    """Parse values; return those that are allowed by the field of Config."""
    values = {}
    for value in given:
        if value.key not in _BY_KEY:
            report(ConfigError(f"{value.source}: there is no setting {value.key!r}"))
            continue
        try:
            values[_BY_KEY[value.key].field] = _parse(_BY_KEY[value.key], value)
        except ConfigError as error:
            report(error)
    return values


def _parse(setting: Setting, given: Given) -> Any:
    """Parse the value of one setting and check its limits; None, for ``off``, has no limits."""
    form = setting.form
    allowed = f"allowed is from {form.least} to {form.most}" if form.least else ""
    try:
        value = form.parse(given.text)
    except ValueError as error:
        text = given.text.strip()
        is_outside = _ZERO.fullmatch(text) and (allowed or not setting.default)
        if not is_outside and not ("%" in allowed and _PERCENT.fullmatch(text)):
            raise ConfigError(f"{given.source}: {error}") from error
        out = f"{given.source}: {given.text!r} is out of range"
        name = given.source.rpartition(": ")[2].partition(" for GPU ")[0]
        raise ConfigError(out, allowed or f"Leave {name} out for the default") from error
    if value is None or form.least is None or form.most is None:
        return value
    if not form.parse(form.least) <= value <= form.parse(form.most):
        raise ConfigError(f"{given.source}: {given.text!r} is out of range", allowed)
    return value
