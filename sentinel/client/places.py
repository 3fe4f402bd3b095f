"""Where the daemon's socket is, and the log that it writes."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["find_log", "find_socket"]


def find_socket(given: str | None = None) -> str:
    """Return the path of the daemon's socket: the one given, or where a daemon of ours puts it."""
    chosen = given or os.environ.get("SENTINEL_SOCKET")
    return chosen or str(_runtime_folder() / "sentinel.sock")


def find_log() -> str:
    """Return the path of the log that a daemon of ours writes."""
    folder = os.environ.get("LOGS_DIRECTORY", "").partition(":")[0]
    return str(Path(folder or _state_folder()) / "sentinel.log")


def _runtime_folder() -> Path:
    simulated = os.environ.get("SENTINEL_SIM_DIR")
    systemd = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if simulated or systemd:
        return Path(simulated or systemd)
    if os.geteuid() == 0:
        return Path("/run/sentinel")
    user = os.environ.get("XDG_RUNTIME_DIR")
    return Path(user) / "sentinel" if user else Path(f"/tmp/sentinel-{os.getuid()}")  # noqa: S108


def _state_folder() -> Path:
    systemd = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    simulated = os.environ.get("SENTINEL_SIM_DIR")
    if systemd or simulated:
        return Path(systemd or simulated or "")
    if os.geteuid() == 0:
        return Path("/var/lib/sentinel")
    user = os.environ.get("XDG_STATE_HOME", "")
    return Path(user if user.startswith("/") else Path.home() / ".local/state") / "sentinel"
