"""Where this process runs: are other people's processes shown to it, or hidden?"""

from __future__ import annotations

from pathlib import Path

#: The inode of the host's own PID namespace (PROC_PID_INIT_INO in the kernel).
_HOST_PID_NAMESPACE = 0xEFFFFFFC


def why_processes_are_hidden(
    namespace: Path = Path("/proc/self/ns/pid"), host: int = _HOST_PID_NAMESPACE
) -> str | None:
    """Return why NVML may leave out other people's processes here, or ``None`` where it names all.

    In a PID namespace of its own, as in a container, a driver from 535.113 on lists only the
    processes of that namespace, and older ones list PIDs that mean nothing there.

    Args:
        namespace: Where the kernel says which namespace this is.
        host: The inode of the host's own namespace; another for a pretended host.
    """
    try:
        inode = namespace.stat().st_ino
    except OSError as error:
        return f"nobody can say in which PID namespace this is: {error}"
    if inode == host:
        return None
    return "this is not the host's PID namespace (a container?)"
