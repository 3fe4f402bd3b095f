"""What one node does of a fleet run: its own burn-in, its progress, and its report at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from sentinel.burnin.formats import write_reports
from sentinel.burnin.report import judge_run
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.verdict import Verdict, exit_code
from sentinel.errors import ConfigError, ExitCode
from sentinel.fleet.node_files import check_copy
from sentinel.fleet.progress import ProgressBuilder, write_progress
from sentinel.fleet.run_folder import MAX_REPORT_BYTES, FleetFolder, FleetRun, write_shared
from sentinel.host.paths import SIMULATED
from sentinel.host.regular_file import read_regular
from sentinel.host.simulation import default_folder
from sentinel.units import format_exit

#: How often new events are read, and a cancelled run is noticed, in seconds.
_EVERY_S = 2.0
#: How often the progress is written where nothing has changed, in seconds.
_RENEW_EVERY_S = 30.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: An event is far shorter; the rest of a longer line is dropped.
_BLOCK_BYTES = 2**20


class NodeRun:
    """One node's part of a fleet run.

    Args:
        folder: The folder of the fleet run.
        node: The name of this node in the run.
        environ: The environment of the task.
    """

    def __init__(self, folder: FleetFolder, node: str, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._node = node
        self._environ = environ
        self._own = RunFolder(path=folder.node(node).absolute())
        self._events = ProgressBuilder()
        self._read = 0
        self._written: tuple[object, ...] = ()
        self._written_at = float("-inf")
        #: The last line that the burn-in has written to its standard error.
        self._complaint = ""
        self._wake = threading.Event()
        self._ends = False
        # Slurm counts how often it has started a task again.
        self._attempt = 1 + int(environ.get("SLURM_RESTART_COUNT") or 0)

    def run(self) -> int:
        """Burn this node in, or go on with what an earlier task of it began.

        Returns:
            The exit code of the burn-in.

        Raises:
            ConfigError: The folder has no run, the node is not part of it, or a file cannot be
                written.
        """
        run = self._folder.read()
        if self._node not in run.nodes:
            what = f"{self._folder.path}: node {self._node} is not one of this run"
            raise ConfigError(what, "Give its name in the run: --node NAME")
        if self._folder.cancelled.exists():
            return int(ExitCode.INCOMPLETE)
        if self._is_final():  # the task was requeued at its very end
            return self._publish(run, None)
        try:
            check_copy(self._folder, run)
        except ConfigError as error:
            code, note = int(error.exit_code), f"the burn-in did not begin: {error.what}"
            self._write_progress("ended", exit_code=code, note=note)
            raise
        with self._signals():
            process = subprocess.Popen(
                self._words(run),
                env=self._environment(run),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            code = self._follow(process)
            # Slurm's SIGTERM to all processes of a task may come after it has ended the burn-in.
            return self._publish(run, code)

    def _words(self, run: FleetRun) -> list[str]:
        """Build the command line of the node's own burn-in."""
        where = ["--plan", str(self._folder.plan.absolute()), "--report", str(self._own.path)]
        if self._own.header.exists():
            where = ["--resume", str(self._own.path)]
        elif run.expectation_hash is not None:
            where += ["--expect", str(self._folder.expectation.absolute())]
        simulate = [] if run.simulate is None else ["--simulate", str(run.simulate)]
        flags = (("--fail-fast", run.fail_fast), ("--strict", run.strict))
        more = [*simulate, *(flag for flag, given in flags if given)]
        if run.thresholds_hash is not None:
            more = [*more, "--thresholds", str(self._folder.thresholds.absolute())]
        return [sys.executable, "-P", "-m", "sentinel", "burnin", *where, *more]

    def _environment(self, run: FleetRun) -> dict[str, str]:
        """Build the environment of the burn-in.

        Without allocated GPUs, Slurm may hide all of them from CUDA. Those of a simulation are of
        this node alone, also where nodes share their temporary files.
        """
        found = dict(self._environ)
        if not found.get("SLURM_JOB_GPUS"):
            found.pop("CUDA_VISIBLE_DEVICES", None)
        if run.simulate is not None:
            found[SIMULATED] = str(default_folder() / self._node)
        return found

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note a request to end; the burn-in gets it from here."""

        def note(_number: int, _frame: FrameType | None) -> None:
            self._ends = True
            self._wake.set()

        before = {number: signal.signal(number, note) for number in _ENDS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _follow(self, process: subprocess.Popen[bytes]) -> int:
        """Write the progress until the burn-in has ended; end it on request."""
        ended = threading.Thread(target=self._wait_for, args=(process,), daemon=True)
        ended.start()
        # Not the same thread: a child that cannot be killed keeps the pipe open.
        threading.Thread(target=self._copy_errors, args=(process,), daemon=True).start()
        asked = False
        while True:
            is_over = not ended.is_alive()
            self._read_events()
            self._write_progress("running" if self._own.header.exists() else "starting")
            if is_over:
                return process.returncode
            if not asked and (self._ends or self._folder.cancelled.exists()):
                # SIGINT: it ends a burn-in in an orderly way, also one that a daemon does. A second
                # one would end it at once, and SIGTERM, which Slurm sends to all processes of a
                # task, asks for the same as the first.
                process.send_signal(signal.SIGINT)
                asked = True
            self._wake.wait(_EVERY_S)
            self._wake.clear()

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        """Wake the main thread at the end of a process."""
        process.wait()
        self._wake.set()

    def _copy_errors(self, process: subprocess.Popen[bytes]) -> None:
        """Copy the standard error of a process to this one's, and keep its last line."""
        assert process.stderr is not None  # noqa: S101 - as asked for
        for line in process.stderr:
            text = line.decode(errors="replace").strip()
            sys.stderr.write(f"{text}\n")
            if text.startswith("sentinel: ") and not text.startswith("sentinel: warning: "):
                self._complaint = text.removeprefix("sentinel: ")

    def _read_events(self) -> None:
        """Take the events that were recorded since the last call."""
        try:
            with self._own.events.open("rb") as file:
                file.seek(self._read)
                while data := file.read(_BLOCK_BYTES):
                    whole, newline, _ = data.rpartition(b"\n")
                    if not newline:
                        return
                    self._read += len(whole) + 1
                    file.seek(self._read)
                    for line in whole.split(b"\n"):
                        with suppress(ValueError):
                            self._events.take(json.loads(line))
        except OSError:
            return  # it is not there yet

    def _write_progress(self, state: str, **more: Any) -> None:
        """Write the progress if it has changed, and now and then if not.

        A shared disk that is not there for a while must not end the burn-in.
        """
        now = datetime.now().astimezone()
        progress = self._events.progress(self._node, state, now, attempt=self._attempt, **more)
        known = tuple(value for key, value in vars(progress).items() if key != "time")
        if known == self._written and time.monotonic() < self._written_at + _RENEW_EVERY_S:
            return
        with suppress(ConfigError):
            write_progress(self._folder.progress(self._node), progress)
            self._written, self._written_at = known, time.monotonic()

    def _is_final(self) -> bool:
        """Check whether the burn-in has ended with a verdict that no resumption would change."""
        verdict = read_verdict(self._own.report)
        return verdict is not None and verdict is not Verdict.INCOMPLETE

    def _publish(self, run: FleetRun, code: int | None) -> int:
        """Copy the report to its place in the fleet's folder; judge a run that was cut off first.

        Args:
            run: What is run.
            code: The exit code of the burn-in, or None if it has ended before.
        """
        report = self._own.report
        note = None
        why = self._complaint or f"it {format_exit(code or 0)}"
        if not self._own.header.exists():
            note = f"the burn-in did not begin: {why}"
        elif code is not None and (not report.exists() or _is_older(report, self._own.header)):
            # It was killed, or refused to go on: what it has recorded is judged as it is.
            note = f"the burn-in was cut off, and judged as it is: {why}"
            write_reports(self._own, judge_run(self._own))
        elif code == ExitCode.USAGE and self._complaint:
            note = f"the burn-in did not go on: {self._complaint}"
        verdict = read_verdict(report)
        if verdict is not None:
            write_shared(self._folder.report(self._node), report.read_text().rstrip("\n"))
            code = (
                code if code == ExitCode.UNKILLABLE else int(exit_code(verdict, strict=run.strict))
            )
        code = int(ExitCode.INCOMPLETE) if code is None else code
        self._read_events()
        self._write_progress("ended", exit_code=code, note=note)
        return code


def read_verdict(path: Path) -> Verdict | None:
    """Read the verdict of a report; None if it is missing or invalid."""
    try:
        return Verdict(json.loads(read_regular(path, MAX_REPORT_BYTES))["verdict"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def node_name(run: FleetRun, environ: Mapping[str, str]) -> str:
    """Find the name of this host in a run: that of Slurm, or its own, maybe without the domain.

    Raises:
        ConfigError: It is none of the run's nodes.
    """
    host = os.uname().nodename
    names = [environ.get("SLURMD_NODENAME") or host, host, host.partition(".")[0]]
    for name in names:
        if name in run.nodes:
            return name
    raise ConfigError(f"{names[0]} is not a node of run {run.id}", "Give its name: --node NAME")


def _is_older(path: Path, other: Path) -> bool:
    return path.stat().st_mtime_ns < other.stat().st_mtime_ns
