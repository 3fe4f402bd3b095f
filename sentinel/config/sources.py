"""Read settings from a file, environment variables and flags; later sources win.

Each value keeps its source, for error messages and ``sentinel config show --origin``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.config.build import Given, Override, build_config
from sentinel.config.model import SETTINGS, Config
from sentinel.config.nearest import nearest
from sentinel.config.setting import Scope, Setting
from sentinel.config.workload_spec import check_workload
from sentinel.errors import ConfigError, raise_error
from sentinel.host.files.paths import SIMULATED, SOCKET_VARIABLE
from sentinel.host.files.regular_file import read_regular
from sentinel.host.files.trusted_folder import why_untrusted
from sentinel.protocol.commands import GivenOverride, GivenSetting

#: Names the configuration file if ``--config`` does not.
FILE_VARIABLE = "SENTINEL_CONFIG"
#: The file with the token of a client.
TOKEN_VARIABLE = "SENTINEL_TOKEN_FILE"  # noqa: S105 - the name of a variable
#: Variables with the prefix that are not settings: of commands, and of the scripts for Slurm.
_OTHER_VARIABLES = (
    *(FILE_VARIABLE, SOCKET_VARIABLE, SIMULATED, TOKEN_VARIABLE),
    *("SENTINEL_SLURM", "SENTINEL_WAIT", "SENTINEL_LONGEST", "SENTINEL_DRAIN"),
    "SENTINEL_SLURM_ENV",
)
#: A larger file is refused, since it cannot be a configuration.
_MAX_BYTES = 2**20
#: The table of a file with the settings for single GPUs.
_PER_GPU = "gpu"
_HOSTS_FILE = Path("/etc/sentinel/config.toml")
#: The most names that an error lists.
_MAX_LISTED = 12


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The given values of all sources."""

    #: Values for all GPUs, by key.
    given: Mapping[str, Given] = field(default_factory=dict)
    #: Values for single GPUs.
    overrides: tuple[Override, ...] = ()
    #: The configuration file, or None if there is none.
    file: Path | None = None
    #: What was ignored, such as unknown variables, a sentence each.
    warnings: tuple[str, ...] = ()


def gather(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: Path | None,
    saved: Sources | None = None,
) -> Sources:
    """Combine the sources: flags override variables, variables override the files.

    Args:
        flags: The texts of the given flags, by key.
        environment: All environment variables.
        file: The configuration file, from :func:`find_file`.
        saved: What clients have saved, which overrides that file.

    Raises:
        ConfigError: The file cannot be read, or a key is unknown.
    """
    base = read_file(file) if file is not None else Sources()
    kept = saved or Sources()
    names = {setting.key: setting.flag for setting in SETTINGS}
    chosen = {key: Given(text=text, source=names[key]) for key, text in flags.items()}
    given = {**base.given, **kept.given, **from_environment(environment), **chosen}
    return Sources(
        given=given,
        overrides=(*base.overrides, *kept.overrides),
        file=file,
        warnings=tuple(unknown_variables(environment)),
    )


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
    """Return the settings among the variables, by key; an empty variable sets nothing."""
    return {
        setting.key: Given(text=text, source=setting.variable)
        for setting in SETTINGS
        if (text := environment.get(setting.variable))
    }


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable with the prefix that nothing reads.

    It may be a typo, or belong to a script: so it is named, and no error.
    """
    prefix = "SENTINEL_"
    variables = (*(setting.variable for setting in SETTINGS), *_OTHER_VARIABLES)
    known = [name.removeprefix(prefix) for name in variables]
    for name, text in environment.items():
        own = name.removeprefix(prefix)
        if text and own != name and own not in known:
            near = nearest(own, known)  # the prefix would be similar to all
            hint = f" Did you mean {prefix}{near[0]}?" if near else ""
            yield f"there is no variable {name}.{hint}"


def find_file(flag: str | None, environment: Mapping[str, str], home: Path) -> Path | None:
    """Find the configuration file: the one that was named, else the first default that exists.

    The defaults are ``$XDG_CONFIG_HOME/sentinel/config.toml`` (``~/.config`` if unset) and
    ``/etc/sentinel/config.toml``.
    """
    named = flag or environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    places = (_users_file(environment, home), _HOSTS_FILE)
    return next((place for place in places if _may_exist(place)), None)


def _may_exist(path: Path) -> bool:
    """Check for a file; one in a folder that this user cannot enter is found, and fails later.

    Its settings may be limits that an operator wants, so it is not taken for missing.
    """
    try:
        return path.exists()
    except PermissionError:
        return True


def file_to_write(environment: Mapping[str, str], uid: int, home: Path) -> Path:
    """Choose the file for a user's new settings; those of root are the host's."""
    return _HOSTS_FILE if uid == 0 else _users_file(environment, home)


def _users_file(environment: Mapping[str, str], home: Path) -> Path:
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "sentinel/config.toml"


def read_file(path: Path, report: Callable[[ConfigError], None] = raise_error) -> Sources:
    """Read a TOML file.

    Args:
        path: The file.
        report: Called with each unknown key and each value of the wrong type; these are left out.

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
        return _parse(path, tomllib.loads(text), report)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply") from None


