"""Find the stressors of this user's daemons, for a command that reads the GPUs itself."""

from __future__ import annotations

from pathlib import Path

from sentinel.client import connect
from sentinel.errors import SentinelError
from sentinel.host.daemons.daemon_lookup import list_daemons

#: A daemon that does not answer must not delay a look at the GPUs.
_TIMEOUT_S = 1.0


def find_stressors(simulated: Path | None) -> dict[int, str]:
    """Ask the running daemons of this user for their stressors.

    Args:
        simulated: The folder of the simulated GPUs, if they are used.

    Returns:
        The socket of the daemon, by the PID of its stressor; none of a daemon without an answer.
    """
    found: dict[int, str] = {}
    for daemon in list_daemons(simulated):
        socket = daemon.socket or ""
        try:
            gpus = connect(socket, timeout=_TIMEOUT_S).status().gpus
        except SentinelError:
            continue
        found.update({gpu.pid: socket for gpu in gpus if gpu.pid is not None})
    return found
