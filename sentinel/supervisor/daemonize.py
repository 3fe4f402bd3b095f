"""Start a daemon that outlives its terminal, and wait until it answers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.host import registry, systemd
from sentinel.host.event_lines import event_object
from sentinel.host.log_file import RotatingLog
from sentinel.host.paths import SERVICE_FOLDERS, SIMULATED, Places, prepare
from sentinel.host.process_setup import check_file_size, explain_exhaustion
from sentinel.host.registry import running
from sentinel.host.regular_file import open_regular
from sentinel.protocol.events import Event
from sentinel.units import format_exit

#: The command of a daemon, before its flags.
#: Its modules come from what is installed and from PYTHONPATH, never from its working folder.
COMMAND = (sys.executable, "-P", "-m", "sentinel", "run", "--daemon")
#: How often the daemon is checked, and how long one response may take.
_POLL_INTERVAL_S = 0.05
_RESPONSE_TIMEOUT_S = 2.0
#: How long a daemon that never answered may take to exit.
_EXIT_TIMEOUT_S = 20.0
#: How much of its last output is shown.
_MAX_OUTPUT_LINES = 10
_MAX_OUTPUT_BYTES = 16_384
#: The name of the file with the output of a daemon before it has one of its own.
_OUTPUT_NAME = "sentinel-output"


class NotStartedError(SentinelError):
    """A daemon exited before it answered, or never answered; with its last output and exit code."""

    def __init__(self, what: str, remedy: str = "", code: int = ExitCode.USAGE) -> None:
        super().__init__(what, remedy)
        known = code in set(ExitCode) and code != ExitCode.OK
        self.exit_code = ExitCode(code) if known else ExitCode.USAGE


@dataclass(frozen=True, kw_only=True)
class Started:
    """A daemon that runs and answers."""

    pid: int
    #: How long it took to answer, in seconds.
    took: float


def start_detached(
    arguments: Sequence[str],
    places: Places,
    wait: float,
    *,
    command: Sequence[str] = COMMAND,
) -> Started:
    """Start a daemon in a new session, without a terminal, and wait until it answers.

    Args:
        arguments: Its flags; paths in them must be absolute, since its folder is that of its state.
        places: The paths that it will compute by itself.
        wait: How long it may take to answer, in seconds.
        command: The command that takes these flags.

    Raises:
        ConfigError: A folder cannot be used, or no process can be started.
        NotStartedError: It exited, or did not answer in time and was ended.
    """
    check_file_size()
    prepare(places)
    began = time.monotonic()
    logged = _size(places.log)
    # One file for each start: two concurrent starts must not mix up their output.
    with _memory_file() as output:
        try:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=places.state,
                env=_environment(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            why = explain_exhaustion(error) or error.strerror
            raise ConfigError(f"the daemon cannot be started: {why}") from error
        try:
            _await(process, places, began + wait)
        except BaseException as error:
            _end(process)
            if isinstance(error, NotStartedError):
                _keep_reason(places, process.pid, "did not answer in time", error.exit_code)
            raise
        code = process.returncode
        if code is None:
            process.returncode = 0  # it runs on, and is not waited for
            return Started(pid=process.pid, took=time.monotonic() - began)
        text = (
            _reason(_last_of(places.log, logged))
            or _last(output)
            or _last_of(places.stderr, 0)
            or _last_of(places.log, logged)
        )
    text = text or f"It printed nothing; its log is {places.log}"
    how = format_exit(code)
    failure = NotStartedError(f"the daemon {how} before it answered:", text, code)
    _keep_reason(places, process.pid, f"{how}: {text}", failure.exit_code)
    raise failure


def redirect_output(places: Places) -> int | None:
    """Redirect the standard output and error of a detached daemon to ``places.stderr``.

    Earlier output moves there, too. Only the daemon that holds the claim may call this. A process
    that :func:`start_detached` did not start keeps its standard error.

    Returns:
        The descriptor of the file, which
        :class:`sentinel.host.log_file.BoundedOutput` keeps small; None if nothing was
        redirected.

    Raises:
        ConfigError: The file cannot be written.
    """
    output = Path("/proc/self/fd/2").readlink()
    if output == places.stderr:
        return 2  # it was restarted
    if not output.name.startswith(f"memfd:{_OUTPUT_NAME}"):
        return None
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        file = open_regular(places.stderr, flags)
    except OSError as error:
        raise ConfigError(
            f"{places.stderr} cannot be written: {error.strerror}. Nothing was started.",
            "Make it a regular file that you can write, or remove it.",
        ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # a full disk
        os.write(file, os.pread(2, _MAX_OUTPUT_BYTES, 0))
        os.ftruncate(2, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    return 2


def _keep_reason(places: Places, pid: int, reason: str, code: int) -> None:
    """Write why a start failed to the log, where `sentinel logs` finds it."""
    if running(places) is not None:
        return  # the log is that of a daemon that runs
    with contextlib.suppress(OSError, SentinelError), RotatingLog(places.log) as log:
        fields = {"reason": reason, "exit_code": int(code)}
        event = Event(name="sentinel.not_started", at=time.monotonic(), fields=fields)
        log.write(f"{json.dumps(event_object(event, {}))}\n")
        ended = registry.describe_own(places.state, socket=str(places.socket), log=str(places.log))
        registry.take(places.record, replace(ended, pid=pid, started=0)).release()
        registry.link(places.record.absolute(), registry.records_folder(os.environ, os.getuid()))


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a daemon: the inherited one, with absolute paths."""
    environment = {name: text for name, text in environ.items() if name not in systemd.VARIABLES}
    for name in (SIMULATED, "SENTINEL_CONFIG", "SENTINEL_GOLDENS", "SENTINEL_LOG_FILE"):
        text = environment.get(name, "")
        if text and text != "off" and not text.startswith("~/"):
            environment[name] = str(Path(text).absolute())
    for name in SERVICE_FOLDERS:
        folders = [folder for folder in environment.get(name, "").split(":") if folder]
        if folders:
            environment[name] = ":".join(str(Path(folder).absolute()) for folder in folders)
    # ``python -m sentinel`` finds sentinel in the current folder; other modules there stay unknown.
    search = [
        str(Path(entry).absolute())
        for entry in environment.get("PYTHONPATH", "").split(":")
        if entry
    ]
    here = Path.cwd()
    if not sys.flags.safe_path and Path(__file__).parents[2] == here:
        search.insert(0, str(here))
    if search:
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(search))
    return environment


