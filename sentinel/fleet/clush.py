"""ClusterShell as the engine: ``clush`` runs the burn-in of each node over ssh.

It runs detached from the terminal on the host where the run was begun. A node that it has reached
goes on if that host goes down; its report comes all the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel.errors import ConfigError
from sentinel.fleet.engine import EngineError, Task, TaskState, run_tool
from sentinel.fleet.records.progress import read_progress
from sentinel.fleet.records.run_file import FleetFolder, FleetRun
from sentinel.host.processes.procfs import boot_id, read_stat

#: A node that was reached by a clush that is gone still works if its progress is not older, in
#: seconds; it is written every 30 s at least.
_FRESH_S = 90.0
#: Linux has shorter command lines unless a limit was raised.
_MAX_COMMAND_BYTES = 2**23
#: How clush reports a command that has failed, as soon as it has ended; with -b only at the end.
_ENDED = re.compile(
    r"^clush: (\S+): (?:exited with exit code|command timeout|.*[Tt]imeout)", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Clush:
    """Runs a fleet by ClusterShell; what :class:`~sentinel.fleet.engine.Engine` describes."""

    #: Where the run's files are, which say more than clush does.
    folder: FleetFolder

    def submit(self, run: FleetRun, folder: FleetFolder, nodes: Sequence[str]) -> FleetRun:
        """Start clush in a session of its own, so that it survives this terminal."""
        is_new = not folder.run_file.exists()
        if run.jobs and self._is_alive(run):
            what = f"clush of {run.id} still works on its other nodes"
            raise EngineError(what, "Wait for its end, or end it: sentinel fleet cancel")
        folder.write(run)
        for node in nodes:  # that of an earlier task, which has ended
            folder.progress(node).unlink(missing_ok=True)
        command = (
            *("clush", "-n", "-f", str(run.batch), "-w", ",".join(nodes)),
            *run.options,
            shlex.join(run.command),
        )
        with (folder.logs / "clush.txt").open("wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                if is_new:
                    folder.run_file.unlink()
                what = f"clush cannot be run: {error.strerror}"
                raise EngineError(what, "Install ClusterShell: apt install clustershell") from None
        submitted = replace(run, jobs=(_identity(process.pid),))
        folder.write(submitted)
        return submitted

    def tasks(self, run: FleetRun) -> Mapping[str, Task]:
        """Conclude from clush and the files of the nodes which tasks are over."""
        folder = self.folder
        alive = self._is_alive(run)
        failed = set(_ENDED.findall(_log_text(folder))) if alive else set()
        return {node: Task(state=_state(folder, node, failed, alive=alive)) for node in run.nodes}

    def advance(self, run: FleetRun, ending: str | None = None) -> None:
        """Do nothing: clush itself keeps its fan-out full."""

    def cancel(self, run: FleetRun) -> None:
        """End clush if it runs here; the nodes see the run's own file."""
        process = _pid(run)
        if process is not None and self._is_alive(run):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGTERM)

    def _is_alive(self, run: FleetRun) -> bool:
        """Check whether clush still runs here, and is that of this folder.

        A user who can write the folder can name any process in ``fleet.json``.
        """
        pid = _pid(run)
        stat = read_stat(pid) if pid is not None else None
        if pid is None or stat is None or not stat.alive:
            return False
        if str(stat.started) != run.jobs[0].rpartition(":")[2]:
            return False
        words = _command_of(pid)
        if not words or words[-1] != shlex.join(run.command):
            return False
        # The second one is that of the interpreter's command line.
        return self.folder.is_of(run) and "clush" in {Path(word).name for word in words[:2]}


def expand_nodes(nodelist: str) -> tuple[str, ...]:
    """Expand ClusterShell's list of nodes, such as ``node[1-16]`` or ``@gpus``.

    Raises:
        EngineError: It is invalid, or ClusterShell is not installed.
        ConfigError: It names no node.
    """
    names = tuple(run_tool(("nodeset", "--expand", nodelist)).split())
    if not names:
        raise ConfigError(f"--nodelist: {nodelist!r} has no node")
    return names


def _state(folder: FleetFolder, node: str, failed: set[str], *, alive: bool) -> TaskState:
    """Conclude the state of one node's task."""
    path = folder.progress(node)
    progress = read_progress(path)
    if node in failed or (progress is not None and progress.state == "ended"):
        return TaskState.OVER
    if alive:
        return TaskState.WAITING if progress is None else TaskState.RUNNING
    with contextlib.suppress(OSError):
        if not folder.report(node).exists() and time.time() - path.stat().st_mtime < _FRESH_S:
            return TaskState.RUNNING
    return TaskState.OVER


def _identity(pid: int) -> str:
    """Name a process of this boot of this host."""
    stat = read_stat(pid)
    return f"{boot_id()}:{pid}:{stat.started if stat is not None else 0}"


def _pid(run: FleetRun) -> int | None:
    """Return the PID of clush, or None if it was started on another host or boot."""
    boot, _, rest = (run.jobs[0] if run.jobs else "").partition(":")
    pid, _, _ = rest.partition(":")
    return int(pid) if boot == boot_id() and pid.isdecimal() else None


def _command_of(pid: int) -> list[str]:
    """Read the words of the command line of a process; empty if it has none."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            data = file.read(_MAX_COMMAND_BYTES)
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.split(b"\0")[:-1]]


def _log_text(folder: FleetFolder) -> str:
    try:
        return (folder.logs / "clush.txt").read_text(errors="replace")
    except OSError:
        return ""
