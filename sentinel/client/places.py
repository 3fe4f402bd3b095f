"""Where the daemon's socket is, and the log that it writes."""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.errors import AccessDeniedError

__all__ = ["find_log", "find_socket"]


def find_socket(given: str | None = None, simulated: Path | None = None) -> str:
    """Return the path of the daemon's socket: the one given, or where a daemon of ours puts it.

    Args:
        given: What a person or a script named.
        simulated: The folder of the simulated GPUs, where those are meant.

    Raises:
        AccessDeniedError: Somebody else made our folder in /tmp, and what answers there is theirs.
    """
    chosen = given or os.environ.get("SENTINEL_SOCKET")
    return chosen or str(_runtime_folder(simulated) / "sentinel.sock")


def find_log(simulated: Path | None = None) -> str:
    """Return the path of the log that a daemon of ours writes."""
    folder = os.environ.get("LOGS_DIRECTORY", "").partition(":")[0]
    return str(Path(folder or _state_folder(simulated)) / "sentinel.log")


def _runtime_folder(simulated: Path | None) -> Path:
    pretended = simulated or os.environ.get("SENTINEL_SIM_DIR")
    systemd = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if pretended or systemd:
        return Path(pretended or systemd)
    if os.getuid() == 0:
        return Path("/run/sentinel")
    user = os.environ.get("XDG_RUNTIME_DIR", "")
    if user.startswith("/"):
        return Path(user) / "sentinel"
    shared = Path(f"/tmp/sentinel-{os.getuid()}")  # noqa: S108 - the owner is checked
    if shared.exists() and shared.lstat().st_uid != os.getuid():
        raise AccessDeniedError(f"{shared} belongs to somebody else, who may be up to something")
    return shared


def _state_folder(simulated: Path | None) -> Path:
    systemd = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    pretended = simulated or os.environ.get("SENTINEL_SIM_DIR")
    if systemd or pretended:
        return Path(systemd or pretended or "")
    if os.getuid() == 0:
        return Path("/var/lib/sentinel")
    user = os.environ.get("XDG_STATE_HOME", "")
    return Path(user if user.startswith("/") else Path.home() / ".local/state") / "sentinel"
