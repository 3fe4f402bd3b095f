"""Reads the settings anew, as the daemon read them when it began: flags, variables, the file."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.config import Given
from sentinel.control import OverrideValues, ServiceSpec, Value
from sentinel.errors import ConfigError
from sentinel.settings import SETTINGS
from sentinel.sources import checked, find_file, gather

__all__ = ["Gathered", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """All that was given, as a Configure has it; ``file`` is the file of it."""

    given: tuple[Value, ...]
    overrides: tuple[OverrideValues, ...]
    file: Path | None


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

    async def gather(self, flags: Mapping[str, str]) -> Gathered:
        """Read all settings, with these flags over the rest.

        Raises:
            ConfigError: A key is none, the file cannot be read, or a value is not allowed.
        """
        # In a thread: the file may be on a disk that takes its time.
        return await asyncio.to_thread(self._gather, flags)

    def _gather(self, flags: Mapping[str, str]) -> Gathered:
        _check(flags)
        home = Path(self._environment.get("HOME") or "/")
        # A file that was found at the start is read again; where there was none, there may be now.
        file = find_file(self._file, self._environment, home)
        sources = gather(flags, self._environment, file)
        checked(sources)
        return Gathered(
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


def _check(flags: Mapping[str, str]) -> None:
    """Refuse keys that are none: a rule that is passed over in silence is worse than an error."""
    keys = [setting.key for setting in SETTINGS]
    for key in flags:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(keys)}"
            raise ConfigError(f"there is no setting {key!r}", remedy)
