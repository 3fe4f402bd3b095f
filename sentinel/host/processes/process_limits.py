"""What a process needs of its host: open standard streams, and a number of open files."""

from __future__ import annotations

import errno
import os
import resource
import sys

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
