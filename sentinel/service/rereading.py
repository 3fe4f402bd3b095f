"""Reads the settings anew, as the daemon read them when it began: flags, variables, the file."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.config import Config, Given
from sentinel.control import OverrideValues, ServiceSpec, Value
from sentinel.errors import ConfigError
from sentinel.settings import SETTINGS
from sentinel.sources import checked, find_file, gather

__all__ = ["Gathered", "Settings", "check_keys"]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """All that was given, as a Configure has it; ``file`` is the file of it, ``config`` its sum."""

    given: tuple[Value, ...]
    overrides: tuple[OverrideValues, ...]
    file: Path | None
    config: Config


class Settings:
    """Where this daemon's settings come from.

    Args:
        spec: Has the flags and the file.
        environment: All variables, as the daemon got them.
    """

    def __init__(self, spec: ServiceSpec, environment: Mapping[str, str]) -> None:
        self._file = spec.config
        self._environment = dict(environment)
        self.flags = {value.key: value.text for value in spec.flags}
        self._held: Gathered | None = None

    def take(self, gathered: Gathered, flags: Mapping[str, str]) -> None:
        """Keep what holds from now on, and the flags among it."""
        self._held = gathered
        self.flags = dict(flags)

    async def held(self) -> Gathered:
        """Return what holds: what was taken over last, or else what the daemon began with.

        Raises:
            ConfigError: Nothing was taken over yet, and the file is not what it was.
        """
        if self._held is None:
            self._held = await self.gather(self.flags)
        return self._held

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
        config = checked(sources)
        return Gathered(
            config=config,
            given=_values(sources.given),
            overrides=tuple(
                OverrideValues(
                    selector=override.selector,
                    source=override.source,
                    given=_values(override.given),
                )
                for override in sources.overrides
            ),
            file=file,
        )


def _values(given: Mapping[str, Given]) -> tuple[Value, ...]:
    return tuple(
        Value(key=key, text=value.text, source=value.source) for key, value in given.items()
    )


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