def _await(process: subprocess.Popen[bytes], places: Places, until: float) -> None:
    """Wait until the daemon answers or has exited.

    Raises:
        NotStartedError: The time is up.
    """
    while process.poll() is None and not _answers(places, process.pid):
        if time.monotonic() > until:
            raise NotStartedError(
                "the daemon did not answer in time and was ended",
                f"See {places.log} and {places.stderr}.",
            )
        time.sleep(_POLL_INTERVAL_S)


def _answers(places: Places, pid: int) -> bool:
    """Check that this very daemon answers and is healthy."""
    if running(places) != pid:
        return False
    from sentinel.client.transport import Address, send  # the daemon imports this file, too

    try:
        send(Address(socket=str(places.socket)), "GET", "/v1/health", None, _RESPONSE_TIMEOUT_S)
    except SentinelError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon that failed to start; its stressors end with it in any case."""
    process.terminate()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _memory_file() -> IO[bytes]:
    """Create a file without a name, in memory."""
    return open(os.memfd_create(_OUTPUT_NAME), "w+b")  # noqa: PTH123 - it has no path


def last_reason(places: Places) -> str:
    """Find why the last daemon stopped in the end of its log, or return an empty text."""
    return _reason(_last_of(places.log, 0))


def _size(path: Path) -> int:
    """Read the size of a file in bytes, or 0 if it is missing."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _last_of(path: Path, begin: int) -> str:
    """Read the last lines of a file after its first ``begin`` bytes."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            return _last(file, begin)
    except OSError:
        return ""


def _reason(log: str) -> str:
    """Find the reason of a stop in the last lines of a log, or return an empty text."""
    for line in reversed(log.splitlines()):
        with contextlib.suppress(ValueError, AttributeError):
            event = json.loads(line)
            if event.get("event") == "sentinel.stopping":
                return str(event.get("reason", ""))
    return ""


def _last(file: IO[bytes], begin: int = 0) -> str:
    """Read the last lines of an open file."""
    size = os.fstat(file.fileno()).st_size
    start = max(begin if begin <= size else 0, size - _MAX_OUTPUT_BYTES)
    text = os.pread(file.fileno(), _MAX_OUTPUT_BYTES, start).decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-_MAX_OUTPUT_LINES:])
