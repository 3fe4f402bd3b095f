"""Occupy GPUs from a script, with a private sentinel that ends with the script."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sentinel.client.client import Client, Status, connect
from sentinel.client.requester import Gpus, number_of, selectors, text_of
from sentinel.client.transport import describe
from sentinel.errors import (
    ConfigError,
    DriverUnavailableError,
    GpuHeldError,
    NoSuchGpuError,
    NotRunningError,
    SentinelError,
    ServiceError,
    TimedOutError,
)
from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.rules import with_time
from sentinel.units import format_duration, format_exit

#: A first torch import from a cold disk took 14 s, and a network file system takes longer.
START_TIMEOUT_S = 180.0

#: The time for the sentinel to release its GPUs before SIGKILL; its own grace is 5 s by default.
GRACE_S = 15.0

#: The command of a sentinel.
SENTINEL = (sys.executable, "-P", "-m", "sentinel")

#: What a private sentinel does without.
_INTERFACES = (
    *("--tcp", "--socket-group", "--metrics", "--history-size"),
    *("--notify-webhook", "--notify-command", "--log-file"),
)

#: The folder of a private sentinel in the folder for temporary files, and the file in it that is
#: locked while it is in use.
_PREFIX = "sentinel-hold-"
_LOCK = "lock"

#: The interval of polls until the GPUs are occupied.
_POLL_S = 0.1

#: A program that sets SIGTERM as its parent-death signal, then becomes the command. Not a
#: ``preexec_fn``, since a script may have threads, with which code after fork() can deadlock.
_LAUNCHER = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGTERM = 1, 15
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # the parent died before prctl()
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

#: The errors for the exit codes of a sentinel that could not start.
_ERRORS: dict[int, type[SentinelError]] = {
    kind.exit_code: kind
    for kind in (ConfigError, NoSuchGpuError, DriverUnavailableError, GpuHeldError)
}

#: What a script does, in place of what the command line advises, by how that begins.
_IN_A_SCRIPT = {
    "Without a GPU, simulate some": "Without a GPU, simulate some: simulate=2",
    "Try: sentinel ": "",  # --help
}
#: The flag in an error that stands for an argument of :func:`hold`.
_ARGUMENT = re.compile(r"^--(memory|workload|gpus|simulate):")


class Hold:
    """Occupied GPUs during a ``with`` block; see :func:`hold`.

    Every method and property raises :class:`~sentinel.errors.NotRunningError` before and after the
    block.

    Args:
        flags: The flags of ``sentinel run`` for the private sentinel.
        environment: Its variables; the default are those of this process.
        in_a_command: Whether a command uses it, whose errors advise its options.
        files: The texts of files in its state folder, by name.
    """

    def __init__(
        self,
        flags: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        in_a_command: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._flags = flags
        self._in_a_command = in_a_command
        self._files = files or {}
        self._environment = os.environ if environment is None else environment
        self._resources = contextlib.ExitStack()
        self._running: _Running | None = None
        self._ended = False

    def __enter__(self) -> Self:
        """Start the private sentinel.

        Raises:
            ConfigError: A flag is not text, or the block runs already.
            ServiceError: The private sentinel cannot be started.
        """
        if self._running is not None:
            raise ConfigError("this hold is in use already", "Call sentinel.hold() for each block.")
        with contextlib.ExitStack() as resources:
            self._running = _start(self._flags, self._environment, self._files, resources)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the private sentinel, and wait until it has ended."""
        self._running, self._ended = None, True
        self._resources.close()

    @property
    def pid(self) -> int:
        """The PID of the private sentinel."""
        return self._require_running().process.pid

    @property
    def client(self) -> Client:
        """The client of the private sentinel."""
        return self._require_running().client

    def status(self) -> Status:
        """Read the state of the private sentinel.

        Raises:
            SentinelError: It ended, with its last output; or it does not answer.
        """
        client = self.client
        self.check()
        try:
            return client.status()
        except SentinelError:
            self.check()  # raises the reason if it has ended
            raise

    def wait_held(self, timeout: float = START_TIMEOUT_S) -> Status:
        """Wait until every GPU is occupied, and return the state.

        Raises:
            TimedOutError: A GPU is not occupied after ``timeout`` seconds; names the reason.
            SentinelError: The sentinel ended; one of the kinds in :mod:`sentinel.errors`.
        """
        return self._wait(timeout, "not held", lambda gpu: gpu.occupied)

    def wait_read(self, timeout: float = START_TIMEOUT_S) -> Status:
        """Wait until every GPU has been read, and return the state; raises as :meth:`wait_held`."""
        return self._wait(timeout, "not read", lambda gpu: gpu.read_s is not None)

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> Status:
        """Wait until the private sentinel answers and has found its GPUs, and return the state.

        Raises:
            TimedOutError: It does not answer after ``timeout`` seconds.
            SentinelError: It ended; one of the kinds in :mod:`sentinel.errors`.
        """
        return self._wait(timeout, "not ready", lambda _: True)

    def _wait(self, timeout: float, what: str, is_done: Callable[[GpuStatus], bool]) -> Status:
        """Wait until the state has GPUs, and each of them is done."""
        until = time.monotonic() + number_of(timeout, "timeout")
        why = "it has not started yet"
        while True:
            with contextlib.suppress(NotRunningError, TimedOutError, ServiceError):
                status = self.status()
                left = [gpu for gpu in status.gpus if not is_done(gpu)]
                if status.gpus and not left:
                    return status
                reasons = (
                    f"GPU {gpu.index}: {with_time(gpu.reason, gpu.rule_until_s)}" for gpu in left
                )
                why = "; ".join(reasons) or why
            self.check()
            if time.monotonic() > until:
                raise TimedOutError(f"{what} within {format_duration(timeout)}: {why}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Check that the private sentinel runs.

        Raises:
            SentinelError: It has ended; has its last output.
        """
        running = self._require_running()
        code = running.process.poll()
        if code is None:
            return
        output = running.errors.read_text(errors="replace").strip()
        output = "\n".join(["", *output.splitlines()[-10:]])
        _, is_error, said = output.rpartition("\nsentinel: ")
        # Anything else, such as a traceback, has its reason at its end.
        what, _, remedy = said.partition("\n") if is_error else (said.strip(), "", "")
        if not self._in_a_command:
            for advice, instead in _IN_A_SCRIPT.items():
                remedy = instead if remedy.startswith(advice) else remedy
            what = _ARGUMENT.sub(r"\1:", what)
        kind = _ERRORS.get(code, ServiceError)
        raise kind(what or f"the private sentinel {format_exit(code)}", remedy)

    def _require_running(self) -> _Running:
        if self._running is not None:
            return self._running
        if self._ended:
            raise NotRunningError("the GPUs are not held any more: the `with` block has ended")
        raise NotRunningError(
            "the GPUs are not held yet", "Write: with sentinel.hold(...) as held: ..."
        )


def hold(
    gpus: Gpus | None = None,
    *,
    memory: str = "88%",
    workload: str = "hold",
    simulate: int | None = None,
    flags: Sequence[str] = (),
) -> Hold:
    """Occupy GPUs during the ``with`` block, and yield each to a foreign process.

    A private sentinel occupies them, without a daemon. It ends with the block, and with this
    process, however that ends. The block starts before they are occupied: see
    :meth:`Hold.wait_held`.

    Args:
        gpus: By index, UUID or its unique prefix, or PCI address; the default is all.
        memory: Per GPU, a share of the free memory, ``"88%"``, or a size, ``"20GiB"``. Of a larger
            size than is free, what is free: ``held`` of a GPU's status is what was taken.
        workload: The workload; ``"hold"`` only holds the memory.
        simulate: The number of simulated GPUs, for a host without GPUs.
        flags: Further flags of ``sentinel run``, such as ``("--util", "50%")``.

    Raises:
        ConfigError: ``gpus`` names no GPU, or an argument is of another type.
        SentinelError: From :meth:`Hold.wait_held` and :meth:`Hold.status`, if the sentinel did not
            start: another one holds a GPU, or there is no such GPU or no driver.

    Returns:
        The context manager, whose block gets the same object.
    """
    command = ["--memory", text_of(memory, "memory"), "--workload", text_of(workload, "workload")]
    selected = selectors(gpus)
    if selected is not None:
        command += ["--gpus", ",".join(selected)]
    if simulate is not None:
        command += ["--simulate", text_of(simulate, "simulate")]
    return Hold([*command, *flags_of(flags)])


def flags_of(flags: object) -> list[str]:
    """Convert a list of flags into texts.

    Raises:
        ConfigError: It is no list, such as one text, or has something else than texts and numbers.
    """
    if isinstance(flags, str) or not isinstance(flags, Iterable):
        what = f"flags: {describe(flags)} is not a list"
        raise ConfigError(what, "Write one such as ('--util', '50%').")
    return [text_of(flag, "flags") for flag in flags]


def private_sentinel(
    flags: Sequence[str],
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Hold:
    """Build a sentinel for this command only, with these flags of ``sentinel run``.

    It ends with its ``with`` block, and with this process, however that ends.
    """
    return Hold(flags, environment, in_a_command=True, files=files)


@dataclass(frozen=True)
class _Running:
    """A started private sentinel."""

    process: subprocess.Popen[bytes]
    client: Client
    #: The file with its standard error.
    errors: Path


def _start(
    flags: Sequence[str],
    variables: Mapping[str, str],
    files: Mapping[str, str],
    resources: contextlib.ExitStack,
) -> _Running:
    """Start a private sentinel, which ends when the resources are closed.

    Raises:
        ConfigError: A flag cannot be an argument of a command.
        ServiceError: It cannot be started.
    """
    # Not the interfaces of the host's daemon, nor a daemon that commands of this user find.
    isolation = ["--private", *(word for flag in _INTERFACES for word in (flag, "off"))]
    command = [*SENTINEL, "run", *isolation, *flags_of(flags)]
    folder, lock = resources.enter_context(temporary_folder())
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = {
        **variables,
        "SENTINEL_SOCKET": str(folder / "sentinel.sock"),
        # Not the folders of the host's daemon.
        "STATE_DIRECTORY": str(folder),
        "LOGS_DIRECTORY": str(folder),
    }
    errors = folder / "stderr"
    child = _Child(command, environment, errors, lock)
    resources.callback(child.end)
    return _Running(child.process, connect(folder / "sentinel.sock"), errors)


@contextlib.contextmanager
def temporary_folder() -> Iterator[tuple[Path, int]]:
    """Create a folder for the block, and remove those that a SIGKILL has left.

    Yields:
        The folder, and the descriptor of its lock: it is in use while any process has that.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _locked(Path(name)) as lock:
        yield Path(name), lock


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Lock a new folder for this process and its child; yield the descriptor for the child."""
    draft = folder / "draft"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(folder / _LOCK)  # it has this name only while it is locked
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's holds that a SIGKILL ended, and no living one."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def remove_folder_of(folder: Path, script: int) -> None:
    """Remove the folder of this private sentinel if its script has ended without doing so.

    Args:
        folder: Its folder.
        script: The PID of the script, which was the parent of this process.
    """
    if os.getppid() != script and folder.name.startswith(_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


class _Child:
    """A child that ends with this process.

    The kernel sends the parent-death signal when the *thread* ends that created the child. So a
    separate thread creates it, and waits for its end.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], errors: Path, lock: int
    ) -> None:
        self._command = command
        self._lock = lock
        self._environment = environment
        self._errors = errors
        self._started = threading.Event()
        self._failure: OSError | ValueError | None = None
        self._thread = threading.Thread(target=self._run, name="sentinel-hold", daemon=True)
        self._thread.start()
        self._started.wait()
        if isinstance(self._failure, ValueError):
            raise ConfigError(
                f"a flag of the private sentinel cannot be an argument: {self._failure}"
            ) from self._failure
        if self._failure is not None:
            raise ServiceError(
                f"the private sentinel cannot be started: {self._failure}"
            ) from self._failure

    def end(self) -> None:
        """Terminate the child, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        self._thread.join(GRACE_S)
        if self._thread.is_alive():
            self.process.kill()
            self._thread.join(GRACE_S)

    def _run(self) -> None:
        """Start the child and wait for its end."""
        launcher = [sys.executable, "-I", "-c", _LAUNCHER, str(os.getpid())]
        try:
            with self._errors.open("ab") as errors:  # its sentinel keeps it small
                self.process = subprocess.Popen(
                    [*launcher, *self._command],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=(self._lock,),  # the folder is in use until the child has ended, too
                    start_new_session=True,  # Ctrl+C is for the script to handle
                )
        except (OSError, ValueError) as error:
            self._failure = error
            return
        finally:
            self._started.set()
        self.process.wait()
