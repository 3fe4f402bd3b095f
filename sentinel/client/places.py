"""Where the daemon's socket is, and the log that it writes: by the rules that it goes by itself."""

from __future__ import annotations

import os
from pathlib import Path

from sentinel.errors import AccessDeniedError
from sentinel.runtime import Places, places

__all__ = ["find_log", "find_socket"]

#: Where it is set, simulated GPUs are meant.
SIMULATED = "SENTINEL_SIM_DIR"


def find_socket(given: str | None = None, simulated: Path | None = None) -> str:
    """Return the path of the daemon's socket: the one given, or where a daemon of ours puts it.

    Args:
        given: What a person or a script named.
        simulated: The folder of the simulated GPUs, where those are meant.

    Raises:
        AccessDeniedError: Somebody else made our folder, and what answers there is theirs.
        ConfigError: ``$SENTINEL_SOCKET`` is no absolute path.
    """
    if given is not None:
        return given
    where = _places(simulated)
    folder = where.socket.parent
    # A folder in /tmp that anybody could have made before us. One that was named is their affair.
    if not where.named and folder.exists() and folder.lstat().st_uid not in {0, os.getuid()}:
        raise AccessDeniedError(f"{folder} belongs to somebody else, who may be up to something")
    return str(where.socket)


def find_log(simulated: Path | None = None) -> str:
    """Return the path of the log that a daemon of ours writes."""
    return str(_places(simulated).log)


def _places(simulated: Path | None) -> Places:
    folder = os.environ.get(SIMULATED)
    return places(os.environ, os.getuid(), simulated or (Path(folder) if folder else None))
