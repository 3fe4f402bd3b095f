"""The two names of a process: its title for ``ps``, and the short one for lists of processes."""

from __future__ import annotations

from setproctitle import setproctitle, setthreadtitle

#: The short names, of at most 15 characters: the kernel keeps no more (proc(5)). Without one of its
#: own, a process would have the cut beginning of its title.
SENTINEL = "sentinel"
STRESSOR = "sentinel-stress"
STANDBY = "sentinel-spare"
PROBE = "sentinel-probe"
API = "sentinel-api"


def set_process_title(title: str, name: str = SENTINEL) -> None:
    """Set the title and the short name of this process; call it in the main thread.

    Args:
        title: What ``ps`` and ``nvidia-smi`` show, as the command line (/proc/PID/cmdline).
        name: What `sentinel status` shows, and ``pgrep`` finds (/proc/PID/comm).
    """
    setproctitle(title)
    setthreadtitle(name)
