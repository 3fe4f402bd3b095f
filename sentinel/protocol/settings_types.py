"""The API's responses about settings and sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.protocol.api_types import Outcome, ResponseModel, SessionInfo
from sentinel.protocol.commands import Given
from sentinel.protocol.views import described


@dataclass(frozen=True, kw_only=True)
class Settings(Outcome):
    """Settings as they are in effect: all of them, or those that were changed."""

    settings: tuple[Given, ...] = field(
        metadata=described("Those of single GPUs and of sessions are the last.")
    )
    saved: str | None = field(
        default=None,
        metadata=described("The file that keeps a change, or null if it is not saved."),
    )
    notes: tuple[str, ...] = field(
        default=(), metadata=described("What will override saved values, a sentence each.")
    )

    def get(self, key: str) -> Given | None:
        """Return the value of a setting for all GPUs, or None if there is no such setting."""
        common = (value for value in self.settings if value.gpu is None)
        return next((value for value in common if value.key == key), None)


@dataclass(frozen=True, kw_only=True)
class SessionStarted(ResponseModel):
    """A new session: its settings are in effect."""

    session: SessionInfo


@dataclass(frozen=True, kw_only=True)
class Sessions(ResponseModel):
    """All sessions, in the order in which they were started."""

    sessions: tuple[SessionInfo, ...]
