"""Read settings from a file, environment variables and flags; later sources win.

Each value keeps its source, for error messages and ``sentinel config show --origin``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.config.build import build_config, combine
from sentinel.config.model import SETTINGS, Config
from sentinel.config.setting import Scope, Setting
from sentinel.config.specs import check_workload
from sentinel.config.toml_text import decode_toml, parse_toml
from sentinel.errors import ConfigError, raise_error
from sentinel.host.paths import SIMULATED, SOCKET_VARIABLE, STRICT_VARIABLE
from sentinel.host.regular_file import read_regular, why_untrusted
from sentinel.protocol.commands import Given

#: Names the configuration file if ``--config`` does not.
FILE_VARIABLE = "SENTINEL_CONFIG"
#: The file with the token of a client.
TOKEN_VARIABLE = "SENTINEL_TOKEN_FILE"  # noqa: S105 - the name of a variable
#: The file that says what a node must be.
EXPECTATION_VARIABLE = "SENTINEL_EXPECT"
#: Variables with the prefix that are not settings: of commands, and of the scripts for Slurm.
_OTHER_VARIABLES = (
    *(FILE_VARIABLE, SOCKET_VARIABLE, SIMULATED, TOKEN_VARIABLE),
    *(EXPECTATION_VARIABLE, STRICT_VARIABLE),
    *("SENTINEL_SLURM", "SENTINEL_WAIT", "SENTINEL_LONGEST", "SENTINEL_DRAIN"),
    "SENTINEL_SLURM_ENV",
)
#: A larger file is refused, since it cannot be a configuration.
_MAX_BYTES = 2**20
#: The name of the file with saved settings in a state folder. It belongs to the daemon, and
#: overrides the configuration file, which belongs to the administrator and is never written.
NAME = "settings.toml"
#: The table of a file with the settings for single GPUs.
PER_GPU = "gpu"
_HOSTS_FILE = Path("/etc/sentinel/config.toml")
_FLAGS = {setting.key: setting.flag for setting in SETTINGS}
#: The least similarity of two names, from 0 to 1: a letter that is wrong, missing or in another
#: place. Below it, names of another meaning are as similar: `limit` and `list` have 0.67,
#: `interval` and `watch-interval` 0.73.
_SIMILAR = 0.75
#: What the next names may lack to the most similar one.
_AS_SIMILAR = 0.1
_MAX_FOUND = 3
#: The most names that an error lists.
_MAX_LISTED = 12

#: The setting for each key of the GPU Management System's configuration, and its number's unit.
MANAGEMENT_SYSTEM = {
    "temp_optimal": ("throttle.temp_normal_from", ""),
    "temp_normal": ("throttle.temp_throttled_from", ""),
    "temp_throttle": ("throttle.temp_critical_from", ""),
    "temp_critical": ("throttle.temp_overheating_from", ""),
    "memory_optimal": ("throttle.memory_normal_from", "%"),
    "memory_normal": ("throttle.memory_throttled_from", "%"),
    "memory_critical": ("throttle.memory_critical_from", "%"),
    "memory_limit_mb": ("budget.limit", "MiB"),
    "memory_reserve_mb": ("budget.keep_unallocated", "MiB"),
    "throttle_cooldown_seconds": ("throttle.cooldown", "s"),
    "critical_pause_seconds": ("throttle.critical_pause", "s"),
}
#: The settings for other common names, which are similar to none or to one of another meaning.
_ELSEWHERE = {
    "utilization": "util.target",
    "utilisation": "util.target",
    "mem": "memory.target",
    "vram": "memory.target",
}
#: What lists the settings.
_LIST = "`sentinel config init -` prints all settings."


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The given values of all sources."""

    #: Each key once for all GPUs; then those for single GPUs.
    given: tuple[Given, ...] = ()
    #: The configuration file, or None if there is none.
    file: Path | None = None

    def get(self, key: str) -> Given | None:
        """Return what was given for all GPUs, or None."""
        common = (value for value in self.given if value.gpu is None)
        return next((value for value in common if value.key == key), None)

    def source_of(self, key: str) -> str:
        """Return the source of a value for all GPUs."""
        value = self.get(key)
        return "default" if value is None else value.source


def gather(
    flags: Iterable[Given],
    environment: Mapping[str, str],
    file: Path | None,
    saved: Iterable[Given] = (),
    report: Callable[[ConfigError], None] = raise_error,
) -> Sources:
    """Combine the sources: flags override variables, variables override the files.

    Args:
        flags: What flags and clients have given.
        environment: All environment variables.
        file: The configuration file, from :func:`find_file`.
        saved: What clients have saved, which overrides that file.
        report: As for :func:`read_file`.

    Raises:
        ConfigError: The file cannot be read, or a key is unknown.
    """
    of_file = read_file(file, report) if file is not None else ()
    given = combine(of_file, saved, from_environment(environment), flags)
    return Sources(given=given, file=file)


