"""Detect a PID namespace, in which processes of the host are hidden."""

from __future__ import annotations

from pathlib import Path

#: The inode of the host's own PID namespace (PROC_PID_INIT_INO in the kernel).
_HOST_PID_NAMESPACE = 0xEFFFFFFC


def why_processes_are_hidden(
    namespace: Path = Path("/proc/self/ns/pid"), host: int = _HOST_PID_NAMESPACE
) -> str | None:
    """Explain why NVML may hide foreign processes here, or return None if it lists all.

    In a PID namespace other than the host's, such as a container's, a driver from 535.113 on lists
    only the processes of that namespace, and older ones list PIDs of another namespace.

    Args:
        namespace: The file that identifies the namespace of this process.
        host: The inode of the host's namespace; another for a simulated host.
    """
    try:
        inode = namespace.stat().st_ino
    except OSError as error:
        return f"the PID namespace of this process is unknown: {error}"
    if inode == host:
        return None
    return "this is not the host's PID namespace (a container?)"
