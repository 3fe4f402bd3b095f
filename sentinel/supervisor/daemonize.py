"""Starts a daemon that outlives the terminal it was started from, and waits until it answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.host.paths import Places, prepare
from sentinel.supervisor.single_instance import running

#: The command of a daemon, before its flags.
COMMAND = (sys.executable, "-m", "sentinel", "run", "--daemon")
#: How often is looked whether it answers, and how long one answer may take, in seconds.
LOOK_EVERY = 0.05
ANSWER_WITHIN = 2.0
#: How long one that never answered may take to end, in seconds.
END_WITHIN = 20.0
#: How much of what it said last is shown, in lines and bytes.
LAST_LINES = 10
LAST_BYTES = 16_384
#: What the file is called that has what a daemon says before it has one of its own.
_WORDS = "sentinel-words"
#: What a service manager told whoever starts us, and not us.
_OF_THE_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class NotStartedError(SentinelError):
    """A daemon ended before it answered, or never did; with its last words and its exit code."""

    def __init__(self, what: str, remedy: str = "", code: int = ExitCode.USAGE) -> None:
        super().__init__(what, remedy)
        known = code in set(ExitCode) and code != ExitCode.OK
        self.exit_code = ExitCode(code) if known else ExitCode.USAGE


@dataclass(frozen=True, kw_only=True)
class Started:
    """A daemon that runs and answers; ``took`` is how long that took, in seconds."""

    pid: int
    took: float


def start_detached(
    arguments: Sequence[str],
    places: Places,
    wait: float,
    *,
    command: Sequence[str] = COMMAND,
    environ: Mapping[str, str] | None = None,
) -> Started:
    """Start a daemon in a session of its own, without a terminal, and wait until it answers.

    Args:
        arguments: Its flags; paths in them must be absolute, since it has the root as its folder.
        places: Where it will be, as it will find out by itself.
        wait: How long it may take to answer, in seconds.
        command: What is run with these flags.
        environ: All variables; ours by default.

    Raises:
        ConfigError: A folder cannot be used, or there is no process left.
        NotStartedError: It ended, or did not answer in time and was ended.
    """
    prepare(places)
    began = time.monotonic()
    logged = _size(places.log)
    # A file of its own: of two that are started at once, each must find its own last words.
    with _no_mans_file() as words:
        try:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd="/",
                env=_environment(os.environ if environ is None else environ),
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"no daemon can be started: {error.strerror}") from error
        try:
            _await(process, places, began + wait)
        except BaseException:
            _end(process)
            raise
        code = process.returncode
        if code is None:
            process.returncode = 0  # it lives on, and nobody is to wait for it
            return Started(pid=process.pid, took=time.monotonic() - began)
        said = _last(words) or _last_of(places.stderr, 0) or _last_of(places.log, logged)
    said = said or f"It said nothing; its log is {places.log}"
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    raise NotStartedError(f"the daemon {how} before it answered:", said, code)


def ask(
    socket_path: Path, method: str, path: str, body: object = None, timeout: float = ANSWER_WITHIN
) -> tuple[int, dict[str, Any]]:
    """Ask a daemon, and return the status of its answer and what is in it.

    Args:
        socket_path: Where it listens.
        method: What of HTTP.
        path: What is asked for.
        body: Sent as JSON, where it is not ``None``.
        timeout: How long each step may take, in seconds.

    Raises:
        OSError: Nobody listens there, or takes too long.
        ValueError: The answer is no HTTP, or no object in JSON.
    """
    connection = _Connection(socket_path, timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path, body=data, headers=headers)
        response = connection.getresponse()
        answer = json.loads(response.read() or b"{}")
    except http.client.HTTPException as error:
        raise ValueError(f"no answer in HTTP: {error!r}") from error
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")  # noqa: TRY004 - of the daemon's, not of ours
    return response.status, answer


def keep_prints(places: Places) -> int | None:
    """Keep what a detached daemon and its children print, from now on, in ``places.stderr``.

    What was printed before moves there, too. For a daemon that holds the claim: nobody else writes
    to that file. Who was not started by :func:`start_detached` keeps its standard error.

    Returns:
        The descriptor of the file, which :class:`sentinel.host.log_file.RotatingLog` keeps small;
        ``None`` where nothing was done.

    Raises:
        ConfigError: The file cannot be written.
    """
    if not Path("/proc/self/fd/2").readlink().name.startswith(f"memfd:{_WORDS}"):
        return None
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(places.stderr, flags, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{places.stderr} cannot be written: {error.strerror}. Nothing was started.",
            "Make it a file that you can write, or remove it.",
        ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # a full disk
        os.write(file, os.pread(2, LAST_BYTES, 0))
        os.ftruncate(2, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    return 2


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a daemon: ours, with paths that hold in any folder."""
    ours = {name: text for name, text in environ.items() if name not in _OF_THE_MANAGER}
    for name in ("SENTINEL_SIM_DIR", "SENTINEL_CONFIG", "SENTINEL_GOLDENS"):
        text = ours.get(name, "")
        if text and text != "off" and not text.startswith("~/"):
            ours[name] = str(Path(text).absolute())
    # Whoever runs ``python -m sentinel`` finds sentinel, and workloads, in the current folder.
    search = [
        str(Path(entry).absolute()) for entry in ours.get("PYTHONPATH", "").split(":") if entry
    ]
    here = Path.cwd()
    if sys.path and not sys.flags.safe_path and Path(sys.path[0]).absolute() == here:
        search.insert(0, str(here))
    if search:
        ours["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(search))
    return ours


def _await(process: subprocess.Popen[bytes], places: Places, until: float) -> None:
    """Return when the daemon answers or has ended.

    Raises:
        NotStartedError: Time is up.
    """
    while process.poll() is None and not _answers(places, process.pid):
        if time.monotonic() > until:
            raise NotStartedError(
                "the daemon did not answer in time and was ended",
                f"What it did stands in {places.log} and {places.stderr}.",
            )
        time.sleep(LOOK_EVERY)


def _answers(places: Places, pid: int) -> bool:
    """Return whether just this daemon is well."""
    if running(places) != pid:
        return False
    try:
        status, _ = ask(places.socket, "GET", "/v1/health")
    except (OSError, ValueError):
        return False
    return status == http.client.OK


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon that is of no use; its stressors die with it in any case."""
    process.terminate()
    try:
        process.wait(END_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _no_mans_file() -> IO[bytes]:
    """Return a file that has no name and needs no disk."""
    return open(os.memfd_create(_WORDS), "w+b")  # noqa: PTH123 - it has no path


def _size(path: Path) -> int:
    """Return the size of a file in bytes, 0 where there is none."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _last_of(path: Path, begin: int) -> str:
    """Return the last lines of a file that were written after its first ``begin`` bytes."""
    try:
        with path.open("rb") as file:
            return _last(file, begin)
    except OSError:
        return ""


def _last(file: IO[bytes], begin: int = 0) -> str:
    """Return the last lines of an open file."""
    size = os.fstat(file.fileno()).st_size
    start = max(begin if begin <= size else 0, size - LAST_BYTES)
    text = os.pread(file.fileno(), LAST_BYTES, start).decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])
