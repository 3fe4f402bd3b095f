"""What distributes the work of a fleet run: what every engine can do, and ClusterShell's.

ClusterShell (``clush``) runs the burn-in of each node over ssh, detached from the terminal on the
host where the run was begun. A node that it has reached goes on if that host goes down; its report
comes all the same.
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
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sentinel.errors import ConfigError, SentinelError
from sentinel.fleet.progress import read_progress
from sentinel.fleet.run_folder import FleetFolder, FleetRun
from sentinel.host.procfs import boot_id, read_stat
from sentinel.units import format_exit

#: The longest wait for a command of an engine, in seconds: a controller that restarts with the
#: state of a large cluster answers after tens of seconds, and Slurm's own commands wait for it.
TOOL_TIMEOUT_S = 60.0
#: Variables by which a user chooses what Slurm's commands print: a job that SQUEUE_STATES hides
#: would be taken for one that is over.
_FILTERS = ("SQUEUE_", "SINFO_", "SCANCEL_")

#: A node that was reached by a clush that is gone still works if its progress is not older, in
#: seconds; it is written every 30 s at least.
_FRESH_S = 90.0
#: Linux has shorter command lines unless a limit was raised.
_MAX_COMMAND_BYTES = 2**23
#: How clush reports a command that has failed, as soon as it has ended; with -b only at the end.
_ENDED = re.compile(
    r"^clush: (\S+): (?:exited with exit code|command timeout|.*[Tt]imeout)", re.MULTILINE
)
#: What a node, or the ssh to it, has printed, without control characters.
_SAID = re.compile(r"^(\S+): (\S[^\x00-\x1f\x7f]{0,199})", re.MULTILINE)


class TaskState(StrEnum):
    """What the engine does with the task of a node."""

    WAITING = "waiting"
    RUNNING = "running"
    #: The engine has no such task any more: it has ended, or was cancelled.
    OVER = "over"
    #: The engine does not answer.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """The task of one node, as the engine sees it."""

    state: TaskState
    #: Why it waits, or how it has ended, in the engine's words; or empty.
    reason: str = ""
    #: The node is down, drained or unknown, so that a waiting task cannot begin.
    node_unavailable: bool = False
    #: Why nothing but an operator lets it begin, since it is held or beyond a limit, and the
    #: command for that; empty if it can begin by itself.
    hold: str = ""
    #: It waits for its turn in this run, until the engine is asked to advance.
    awaits_turn: bool = False


class EngineError(SentinelError):
    """A command of the engine is missing, failed, or did not answer in time."""

    code = "engine"


class EngineMissingError(EngineError):
    """A command of the engine is not installed here."""


class Engine(Protocol):
    """Distributes the work, and knows which task is over."""

    def submit(self, run: FleetRun, folder: FleetFolder, nodes: Sequence[str]) -> FleetRun:
        """Start the task of each of these nodes; write ``fleet.json`` before the first begins.

        Args:
            run: What to run.
            folder: The folder of the run.
            nodes: Those of the run that have no task, or whose task is over.

        Returns:
            The run with the new jobs and tasks.

        Raises:
            EngineError: The engine has refused, and nothing is started.
        """
        ...

    def tasks(self, run: FleetRun) -> Mapping[str, NodeTask]:
        """Query the tasks of all nodes, by node.

        Raises:
            EngineError: The engine does not answer. That says nothing about the tasks.
        """
        ...

    def advance(self, run: FleetRun, ending: str | None = None) -> None:
        """Let further tasks begin, up to the run's batch; for an engine that does not by itself.

        Args:
            run: The run.
            ending: The node whose own task calls this at its end, so that it does not count.

        Raises:
            EngineError: The engine does not answer.
        """
        ...

    def cancel(self, run: FleetRun) -> None:
        """End all tasks; those that are over stay so.

        Raises:
            EngineError: The engine does not answer.
        """
        ...


def run_tool(
    words: Sequence[str],
    text: str = "",
    *,
    timeout_s: float = TOOL_TIMEOUT_S,
    with_errors: bool = False,
) -> str:
    """Run a command of an engine and return its standard output.

    Args:
        words: The command line.
        text: Its standard input.
        timeout_s: How long it may take.
        with_errors: Whether to return its standard error, too.

    Raises:
        EngineError: It is missing, failed, or took too long.
    """
    variables = {key: value for key, value in os.environ.items() if not key.startswith(_FILTERS)}
    try:
        done = subprocess.run(
            words,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.PIPE,
            text=True,
            errors="replace",  # the reason of a node is in any encoding
            env=variables,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        remedy = "Run this where the cluster's commands are installed."
        raise EngineMissingError(f"{words[0]} is not installed on this host", remedy) from None
    except OSError as error:
        raise EngineError(f"{words[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"{words[0]} did not answer in {timeout_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else f"it {format_exit(done.returncode)}"
        raise EngineError(f"{words[0]} failed: {why}")
    return done.stdout


# --- ClusterShell ----------------------------------------------------------------------------


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

    def tasks(self, run: FleetRun) -> Mapping[str, NodeTask]:
        """Conclude from clush and the files of the nodes which tasks are over."""
        folder = self.folder
        alive, text = self._is_alive(run), _log_text(folder)
        failed = set(_ENDED.findall(text)) if alive else set()
        said = dict(_SAID.findall(text))  # the last line of each node
        states = {node: _state(folder, node, failed, alive=alive) for node in run.nodes}
        return {
            node: NodeTask(
                state=state, reason=said.get(node, "") if state is TaskState.OVER else ""
            )
            for node, state in states.items()
        }

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