def _parse(path: Path, tables: dict[str, Any], report: Callable[[ConfigError], None]) -> Sources:
    """Collect the settings of a file."""
    singles = tables.pop(_PER_GPU, {})
    if not isinstance(singles, dict):
        what = f"{path}: {_PER_GPU} is not a table"
        report(ConfigError(what, 'Write it as [gpu.0] or [gpu."GPU-1a2b"].'))
        singles = {}
    return Sources(
        given=_settings(tables, str(path), "", SETTINGS, report),
        overrides=tuple(_overrides(path, singles, report)),
        file=path,
    )


def read_saved(path: Path) -> Sources:
    """Read the settings that clients have saved; a missing file has none.

    They may name code and files. A command reads them before its daemon checks its folders, and
    the default folder of simulated GPUs is in /tmp, where any user may have created it.

    Raises:
        ConfigError: As of :func:`read_file`; also if another user could have written the file.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Sources()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    why = why_untrusted(path.absolute())
    if why is not None:
        raise ConfigError(
            f"the saved settings {path} cannot be trusted: {why}",
            f"Remove the file, or use a folder of your own ({SIMULATED}, XDG_STATE_HOME).",
        )
    return read_file(path)


def _overrides(
    path: Path, tables: Mapping[str, object], report: Callable[[ConfigError], None]
) -> Iterator[Override]:
    """Read the tables of single GPUs."""
    allowed = [setting for setting in SETTINGS if setting.scope is Scope.GPU]
    for selector, table in tables.items():
        source = f"{path}: {_PER_GPU}.{selector}"
        if isinstance(table, dict):
            given = _settings(table, str(path), f"{_PER_GPU}.{selector}.", allowed, report)
            yield Override(selector=selector, source=source, given=given)
        else:
            report(ConfigError(f"{source} is not a table", f"Write it as [{_PER_GPU}.{selector}]."))


def _settings(
    tables: Mapping[str, Any],
    path: str,
    prefix: str,
    allowed: Iterable[Setting],
    report: Callable[[ConfigError], None],
) -> dict[str, Given]:
    """Collect the settings in nested tables, by key."""
    settings = {setting.key: setting for setting in allowed}
    found = {}
    for key, value in _leaves(tables, "", settings):
        source = f"{path}: {prefix}{key}"
        if key not in settings:
            elsewhere = any(setting.key == key for setting in SETTINGS)
            what = "cannot be set for a single GPU" if elsewhere else "there is no such key"
            flag = f"--{key.replace('_', '-')}"
            meant = [setting.key for setting in settings.values() if setting.flag == flag]
            if meant:
                report(ConfigError(f"{source}: {what}", f"The key of {flag} is {meant[0]}."))
            else:
                report(unknown_name(f"{source}: {what}", key, settings))
            continue
        text = _text(settings[key], value)
        if text is not None:
            found[key] = Given(text=text, source=source)
            continue
        form = settings[key].form
        kind = "a string or a list of strings" if form.many else "a string or a number"
        what = f"{source}: {value!r} is not {kind}"
        report(ConfigError(what, f"Write it as for {settings[key].flag}: {form.metavar}"))
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


def _text(setting: Setting, value: object) -> str | None:
    """Convert a value of a file to the text of a flag, or return None if its type is wrong."""
    items = value if isinstance(value, list) and setting.form.many else [value]
    if not all(isinstance(i, str | int | float) and not isinstance(i, bool) for i in items):
        return None
    return ",".join(str(item) for item in items)


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return an unknown-name error with the closest match.

    Args:
        what: What is wrong, for the message.
        name: The unknown name.
        known: The names that are allowed there.
    """
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return ConfigError(what, f"Did you mean {near[0]}?")
    if len(names) <= _MAX_LISTED:
        return ConfigError(what, f"There are: {', '.join(names)}")
    return ConfigError(what, "`sentinel config init -` prints all settings.")


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
