"""The settings in effect, and how they are reread from flags, variables and the file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.config.build import Given, Override, build_config, given_overrides, given_values
from sentinel.config.model import SETTINGS, Config
from sentinel.config.saved_settings import NAME
from sentinel.config.setting import Scope
from sentinel.config.sources import (
    Sources,
    as_overrides,
    as_values,
    checked,
    find_file,
    from_environment,
    gather,
    read_saved,
    unknown_name,
)
from sentinel.errors import ConfigError
from sentinel.protocol.commands import ApiSpec, GivenOverride, GivenSetting

#: The length of the beginning of a UUID in a source: `GPU-` and eight digits.
UUID_LENGTH = 12
#: The source of the settings that clients have given for a single GPU.
_BY_CLIENT = "sentinel set"


@dataclass(frozen=True, kw_only=True)
class SettingsSnapshot:
    """All given settings in the form of a Configure command, and their Config."""

    given: tuple[GivenSetting, ...]
    overrides: tuple[GivenOverride, ...]
    config: Config


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """What flags and clients have given besides the files: the texts of settings by key."""

    all_gpus: Mapping[str, str] = field(default_factory=dict)
    #: Those for single GPUs, by UUID.
    single: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def with_changes(
        self, changes: Mapping[str, str | None], gpus: Iterable[str] = ()
    ) -> RuntimeSettings:
        """Return them with changes for all GPUs, or for these; None removes one."""
        uuids = tuple(gpus)
        if not uuids:
            return replace(self, all_gpus=_merged(self.all_gpus, changes))
        changed = {uuid: _merged(self.single.get(uuid, {}), changes) for uuid in uuids}
        single = {**self.single, **changed}
        return replace(self, single={uuid: given for uuid, given in single.items() if given})


class LiveSettings:
    """The settings in effect, and the sources of the daemon's settings.

    Args:
        spec: Has the initial settings and the settings file.
        environment: The daemon's environment variables.
    """

    def __init__(self, spec: ApiSpec, environment: Mapping[str, str]) -> None:
        self._file = spec.config
        self._environment = dict(environment)
        #: What clients have saved, in the state folder.
        self.saved_file = Path(spec.state) / NAME
        #: The settings that the supervisor has accepted; the file may differ.
        self.current = SettingsSnapshot(
            given=spec.given,
            overrides=spec.overrides,
            config=build_config(given_values(spec.given), given_overrides(spec.overrides)),
        )

    @property
    def runtime(self) -> RuntimeSettings:
        """What flags and clients have given, of the settings in effect."""
        return RuntimeSettings(
            all_gpus=_given_at_run_time(self.current.given),
            single={
                one.selector: _given_at_run_time(one.given)
                for one in self.current.overrides
                if one.source == _BY_CLIENT
            },
        )

    def variable_for(self, key: str) -> str | None:
        """Return the name of the daemon's environment variable for a setting, or None if unset."""
        given = from_environment(self._environment).get(key)
        return None if given is None else given.source

    async def read_saved(self) -> Sources:
        """Read what clients have saved.

        Raises:
            ConfigError: The file cannot be read, or is invalid.
        """
        return await asyncio.to_thread(read_saved, self.saved_file)

    async def read(
        self, runtime: RuntimeSettings, saved: Sources | None = None
    ) -> SettingsSnapshot:
        """Read all sources.

        Args:
            runtime: What flags and clients have given.
            saved: What clients will have saved; the default is what the file has.

        Raises:
            ConfigError: A key is unknown, a file cannot be read, or a value is invalid.
        """
        # In a thread: the files may be on a slow disk.
        return await asyncio.to_thread(self._read, runtime, saved)

    def _read(self, runtime: RuntimeSettings, saved: Sources | None) -> SettingsSnapshot:
        check_keys(runtime.all_gpus)
        home = Path(self._environment.get("HOME") or "/")
        # A file that was found at the start is reread; otherwise, there may be one now.
        file = find_file(self._file, self._environment, home)
        kept = read_saved(self.saved_file) if saved is None else saved
        sources = gather(runtime.all_gpus, self._environment, file, kept)
        single = tuple(_by_client(uuid, texts) for uuid, texts in runtime.single.items())
        sources = replace(sources, overrides=(*sources.overrides, *single))
        return SettingsSnapshot(
            config=checked(sources),
            given=as_values(sources.given),
            overrides=as_overrides(sources.overrides),
        )


def _merged(given: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**given, **changes}
    return {key: text for key, text in merged.items() if text is not None}


def _given_at_run_time(given: Iterable[GivenSetting]) -> dict[str, str]:
    """Return the texts that neither a file nor a variable has given, by key."""
    return {one.key: one.text for one in given if one.source.startswith("--")}


def _by_client(uuid: str, texts: Mapping[str, str]) -> Override:
    """Return the settings of a single GPU that clients have given."""
    flags = {setting.key: setting.flag for setting in SETTINGS}
    given = {
        key: Given(text=text, source=f"{flags[key]} for {uuid[:UUID_LENGTH]}")
        for key, text in texts.items()
    }
    return Override(selector=uuid, source=_BY_CLIENT, given=given)


def check_keys(given: Iterable[str], *, single: bool = False) -> None:
    """Reject unknown keys; ignoring a misspelt setting is worse than an error.

    Args:
        given: The keys.
        single: Whether they are for single GPUs.

    Raises:
        ConfigError: A key is unknown, or a single GPU cannot have it.
    """
    scopes = {setting.key: setting.scope for setting in SETTINGS}
    for key in given:
        if key not in scopes:
            raise unknown_name(f"there is no setting {key!r}", key, scopes)
        if single and scopes[key] is not Scope.GPU:
            raise ConfigError(
                f"{key} cannot be set for single GPUs",
                "`sentinel session start --help-all` lists the settings that can.",
            )
