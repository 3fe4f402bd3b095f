"""The settings of a run that differ from the defaults, and where they came from."""

from __future__ import annotations

from typing import Any

from sentinel.config.model import SETTINGS, Config
from sentinel.config.sources import Sources
from sentinel.protocol.commands import Given

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
    found: list[dict[str, Any]] = [
        {"key": value.key, "value": value.text, "source": value.source, "gpu": value.gpu}
        for value in sources.given
        if not value.key.startswith(_OF_SERVICES) and (value.gpu is not None or _differs(value))
    ]
    if fail_fast:
        found.append({"key": "fail-fast", "value": "on", "source": "--fail-fast", "gpu": None})
    return found


def _differs(value: Given) -> bool:
    """Compare a value with the default; for a single GPU, any may differ from that of all."""
    setting = next(setting for setting in SETTINGS if setting.key == value.key)
    return bool(setting.form.parse(value.text) != getattr(Config(), setting.field))
