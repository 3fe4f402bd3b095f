"""The settings that hold, and how they are read anew: flags, variables, the file."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.config.build import Given, Override, build_config
from sentinel.config.model import SETTINGS, Config
from sentinel.config.sources import as_overrides, as_values, checked, find_file, gather
from sentinel.errors import ConfigError
from sentinel.protocol.commands import GivenOverride, GivenSetting, ServiceSpec


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """All that was given, as a Configure has it; ``config`` is its sum."""

    given: tuple[GivenSetting, ...]
    overrides: tuple[GivenOverride, ...]
    config: Config


class Settings:
    """What holds, and where this daemon's settings come from.

    Args:
        spec: Has what holds, and the file.
        environment: All variables, as the daemon got them.

    Attributes:
        held: What holds: what the supervisor had when this service began, or accepted since then.
            The file may say something else by now.
    """

    def __init__(self, spec: ServiceSpec, environment: Mapping[str, str]) -> None:
        self._file = spec.config
        self._environment = dict(environment)
        overrides = [
            Override(selector=one.selector, source=one.source, given=_given(one.given))
            for one in spec.overrides
        ]
        self.held = Gathered(
            given=spec.given,
            overrides=spec.overrides,
            config=build_config(_given(spec.given), overrides),
        )

    @property
    def flags(self) -> dict[str, str]:
        """The text of each flag among what holds, by the key of its setting."""
        return {value.key: value.text for value in self.held.given if value.source.startswith("--")}

    def take(self, gathered: Gathered) -> None:
        """Keep what holds from now on."""
        self.held = gathered

    async def gather(self, flags: Mapping[str, str]) -> Gathered:
        """Read all settings, with these flags over the rest.

        Raises:
            ConfigError: A key is none, the file cannot be read, or a value is not allowed.
        """
        # In a thread: the file may be on a disk that takes its time.
        return await asyncio.to_thread(self._gather, flags)

    def _gather(self, flags: Mapping[str, str]) -> Gathered:
        check_keys(flags)
        home = Path(self._environment.get("HOME") or "/")
        # A file that was found at the start is read again; where there was none, there may be now.
        file = find_file(self._file, self._environment, home)
        sources = gather(flags, self._environment, file)
        return Gathered(
            config=checked(sources),
            given=as_values(sources.given),
            overrides=as_overrides(sources.overrides),
        )


def _given(values: Iterable[GivenSetting]) -> dict[str, Given]:
    return {value.key: Given(text=value.text, source=value.source) for value in values}


def check_keys(flags: Iterable[str]) -> None:
    """Refuse keys that are none: a rule that is passed over in silence is worse than an error.

    Raises:
        ConfigError: One is none.
    """
    keys = [setting.key for setting in SETTINGS]
    for key in flags:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(keys)}"
            raise ConfigError(f"there is no setting {key!r}", remedy)