def in_effect(given: Iterable[Given]) -> tuple[Given, ...]:
    """Return all settings, also those with defaults; of each key and selector the last value."""
    defaults = (
        Given(key=setting.key, text=setting.default, source="default") for setting in SETTINGS
    )
    return tuple({(value.gpu, value.key): value for value in (*defaults, *given)}.values())


def from_flags(texts: Mapping[str, str]) -> tuple[Given, ...]:
    """Return the settings of the given flags; their texts are by key."""
    return tuple(Given(key=key, text=text, source=_FLAGS[key]) for key, text in texts.items())


def from_environment(environment: Mapping[str, str]) -> tuple[Given, ...]:
    """Return the settings among the variables; an empty variable sets nothing."""
    keys = {setting.variable: setting.key for setting in SETTINGS}
    return tuple(
        Given(key=keys[name], text=text, source=name)
        for name, text in environment.items()
        if text and name in keys
    )


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable with the prefix that nothing reads.

    It may be a typo, or belong to a script: so it is named, and no error.
    """
    prefix = "SENTINEL_"
    variables = (*(setting.variable for setting in SETTINGS), *_OTHER_VARIABLES)
    known = [name.removeprefix(prefix) for name in variables]
    variables_of_keys = {one.key: one.variable.removeprefix(prefix) for one in SETTINGS}
    for name, text in environment.items():
        own = name.removeprefix(prefix)
        if text and own != name and own not in known:
            meant = variables_of_keys.get(key_elsewhere(own))
            near = [meant] if meant else nearest(own, known)  # the prefix is similar to all
            hint = f" Did you mean {prefix}{near[0]}?" if near else ""
            yield f"there is no variable {name}.{hint}"


def find_file(flag: str | None, environment: Mapping[str, str]) -> Path | None:
    """Find the configuration file: the one that was named, else the first default that exists.

    The defaults are ``$XDG_CONFIG_HOME/sentinel/config.toml`` (``~/.config`` if unset) and
    ``/etc/sentinel/config.toml``.
    """
    named = flag or environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    places = (_users_file(environment), _HOSTS_FILE)
    return next((place for place in places if _may_exist(place)), None)


def _may_exist(path: Path) -> bool:
    """Check for a file; one in a folder that this user cannot enter is found, and fails later.

    Its settings may be limits that an operator wants, so it is not taken for missing.
    """
    try:
        return path.exists()
    except PermissionError:
        return True


def file_to_write(environment: Mapping[str, str], uid: int) -> Path:
    """Choose the file for a user's new settings; those of root are the host's."""
    return _HOSTS_FILE if uid == 0 else _users_file(environment)


def _users_file(environment: Mapping[str, str]) -> Path:
    home = Path(environment.get("HOME") or "/")
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "sentinel/config.toml"


def read_file(path: Path, report: Callable[[ConfigError], None] = raise_error) -> tuple[Given, ...]:
    """Read a TOML file.

    Args:
        path: The file.
        report: Called with each unknown key and each value of the wrong type; these are left out.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown key or a value of the
            wrong type; or this process is root's, and another user can change the file, which may
            name code and who may command.
    """
    if str(path) == os.devnull:
        return ()
    try:
        text = decode_toml(read_regular(path, _MAX_BYTES), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if os.getuid() == 0 and (why := why_untrusted(path.absolute())) is not None:
        what = f"{path}: root reads no settings that another user can change: {why}"
        remedy = "Copy the file to a folder that only root can write, or give it to root."
        raise ConfigError(what.replace("the folder ", ""), remedy)
    return parse_file(str(path), text, report)


def parse_file(
    path: str, text: str, report: Callable[[ConfigError], None] = raise_error
) -> tuple[Given, ...]:
    """Parse the text of a file; arguments and errors are as of :func:`read_file`."""
    return tuple(_parse(path, parse_toml(text, path), report))


def read_saved(path: Path) -> tuple[Given, ...]:
    """Read the settings that clients have saved; a missing file has none.

    They may name code and files. A command reads them before its daemon checks its folders, and
    the default folder of simulated GPUs is in /tmp, where any user may have created it.

    Raises:
        ConfigError: As of :func:`read_file`; also if another user could have written the file. A
            damaged file is not set aside: its settings bound what may be held.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    why = why_untrusted(path.absolute())
    if why is not None:
        raise ConfigError(
            f"the saved settings {path} cannot be trusted: {why}",
            f"Remove the file, or use a folder of your own ({SIMULATED}, XDG_STATE_HOME).",
        )
    try:
        return read_file(path)
    except ConfigError as error:
        import shlex  # slow to import

        move = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.bad')}"
        way = f"Correct it, or move it away to start without what was saved: {move}"
        raise ConfigError(error.what, f"{error.remedy} {way}".strip()) from error


