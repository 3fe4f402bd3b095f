"""The API's responses about settings and sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.protocol.api_types import Outcome, ResponseModel, ResponseType, SessionInfo
from sentinel.protocol.views import described


@dataclass(frozen=True, kw_only=True)
class SettingValue(ResponseType):
    """One setting and its source; without a source, it is the default."""

    text: str
    source: str | None


@dataclass(frozen=True, kw_only=True)
class Settings(ResponseModel):
    """All settings by key, and the overrides for single GPUs by selector."""

    settings: Mapping[str, SettingValue]
    gpus: Mapping[str, Mapping[str, SettingValue]]


@dataclass(frozen=True, kw_only=True)
class SettingsChanged(Outcome):
    """Changed settings, as they are in effect now."""

    settings: Mapping[str, SettingValue] = field(
        default_factory=dict, metadata=described("The values for all GPUs, by key.")
    )
    own: Mapping[str, Mapping[str, SettingValue]] = field(
        default_factory=dict,
        metadata=described("The values of GPUs that have their own, by UUID and key."),
    )
    saved: str | None = field(
        default=None, metadata=described("The file that keeps them, or null if they are not saved.")
    )
    notes: tuple[str, ...] = field(
        default=(), metadata=described("What will override saved values, a sentence each.")
    )


@dataclass(frozen=True, kw_only=True)
class SessionStarted(ResponseModel):
    """A new session: its settings are in effect."""

    session: SessionInfo


@dataclass(frozen=True, kw_only=True)
class Sessions(ResponseModel):
    """All sessions, in the order in which they were started."""

    sessions: tuple[SessionInfo, ...]
