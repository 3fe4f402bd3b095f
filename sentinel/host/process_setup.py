"""Set up a process: session, signals, names, what the host leaves it, and how it stays small."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import mmap
import os
import re
import resource
import signal
import sys
import termios
import tty
import types
from collections.abc import Iterator
from multiprocessing import reduction
from pathlib import Path
from typing import Any, Protocol

from setproctitle import setproctitle, setthreadtitle

from sentinel.errors import ChildExitCode, ConfigError, ExitCode

#: The short names, of at most 15 characters: the kernel keeps no more (proc(5)). Without one of its
#: own, a process would have the cut beginning of its title.
SENTINEL = "sentinel"
STRESSOR = "sentinel-stress"
STANDBY = "sentinel-spare"
PROBE = "sentinel-probe"
API = "sentinel-api"
DEMO_JOB = "demo-job"

_PR_SET_PDEATHSIG = 1

#: Keeps the working directory out of the search path of an interpreter.
SAFE_PATH = "PYTHONSAFEPATH"

#: Signals that a terminal or a service manager sends to all processes of a group.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")

#: The inode of the host's own PID namespace (PROC_PID_INIT_INO in the kernel).
_HOST_PID_NAMESPACE = 0xEFFFFFFC

#: The first line of a mapping in /proc/self/smaps: start, end, permissions and file.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(/.*)?$")


def set_process_title(title: str, name: str = SENTINEL) -> None:
    """Set the title and the short name of this process; call it in the main thread.

    Args:
        title: What ``ps`` and ``nvidia-smi`` show, as the command line (/proc/PID/cmdline).
        name: What `sentinel status` shows, and ``pgrep`` finds (/proc/PID/comm).
    """
    setproctitle(title)
    setthreadtitle(name)


class InheritedFd(Protocol):
    """A file descriptor that a spawned child inherits: multiprocessing.reduction.DupFd."""

    def detach(self) -> int:
        """Return the descriptor in the child, once."""


class Inherited:
    """A file descriptor that a spawned child gets a duplicate of; ``detach()`` there returns it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (reduction.DupFd(self._fd),)


def _identity(value: object) -> object:
    return value


