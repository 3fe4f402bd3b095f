"""Where settings come from: a file, then variables over it, then flags over those.

Each value keeps its origin, so that an error can name it and a person can ask for it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.config.model import Config, Given, Override, build_config
from sentinel.config.settings import SETTINGS
from sentinel.config.settings.setting import Setting
from sentinel.config.workload_spec import check_workload
from sentinel.errors import ConfigError
from sentinel.host.paths import SOCKET_VARIABLE
from sentinel.protocol.commands import OverrideValues, Value

#: Names the configuration file, where ``--config`` does not.
FILE_VARIABLE = "SENTINEL_CONFIG"
#: Variables of ours that are no settings.
_OTHER_VARIABLES = (FILE_VARIABLE, SOCKET_VARIABLE, "SENTINEL_SIM_DIR")
#: The table of a file that holds those for single GPUs.
_PER_GPU = "gpu"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What was given for all GPUs, by key, and for single ones; ``file`` is the file of it."""

    given: Mapping[str, Given] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    file: Path | None = None


def gather(flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None) -> Sources:
    """Return all that was given: flags over variables over the file.

    Args:
        flags: The text of each flag that was used, by the key of its setting.
        environment: All variables.
        file: The configuration file, from :func:`find_file`.

    Raises:
        ConfigError: The file cannot be read, or a name in it or among the variables is none.
    """
    base = read_file(file) if file is not None else Sources()
    names = {setting.key: setting.flag for setting in SETTINGS}
    chosen = {key: Given(text=text, source=names[key]) for key, text in flags.items()}
    given = {**base.given, **from_environment(environment), **chosen}
    return Sources(given=given, overrides=base.overrides, file=file)


def as_values(given: Mapping[str, Given]) -> tuple[Value, ...]:
    """Return what was given as other processes are told it."""
    return tuple(
        Value(key=key, text=value.text, source=value.source) for key, value in given.items()
    )


def as_overrides(overrides: Iterable[Override]) -> tuple[OverrideValues, ...]:
    """Return what was given for single GPUs as other processes are told it."""
    return tuple(
        OverrideValues(selector=one.selector, source=one.source, given=as_values(one.given))
        for one in overrides
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """Return the settings among the variables, by key; an empty one sets nothing.

    Raises:
        ConfigError: A variable begins like one of ours and is none: a rule that is passed over in
            silence is worse than a start that fails.
    """
    settings = {setting.variable: setting for setting in SETTINGS}
    found = {}
    for name, text in environment.items():
        if not name.startswith("SENTINEL_") or name in _OTHER_VARIABLES or not text:
            continue
        if name not in settings:
            raise _unknown(f"there is no variable {name}", name, [*settings, *_OTHER_VARIABLES])
        found[settings[name].key] = Given(text=text, source=name)
    return found


def find_file(flag: str | None, environment: Mapping[str, str], home: Path) -> Path | None:
    """Return the configuration file: the one that was named, else the first that exists.

    Looked for are ``$XDG_CONFIG_HOME/sentinel/config.toml``, where ``~/.config`` is the default,
    and ``/etc/sentinel/config.toml``.
    """
    named = flag or environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    places = (user / "sentinel/config.toml", Path("/etc/sentinel/config.toml"))
    return next((place for place in places if place.exists()), None)


def read_file(path: Path) -> Sources:
    """Return what a TOML file sets.

    Raises:
        ConfigError: It cannot be read, is no TOML, or has a key or a kind of value that is none.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no text: {error}") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from error
    singles = tables.pop(_PER_GPU, {})
    if not isinstance(singles, dict):
        raise ConfigError(
            f"{path}: {_PER_GPU} is no table", 'Write it as [gpu.0] or [gpu."GPU-1a2b"].'
        )
    return Sources(
        given=_settings(tables, str(path), "", SETTINGS),
        overrides=tuple(_override(path, selector, table) for selector, table in singles.items()),
        file=path,
    )


def _override(path: Path, selector: str, table: object) -> Override:
    """Return what a file sets for one GPU."""
    source = f"{path}: {_PER_GPU}.{selector}"
    if not isinstance(table, dict):
        raise ConfigError(f"{source} is no table", f"Write it as [{_PER_GPU}.{selector}].")
    allowed = [setting for setting in SETTINGS if setting.per_gpu]
    given = _settings(table, str(path), f"{_PER_GPU}.{selector}.", allowed)
    return Override(selector=selector, source=source, given=given)


def _settings(
    tables: Mapping[str, Any], path: str, prefix: str, allowed: Iterable[Setting]
) -> dict[str, Given]:
    """Return the settings in nested tables, by key."""
    settings = {setting.key: setting for setting in allowed}
    found = {}
    for key, value in _leaves(tables, "", settings):
        source = f"{path}: {prefix}{key}"
        if key not in settings:
            elsewhere = any(setting.key == key for setting in SETTINGS)
            what = "cannot be set for a single GPU" if elsewhere else "there is no such key"
            raise _unknown(f"{source}: {what}", key, settings)
        found[key] = Given(text=_text(settings[key], value, source), source=source)
    return found


def _leaves(
    tables: Mapping[str, Any], prefix: str, settings: Mapping[str, Setting]
) -> Iterator[tuple[str, Any]]:
    """Yield every value of nested tables with its dotted key."""
    for name, value in tables.items():
        key = prefix + name
        if isinstance(value, dict) and key not in settings:
            yield from _leaves(value, f"{key}.", settings)
        else:
            yield key, value


def _text(setting: Setting, value: object, source: str) -> str:
    """Return a value of a file as the text that a flag would have been given."""
    items = value if isinstance(value, list) and setting.many else [value]
    if not all(isinstance(i, str | int | float) and not isinstance(i, bool) for i in items):
        kind = "a text or a list of texts" if setting.many else "a text or a number"
        what = f"{source}: {value!r} is not {kind}"
        raise ConfigError(what, f"It is written as for {setting.flag}: {setting.metavar}")
    return ",".join(str(item) for item in items)


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is none, with the nearest that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}"
    return ConfigError(what, remedy)


def checked(sources: Sources) -> Config:
    """Return the Config of what was given.

    Raises:
        ConfigError: A value is not allowed, or there is no such workload.
    """
    for given in (sources.given, *(override.given for override in sources.overrides)):
        workload = given.get("workload")
        if workload is None:
            continue
        try:
            check_workload(workload.text)
        except ConfigError as error:
            raise ConfigError(f"{workload.source}: {error.what}", error.remedy) from error
    return build_config(sources.given, sources.overrides)