def _parse(
    path: str, tables: dict[str, Any], report: Callable[[ConfigError], None]
) -> Iterator[Given]:
    """Yield the settings of a file: those for all GPUs, and those of the tables of single ones."""
    singles = tables.pop(PER_GPU, {})
    yield from _settings(tables, path, None, report)
    if not isinstance(singles, dict):
        what = f"{path}: {PER_GPU} is not a table"
        report(ConfigError(what, 'Write it as [gpu.0] or [gpu."GPU-1a2b"].'))
        return
    for selector, table in singles.items():
        if isinstance(table, dict):
            yield from _settings(table, path, selector, report)
        else:
            what = f"{path}: {PER_GPU}.{selector} is not a table"
            report(ConfigError(what, f"Write it as [{PER_GPU}.{selector}]."))


def _settings(
    tables: Mapping[str, Any],
    path: str,
    gpu: str | None,
    report: Callable[[ConfigError], None],
) -> Iterator[Given]:
    """Yield the settings in nested tables, those of a single GPU or of all."""
    settings = {
        setting.key: setting for setting in SETTINGS if gpu is None or setting.scope is Scope.GPU
    }
    for key, value in _leaves(tables, "", settings):
        source = f"{path}: {key}" if gpu is None else f"{path}: {PER_GPU}.{gpu}.{key}"
        if key not in settings:
            what = "cannot be set for a single GPU" if key in _FLAGS else "there is no such key"
            report(unknown_setting(f"{source}: {what}", key, settings.values()))
            continue
        text = _text(settings[key], value)
        if text is not None:
            yield Given(key=key, text=text, source=source, gpu=gpu)
            continue
        form = settings[key].form
        kind = "a string or a list of strings" if form.many else "a string or a number"
        what = f"{source}: {value!r} is not {kind}"
        report(ConfigError(what, f"Write it as {form.metavar}"))


def unknown_setting(what: str, name: str, settings: Iterable[Setting]) -> ConfigError:
    """Return an unknown-key error with the key that is meant; some people write a flag's name.

    Args:
        what: What is wrong, for the message.
        name: The unknown name.
        settings: The settings that are allowed there.
    """
    keys = {setting.flag.removeprefix("--"): setting.key for setting in settings}
    flag = name.removeprefix("--").replace("_", "-")
    keys |= {key: key for key in keys.values()}
    near = [flag] if flag in keys else nearest(name, keys)
    if (meant := key_elsewhere(name)) in keys:
        near = [meant]
    return ConfigError(what, f"Did you mean {keys[near[0]]}?" if near else _LIST)


def key_elsewhere(name: str) -> str:
    """Return the key of the setting that another program calls by a name, or an empty text."""
    if name in MANAGEMENT_SYSTEM:
        return MANAGEMENT_SYSTEM[name][0]
    return _ELSEWHERE.get(name.removeprefix("--").lower(), "")


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
    return ConfigError(what, _LIST)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names that are about as similar as the most similar one.

    Upper and lower case are equal. Names with the same first word are a family, such as
    ``temp_normal_from`` and ``temp_critical_from``. A name with the first word of a family is only
    compared with that.
    """
    names = list(known)
    first, several = _first_word(name)
    family = [known_name for known_name in names if _first_word(known_name)[0] == first]
    if several and family:
        names = family
    similar = {known: _similarity(name, known) for known in names}
    least = max(_SIMILAR, max(similar.values(), default=0.0) - _AS_SIMILAR)
    near = [known for known in similar if similar[known] >= least]
    return sorted(near, key=lambda known: -similar[known])[:_MAX_FOUND]


def _first_word(name: str) -> tuple[str, bool]:
    """Return the first word of a name, and whether it has more."""
    words = re.split(r"[-_.]", name.lstrip("-").lower())
    return words[0], len(words) > 1


def _similarity(one: str, other: str) -> float:
    matcher = difflib.SequenceMatcher(None, one.lstrip("-").lower(), other.lstrip("-").lower())
    # Their lengths alone exclude a long text, for which the ratio would take seconds.
    return matcher.ratio() if matcher.real_quick_ratio() >= _SIMILAR else 0.0


def checked(sources: Sources) -> Config:
    """Build the Config and check that each workload exists.

    Raises:
        ConfigError: A value is not allowed, or a workload does not exist.
    """
    for value in sources.given:
        if value.key != "workload":
            continue
        try:
            check_workload(value.text)
        except ConfigError as error:
            raise ConfigError(f"{value.source}: {error.what}", error.remedy) from error
    return build_config(sources.given)
