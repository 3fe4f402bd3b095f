"""What the host leaves a process: streams, open files, memory, and the processes that it sees."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from pathlib import Path

from sentinel.errors import ConfigError

#: Open files of a supervisor: of its children about 8 for each GPU, and of its log and sockets.
_MIN_OPEN_FILES = 64
_OPEN_FILES_PER_GPU = 16
#: The smallest history, in bytes; the log and the reservations are smaller.
_MIN_FILE_BYTES = 16 * 2**20

#: What a process can run out of, by the error, with the command that shows its limit.
_EXHAUSTED = {
    errno.EMFILE: "ulimit -n",
    errno.ENFILE: "sysctl fs.file-max",
    errno.EAGAIN: "ulimit -u",
    errno.ENOMEM: "free",
    errno.ENOSPC: "df",
    errno.EDQUOT: "quota",
    errno.EFBIG: "ulimit -f",
}
#: In the RuntimeError by which Python reports that the host refuses a thread.
_NO_THREAD = "start new thread"


def open_missing_streams() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next file that is opened takes their number, and receives what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest free number, and children have it, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for the whole process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def check_file_size() -> None:
    """Refuse a limit of the size of files that the log or the history of a daemon would soon reach.

    Raises:
        ConfigError: The limit is lower.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY and soft < _MIN_FILE_BYTES:
        what = f"a process may write {soft:,} bytes to a file here, and a daemon needs"
        raise ConfigError(
            f"{what} {_MIN_FILE_BYTES:,}. Nothing was started.",
            "Raise the limit: ulimit -f, or LimitFSIZE=.",
        )


def allow_open_files(gpus: int) -> None:
    """Raise the limit of open files to what a supervisor of this many GPUs needs.

    Raises:
        ConfigError: The host allows fewer.
    """
    needed = _MIN_OPEN_FILES + _OPEN_FILES_PER_GPU * gpus
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"a process may have {hard} open files here, and {needed} are needed"
        raise ConfigError(
            f"{what}. Nothing was started.", "Raise the limit: ulimit -n, or LimitNOFILE=."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def explain_exhaustion(error: BaseException) -> str | None:
    """Explain an error by which the host refuses a resource; None for any other error."""
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        error = OSError(errno.EAGAIN, str(error))
    command = _EXHAUSTED.get(error.errno or 0) if isinstance(error, OSError) else None
    if not isinstance(error, OSError) or command is None:
        return None
    where = f" ({error.filename})" if error.filename else ""
    return f"the host refuses what is needed: {error.strerror}{where}; see `{command}`"


_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Compute how much memory a new process can take without swapping, or None if unknown.

    That is the least of the kernel's estimate for the host and what the limit of each enclosing
    control group (version 2) leaves, in bytes; pages of files count as free.
    """
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        found.append(_fields(_MEMINFO)["MemAvailable:"] * 1024)
    with contextlib.suppress(OSError, ValueError):
        found += _left_in_groups(_GROUPS, _OWN_GROUP.read_text())
    return min(found, default=None)


def _left_in_groups(root: Path, own: str) -> list[int]:
    """Return what each control group above this process with a limit has left."""
    path = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if path is None:
        return []
    left = []
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        if folder == root.parent:
            break
        with contextlib.suppress(OSError, ValueError, KeyError):
            # "max", which is no number, is no limit.
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            stat = _fields(folder / "memory.stat")
            left.append(limit - used + stat["inactive_file"] + stat["active_file"])
    return left


def _fields(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


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
