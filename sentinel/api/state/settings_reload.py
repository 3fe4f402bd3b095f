"""The settings in effect, and how they are reread from flags, variables and the file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.config.build import build_config, given_overrides, given_values
from sentinel.config.model import SETTINGS, Config
from sentinel.config.sources import (
    as_overrides,
    as_values,
    checked,
    find_file,
    gather,
    unknown_name,
)
from sentinel.protocol.commands import ApiSpec, GivenOverride, GivenSetting


@dataclass(frozen=True, kw_only=True)
class SettingsSnapshot:
    """All given settings in the form of a Configure command, and their Config."""

    given: tuple[GivenSetting, ...]
    overrides: tuple[GivenOverride, ...]
    config: Config


class LiveSettings:
    """The settings in effect, and the sources of the daemon's settings.

    Args:
        spec: Has the initial settings and the settings file.
        environment: The daemon's environment variables.
    """

    def __init__(self, spec: ApiSpec, environment: Mapping[str, str]) -> None:
        self._file = spec.config
        self._environment = dict(environment)
        #: The settings that the supervisor has accepted; the file may differ.
        self.current = SettingsSnapshot(
            given=spec.given,
            overrides=spec.overrides,
            config=build_config(given_values(spec.given), given_overrides(spec.overrides)),
        )

    @property
    def flags(self) -> dict[str, str]:
        """The text of each flag in effect, by the key of its setting."""
        return {one.key: one.text for one in self.current.given if one.source.startswith("--")}

    async def read(self, flags: Mapping[str, str]) -> SettingsSnapshot:
        """Read all sources, with these flags.

        Raises:
            ConfigError: A key is unknown, the file cannot be read, or a value is invalid.
        """
        # In a thread: the file may be on a slow disk.
        return await asyncio.to_thread(self._read, flags)

    def _read(self, flags: Mapping[str, str]) -> SettingsSnapshot:
        check_keys(flags)
        home = Path(self._environment.get("HOME") or "/")
        # A file that was found at the start is reread; otherwise, there may be one now.
        file = find_file(self._file, self._environment, home)
        sources = gather(flags, self._environment, file)
        return SettingsSnapshot(
            config=checked(sources),
            given=as_values(sources.given),
            overrides=as_overrides(sources.overrides),
        )


def check_keys(flags: Iterable[str]) -> None:
    """Reject unknown keys; ignoring a misspelt setting is worse than an error.

    Raises:
        ConfigError: A key is unknown.
    """
    keys = [setting.key for setting in SETTINGS]
    for key in flags:
        if key not in keys:
            raise unknown_name(f"there is no setting {key!r}", key, keys)