@contextlib.contextmanager
def group_signals_blocked() -> Iterator[None]:
    """Block the signals of a group, for a child that is spawned meanwhile and is still in it.

    It leaves the group in :func:`setup_child_process`, which discards those that have arrived:
    they are for the supervisor, and would look like a crash of the child.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hang_up_group_on_exit() -> None:
    """Have the kernel send SIGHUP to all processes of the own group once this one has ended.

    The parent-death signal does not reach processes that a workload has forked, and these would
    keep the GPU memory of this one. A session with a controlling terminal hangs up when its leader
    ends: see setsid(2) and tty_ioctl(4). Where there are no pseudo-terminals, only this is missing.
    """
    with contextlib.suppress(OSError, termios.error):
        _master, terminal = os.openpty()  # the first end stays open for the life of this process
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        # A program that asks for a password at /dev/tty must not wait: it cannot open the terminal,
        # and root reads an end of file.
        tty.setraw(terminal)
        modes = termios.tcgetattr(terminal)
        modes[6][termios.VMIN] = 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        fcntl.ioctl(terminal, termios.TIOCEXCL, 0)
        os.close(terminal)


def setup_child_process(parent: int, title: str, name: str = SENTINEL) -> None:
    """Start a session that ends with the parent, ignore SIGINT and set the process title.

    Call it first in the main thread of the child: the parent-death signal follows that thread.
    Standard output is redirected to standard error, so that libraries cannot print into the
    supervisor's output.

    Args:
        parent: The PID of the supervisor.
        title: The title; see :func:`~sentinel.host.process_setup.set_process_title`.
        name: The short name.
    """
    os.setsid()
    if "-P" not in sys.orig_argv:  # it was set for this interpreter, not for programs
        os.environ.pop(SAFE_PATH, None)
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # which discards a blocked one
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # ignored under nohup
    _hang_up_group_on_exit()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)
    end_with_parent(parent)
    os.dup2(2, 1)
    set_process_title(title, name)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends; end now if that has ended.

    Args:
        parent: The PID of the parent.
        number: The signal.

    Raises:
        OSError: The kernel refuses it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(ChildExitCode.ORPHANED)


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


def leave(code: ExitCode, *, clean: bool) -> ExitCode:
    """Return ``code``, or exit with it at once if a process or thread is stuck.

    The interpreter's own exit would wait for that, maybe for ever. Unflushed output is lost then.
    """
    if not clean:
        os._exit(code)
    return code


def is_thread_refused(error: BaseException) -> bool:
    """Check whether an error means that the host refuses a thread: `ulimit -u` shows the limit."""
    return isinstance(error, RuntimeError) and _NO_THREAD in str(error)


def explain_exhaustion(error: BaseException) -> str | None:
    """Explain an error by which the host refuses a resource; None for any other error."""
    if is_thread_refused(error):
        error = OSError(errno.EAGAIN, str(error))
    command = _EXHAUSTED.get(error.errno or 0) if isinstance(error, OSError) else None
    if not isinstance(error, OSError) or command is None:
        return None
    where = f" ({error.filename})" if error.filename else ""
    return f"the host refuses what is needed: {error.strerror}{where}; see `{command}`"


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


def why_processes_are_hidden(host: int = _HOST_PID_NAMESPACE) -> str | None:
    """Explain why NVML may hide foreign processes here, or return None if it lists all.

    In a PID namespace other than the host's, such as a container's, a driver from 535.113 on lists
    only the processes of that namespace, and older ones list PIDs of another namespace.

    Args:
        host: The inode of the host's namespace; another for a simulated host.
    """
    try:
        inode = Path("/proc/self/ns/pid").stat().st_ino
    except OSError as error:
        return f"the PID namespace of this process is unknown: {error}"
    if inode == host:
        return None
    return "this is not the host's PID namespace (a container?)"


def without_ctypes_util() -> contextlib.AbstractContextManager[None]:
    """Replace ctypes.util by a stub that finds no library.

    The real module imports shutil, tempfile and all compressors, a megabyte in the probe. NVML's
    binding does not need it. inotify_simple uses it to find the C library, which every process has
    loaded already: that is what ``CDLL(None)`` returns.
    """
    stub = types.ModuleType("ctypes.util")
    stub.find_library = _find_library  # type: ignore[attr-defined]
    return _replaced("ctypes.util", stub)


def without_rich() -> contextlib.AbstractContextManager[None]:
    """Hide rich, which structlog imports for coloured tracebacks.

    It is 5 of the supervisor's 37 MB, and a third of its start.
    """
    return _replaced("rich", None)


@contextlib.contextmanager
def _replaced(name: str, stub: types.ModuleType | None) -> Iterator[None]:
    """Replace a module that is not loaded yet; the import of None raises ImportError."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = stub  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def _find_library(library: str) -> None:
    """Find nothing."""
    del library


def give_back() -> None:
    """Return what the start of a process needed and its work does not."""
    settle_heap()
    _drop_unused_pages()


def settle_heap() -> None:
    """Return memory that the C library keeps after it was freed, tens of megabytes, to the host.

    What exists is left out of every later search for garbage, which would stop all threads for
    10 ms in a supervisor, and for up to 0.1 s where torch is loaded.
    """
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _drop_unused_pages() -> None:
    """Return the pages of libraries that only their import needed to the page cache.

    They are read again from there when they are needed. With torch they are some 200 MB. Only
    mappings without a page of this process's own are dropped, since such a page would be lost.
    """
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # open() instead of pathlib, whose import takes 0.6 MB of a probe.
    with (
        contextlib.suppress(OSError),
        open("/proc/self/smaps", encoding="ascii", errors="replace") as file,  # noqa: PTH123
    ):
        for start, size in _clean_mappings(file.read()):
            advise(start, size, mmap.MADV_DONTNEED)


def _clean_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield address and size of the read-only mappings of files that have no modified page.

    A modified page is anonymous, or in the swap space.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        head = _MAPPING.match(line)
        if head is not None:
            start, end = int(head[1], 16), int(head[2], 16)
            mapping = (start, end - start) if head[3] in {"r-xp", "r--p"} and head[4] else None
        elif line.startswith("Anonymous:") and line.split()[1] != "0":
            mapping = None
        elif mapping is not None and line.startswith("Swap:"):
            if line.split()[1] == "0":
                yield mapping
            mapping = None
