"""Verbs for sessions: settings of some GPUs under a name, laid over the daemon's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sentinel.client.requester import Gpus, Requester, selectors
from sentinel.protocol.api_types import Outcome, SessionInfo
from sentinel.protocol.settings_types import Sessions, SessionStarted


class SessionVerbs(Requester):
    """The verbs for sessions."""

    def sessions(self) -> tuple[SessionInfo, ...]:
        """List all sessions, in the order in which they were started."""
        return self.fetch(Sessions, "GET", "/v1/sessions").sessions

    def start_session(
        self,
        name: str,
        gpus: Gpus,
        settings: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> SessionInfo:
        """Give GPUs settings of their own, until the session ends; it outlives the daemon.

        The same call again changes nothing.

        Args:
            name: The name: letters, digits and ``._:-``.
            gpus: The GPUs, of those that the daemon has; each is in one session at most.
            settings: Settings by key, such as ``{"workload": "hold"}``; those that a single GPU may
                have. The daemon's apply for all others.
            seconds: The duration; the default is until :meth:`stop_session`.

        Raises:
            ConfigError: A setting is invalid, or a single GPU cannot have it.
            NoSuchGpuError: The daemon does not have a GPU.
            ConflictError: There is a session of this name, or another one has a GPU.
        """
        body: dict[str, Any] = {"name": name, "gpus": selectors(gpus) or []}
        body["settings"] = dict(settings or {})
        if seconds is not None:
            body["seconds"] = seconds
        return self.fetch(SessionStarted, "POST", "/v1/sessions", body).session

    def stop_session(self, name: str) -> Outcome:
        """End a session: its GPUs have the daemon's settings again.

        Raises:
            ServiceError: There is no session of this name.
        """
        return self.fetch(Outcome, "DELETE", f"/v1/sessions/{quote(name, safe='')}")
