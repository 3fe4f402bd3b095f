"""Occupies GPUs from a script, by a sentinel of its own that ends with the script."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.client.client import Client, connect
from sentinel.client.types import Status
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
from sentinel.units import format_duration

#: A first torch import from a cold disk took 14 s, and a network file system takes longer.
PATIENCE = 180.0

#: How long the sentinel may take to let go before it is killed: its grace is 5 s by default.
GRACE = 15.0

#: How a sentinel is run.
SENTINEL = (sys.executable, "-m", "sentinel")

#: How often it is asked how far it is, in seconds.
_EVERY = 0.1

#: Has the kernel send this process SIGTERM when its parent dies, and becomes the command. A process
#: of its own and no ``preexec_fn``, since a script may have threads, which a fork can deadlock.
_TETHER = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGTERM = 1, 15
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # it died before that was set
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

#: What the exit codes of a sentinel that could not begin mean.
_ENDS: dict[int, type[SentinelError]] = {
    2: ConfigError,
    4: NoSuchGpuError,
    5: DriverUnavailableError,
    75: GpuHeldError,
}


class Hold:
    """GPUs that are held, as :func:`hold` gives them.

    Args:
        process: The sentinel that holds them.
        client: Talks to it.
        errors: The file with what it writes to its standard error.
    """

    def __init__(self, process: subprocess.Popen[bytes], client: Client, errors: Path) -> None:
        self._process = process
        self._client = client
        self._errors = errors

    @property
    def pid(self) -> int:
        """The PID of the sentinel that holds them."""
        return self._process.pid

    @property
    def client(self) -> Client:
        """What talks to it."""
        return self._client

    def status(self) -> Status:
        """Return everything that it shows.

        Raises:
            SentinelError: It ended, with what it said last; or it does not answer.
        """
        self.check()
        try:
            return self._client.status()
        except SentinelError:
            self.check()  # the reason, where it ended meanwhile
            raise

    def wait_held(self, timeout: float = PATIENCE) -> Status:
        """Wait until every GPU is occupied, and return what is shown then.

        Raises:
            TimedOutError: One was not, after ``timeout`` seconds; the message says why.
            SentinelError: The sentinel ended; one of the kinds in :mod:`sentinel.errors`.
        """
        until = time.monotonic() + timeout
        why = "it has not begun yet"
        while True:
            with contextlib.suppress(NotRunningError, TimedOutError, ServiceError):
                status = self.status()
                missing = [gpu for gpu in status.gpus if not gpu.occupied]
                if status.gpus and not missing:
                    return status
                why = "; ".join(f"GPU {gpu.index}: {gpu.reason}" for gpu in missing) or why
            self.check()
            if time.monotonic() > until:
                raise TimedOutError(f"not held within {format_duration(timeout)}: {why}")
            time.sleep(_EVERY)

    def check(self) -> None:
        """Do nothing where it runs.

        Raises:
            SentinelError: It has ended; says what it said last.
        """
        code = self._process.poll()
        if code is None:
            return
        said = self._errors.read_text(errors="replace").strip()
        said = "\n".join(said.splitlines()[-10:]).removeprefix("sentinel: ")
        kind = _ENDS.get(code, ServiceError)
        raise kind(said or f"the sentinel that was to hold the GPUs ended with exit code {code}")


@contextlib.contextmanager
def hold(
    gpus: Sequence[str | int] = (),
    *,
    memory: str = "88%",
    workload: str = "hold",
    simulate: int | None = None,
    flags: Sequence[str] = (),
) -> Iterator[Hold]:
    """Occupy GPUs while the ``with`` block lasts, and yield each one to foreign processes.

    They are held by a sentinel of its own, which needs no daemon. It ends with the block, and with
    this process, however that ends. Returns before they are held: see :meth:`Hold.wait_held`.

    Args:
        gpus: By index, UUID or its unique beginning, or PCI address; none means all.
        memory: How much of each: a share of what is free, such as ``"88%"``, or ``"20GiB"``.
        workload: What to do with it; ``"hold"`` does nothing.
        simulate: Pretend so many GPUs, for a host without.
        flags: More flags of ``sentinel run``, such as ``("--util", "50%")``.

    Raises:
        SentinelError: From :meth:`Hold.wait_held` and :meth:`Hold.status`, where it could not
            begin: a GPU is held by another sentinel, there is no such GPU, no driver.
    """
    command = ["--memory", memory, "--workload", workload]
    if gpus:
        command += ["--gpus", ",".join(map(str, gpus))]
    if simulate is not None:
        command += ["--simulate", str(simulate)]
    with own_sentinel([*command, *flags]) as held:
        yield held


@contextlib.contextmanager
def own_sentinel(flags: Sequence[str]) -> Iterator[Hold]:
    """Run a sentinel with these flags of ``sentinel run``, for this process alone.

    It ends with the ``with`` block, and with this process, however that ends.
    """
    # Whatever the host's own daemon has for others.
    alone = ["--tcp", "off", "--socket-group", "off", "--metrics", "off", "--history-size", "off"]
    command = [*SENTINEL, "run", *alone, *flags]
    with tempfile.TemporaryDirectory(prefix="sentinel-hold-") as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "SENTINEL_SOCKET": str(folder / "sentinel.sock"),
            # Not those of a daemon that may run beside it.
            "STATE_DIRECTORY": name,
            "LOGS_DIRECTORY": name,
        }
        keeper = _Keeper(command, environment, folder / "stderr")
        try:
            yield Hold(keeper.process, connect(folder / "sentinel.sock"), folder / "stderr")
        finally:
            keeper.end()


class _Keeper:
    """A child that ends with this process.

    The kernel tells a child of its parent's death when the *thread* ends that made it, so that is a
    thread which does nothing else, and lasts as long as the child.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, command: Sequence[str], environment: dict[str, str], errors: Path) -> None:
        self._command = command
        self._environment = environment
        self._errors = errors
        self._begun = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._keep, name="sentinel-hold", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._failure is not None:
            raise ServiceError(f"no sentinel can be started: {self._failure}") from self._failure

    def end(self) -> None:
        """Have it let go, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        self._thread.join(GRACE)
        if self._thread.is_alive():
            self.process.kill()
            self._thread.join(GRACE)

    def _keep(self) -> None:
        """Start the child and wait for its end."""
        tether = [sys.executable, "-I", "-c", _TETHER, str(os.getpid())]
        try:
            with self._errors.open("wb") as errors:
                self.process = subprocess.Popen(
                    [*tether, *self._command],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,  # Ctrl+C is for the script to handle
                )
        except OSError as error:
            self._failure = error
            return
        finally:
            self._begun.set()
        self.process.wait()
