"""Describe the settings in effect: of the daemon, and of the GPUs that have their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sentinel.api.state.settings_reload import SettingsSnapshot
from sentinel.api.state.snapshots import Views
from sentinel.config.gpu_selection import matching
from sentinel.config.model import SETTINGS
from sentinel.protocol.commands import GivenSetting
from sentinel.protocol.settings_types import Settings, SettingsChanged, SettingValue

_Values = dict[str, SettingValue]


def describe(current: SettingsSnapshot, views: Views) -> Settings:
    """Describe all settings; those for single GPUs by selector, with those of sessions last.

    Args:
        current: The settings that the supervisor has accepted.
        views: Has the sessions.
    """
    gpus: dict[str, _Values] = {}
    for selector, given in _single(current, views):
        before = gpus.pop(selector, {})
        gpus[selector] = {**before, **_values(given)}
    return Settings(settings=_for_all(current), gpus=gpus)


def changed(
    current: SettingsSnapshot,
    views: Views,
    keys: Iterable[str],
    gpus: tuple[str, ...],
    *,
    text: str,
    saved: str | None = None,
    notes: tuple[str, ...] = (),
) -> SettingsChanged:
    """Describe what was changed: what is in effect now, for all GPUs and for those with their own.

    Args:
        current: The settings that the supervisor has accepted.
        views: Has the GPUs and the sessions.
        keys: The settings that were changed.
        gpus: The GPUs for which they were changed; empty for all.
        text: The outcome as a sentence.
        saved: The file that keeps them, or None.
        notes: What will override saved values.
    """
    chosen = tuple(keys)
    common = {key: value for key, value in _for_all(current).items() if key in chosen}
    own: dict[str, _Values] = {}
    for uuid in gpus or tuple(view.uuid for view in views.gpus):
        values = {key: one for key, one in _own(current, views, uuid).items() if key in chosen}
        if gpus:
            own[uuid] = {**common, **values}
        elif values:
            own[uuid] = values
    return SettingsChanged(
        text=text,
        gpus=gpus,
        settings={} if gpus else common,
        own=own,
        saved=saved,
        notes=notes,
    )


def _for_all(current: SettingsSnapshot) -> _Values:
    defaults = {one.key: SettingValue(text=one.default, source=None) for one in SETTINGS}
    return {**defaults, **_values(current.given)}


def _own(current: SettingsSnapshot, views: Views, uuid: str) -> _Values:
    """Return what a GPU has of its own."""
    known = [gpu for gpu in views.known() if gpu.uuid == uuid]
    values: _Values = {}
    for selector, given in _single(current, views):
        if matching(selector, tuple(known)):
            values |= _values(given)
    return values


def _single(
    current: SettingsSnapshot, views: Views
) -> Iterator[tuple[str, tuple[GivenSetting, ...]]]:
    """Yield the settings for single GPUs, each over the ones before, with their selectors."""
    for one in current.overrides:
        yield one.selector, one.given
    for session in views.sessions:
        for uuid in session.gpus if session.suspended is None else ():
            yield uuid, session.given


def _values(given: Iterable[GivenSetting]) -> _Values:
    return {value.key: SettingValue(text=value.text, source=value.source) for value in given}
