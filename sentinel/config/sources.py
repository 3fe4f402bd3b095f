"""Read settings from a file, environment variables and flags; later sources win.

Each value keeps its source, for error messages and ``sentinel config show --origin``.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.config.build import Given, Override, build_config
from sentinel.config.model import SETTINGS, Config
from sentinel.config.renamed import new_name
from sentinel.config.setting import Scope, Setting
from sentinel.config.workload_spec import check_workload
from sentinel.errors import ConfigError
from sentinel.host.paths import SIMULATED, SOCKET_VARIABLE
from sentinel.host.regular_file import read_regular
from sentinel.protocol.commands import GivenOverride, GivenSetting

#: Names the configuration file if ``--config`` does not.
FILE_VARIABLE = "SENTINEL_CONFIG"
#: Variables with the prefix that are not settings.
_OTHER_VARIABLES = (FILE_VARIABLE, SOCKET_VARIABLE, SIMULATED)
#: A larger file is refused, since it cannot be a configuration.
_MAX_BYTES = 2**20
#: The table of a file with the settings for single GPUs.
_PER_GPU = "gpu"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The given values of all sources."""

    #: Values for all GPUs, by key.
    given: Mapping[str, Given] = field(default_factory=dict)
    #: Values for single GPUs.
    overrides: tuple[Override, ...] = ()
    #: The configuration file, or None if there is none.
    file: Path | None = None


def gather(flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None) -> Sources:
    """Combine the sources: flags override variables, variables override the file.

    Args:
        flags: The texts of the given flags, by key.
        environment: All environment variables.
        file: The configuration file, from :func:`find_file`.

    Raises:
        ConfigError: The file cannot be read, or a key or a variable is unknown.
    """
    base = read_file(file) if file is not None else Sources()
    names = {setting.key: setting.flag for setting in SETTINGS}
    chosen = {key: Given(text=text, source=names[key]) for key, text in flags.items()}
    given = {**base.given, **from_environment(environment), **chosen}
    return Sources(given=given, overrides=base.overrides, file=file)


def as_values(given: Mapping[str, Given]) -> tuple[GivenSetting, ...]:
    """Convert values to messages."""
    return tuple(
        GivenSetting(key=key, text=value.text, source=value.source) for key, value in given.items()
    )


def as_overrides(overrides: Iterable[Override]) -> tuple[GivenOverride, ...]:
    """Convert values for single GPUs to messages."""
    return tuple(
        GivenOverride(selector=one.selector, source=one.source, given=as_values(one.given))
        for one in overrides
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """Return the settings among the variables, by key; an empty variable sets nothing.

    Raises:
        ConfigError: A variable with the prefix is unknown. A typo that is silently ignored is
            worse than a start that fails.
    """
    settings = {setting.variable: setting for setting in SETTINGS}
    found = {}
    for name, text in environment.items():
        if not name.startswith("SENTINEL_") or name in _OTHER_VARIABLES or not text:
            continue
        if name not in settings:
            raise unknown_name(f"there is no variable {name}", name, [*settings, *_OTHER_VARIABLES])
        found[settings[name].key] = Given(text=text, source=name)
    return found


def find_file(flag: str | None, environment: Mapping[str, str], home: Path) -> Path | None:
    """Find the configuration file: the one that was named, else the first default that exists.

    The defaults are ``$XDG_CONFIG_HOME/sentinel/config.toml`` (``~/.config`` if unset) and
    ``/etc/sentinel/config.toml``.
    """
    named = flag or environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    places = (user / "sentinel/config.toml", Path("/etc/sentinel/config.toml"))
    return next((place for place in places if place.exists()), None)


def read_file(path: Path) -> Sources:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown key or a value of the
            wrong type.
    """
    try:
        text = "" if str(path) == os.devnull else read_regular(path, _MAX_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    try:
        return _parse(path, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply") from None


def _parse(path: Path, tables: dict[str, Any]) -> Sources:
    """Collect the settings of a file.

    Raises:
        ConfigError: A key is unknown, or a value has the wrong type.
    """
    singles = tables.pop(_PER_GPU, {})
    if not isinstance(singles, dict):
        raise ConfigError(
            f"{path}: {_PER_GPU} is not a table", 'Write it as [gpu.0] or [gpu."GPU-1a2b"].'
        )
    return Sources(
        given=_settings(tables, str(path), "", SETTINGS),
        overrides=tuple(_override(path, selector, table) for selector, table in singles.items()),
        file=path,
    )


def _override(path: Path, selector: str, table: object) -> Override:
    """Read the table of one GPU."""
    source = f"{path}: {_PER_GPU}.{selector}"
    if not isinstance(table, dict):
        raise ConfigError(f"{source} is not a table", f"Write it as [{_PER_GPU}.{selector}].")
    allowed = [setting for setting in SETTINGS if setting.scope is Scope.GPU]
    given = _settings(table, str(path), f"{_PER_GPU}.{selector}.", allowed)
    return Override(selector=selector, source=source, given=given)


def _settings(
    tables: Mapping[str, Any], path: str, prefix: str, allowed: Iterable[Setting]
) -> dict[str, Given]:
    """Collect the settings in nested tables, by key."""
    settings = {setting.key: setting for setting in allowed}
    found = {}
    for key, value in _leaves(tables, "", settings):
        source = f"{path}: {prefix}{key}"
        if key not in settings:
            elsewhere = any(setting.key == key for setting in SETTINGS)
            what = "cannot be set for a single GPU" if elsewhere else "there is no such key"
            raise unknown_name(f"{source}: {what}", key, settings)
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
    """Convert a value of a file to the text of a flag."""
    items = value if isinstance(value, list) and setting.form.many else [value]
    if not all(isinstance(i, str | int | float) and not isinstance(i, bool) for i in items):
        kind = "a string or a list of strings" if setting.form.many else "a string or a number"
        what = f"{source}: {value!r} is not {kind}"
        raise ConfigError(what, f"Write it as for {setting.flag}: {setting.form.metavar}")
    return ",".join(str(item) for item in items)


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return an unknown-name error with the new name of a renamed setting, or the closest match.

    Args:
        what: What is wrong, for the message.
        name: The unknown name.
        known: The names that are allowed there.
    """
    names = sorted(known)
    new = new_name(name, names)
    if new is not None:
        return ConfigError(what, f"{name} was renamed to {new}.")
    near = difflib.get_close_matches(name, names, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}"
    return ConfigError(what, remedy)


def checked(sources: Sources) -> Config:
    """Build the Config and check that each workload exists.

    Raises:
        ConfigError: A value is not allowed, or a workload does not exist.
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
