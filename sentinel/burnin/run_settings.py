"""The settings of a run that differ from the defaults, and where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.config.build import Given
from sentinel.config.model import SETTINGS, Config
from sentinel.config.setting import Setting
from sentinel.config.sources import Sources

#: Settings of what serves clients, which a burn-in has not; addresses and groups stay out of it.
_OF_SERVICES = ("api.", "access.", "metrics.", "history.")


def recorded_settings(sources: Sources, *, fail_fast: bool = False) -> list[dict[str, Any]]:
    """List the settings whose values differ from the defaults.

    Args:
        sources: The given values.
        fail_fast: Whether a GPU does no more after its first error, which is no setting.

    Returns:
        For each the ``key``, the ``value`` as it was written, its ``source``, such as ``--rearm``,
        and the ``gpu`` that it is for, as it was written; None for all.
    """
    found = list(_of(sources.given, None))
    for override in sources.overrides:
        found += _of(override.given, override.selector)
    if fail_fast:
        found.append({"key": "fail-fast", "value": "on", "source": "--fail-fast", "gpu": None})
    return found


def _of(given: Mapping[str, Given], gpu: str | None) -> Iterator[dict[str, Any]]:
    for setting in SETTINGS:
        value = given.get(setting.key)
        if value is None or setting.key.startswith(_OF_SERVICES):
            continue
        if gpu is not None or _differs(setting, value.text):
            yield {"key": setting.key, "value": value.text, "source": value.source, "gpu": gpu}


def _differs(setting: Setting, text: str) -> bool:
    """Compare a value with the default; for a single GPU, any may differ from that of all."""
    return bool(setting.form.parse(text) != getattr(Config(), setting.field))
