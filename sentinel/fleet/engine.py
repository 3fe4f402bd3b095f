"""What distributes the work of a fleet run, and what every such engine can do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sentinel.errors import SentinelError
from sentinel.fleet.records.run_file import FleetFolder, FleetRun

#: The longest wait for a command of an engine, in seconds: a controller that restarts with the
#: state of a large cluster answers after tens of seconds, and Slurm's own commands wait for it.
TOOL_TIMEOUT_S = 60.0
#: Variables by which a user chooses what Slurm's commands print: a job that SQUEUE_STATES hides
#: would be taken for one that is over.
_FILTERS = ("SQUEUE_", "SINFO_", "SCANCEL_")


class TaskState(StrEnum):
    """What the engine does with the task of a node."""

    WAITING = "waiting"
    RUNNING = "running"
    #: The engine has no such task any more: it has ended, or was cancelled.
    OVER = "over"


@dataclass(frozen=True, kw_only=True)
class Task:
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

    def tasks(self, run: FleetRun) -> Mapping[str, Task]:
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


def run_tool(words: Sequence[str], text: str = "") -> str:
    """Run a command of an engine and return its standard output.

    Args:
        words: The command line.
        text: Its standard input.

    Raises:
        EngineError: It is missing, failed, or took longer than TOOL_TIMEOUT_S.
    """
    variables = {key: value for key, value in os.environ.items() if not key.startswith(_FILTERS)}
    try:
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",  # the reason of a node is in any encoding
            env=variables,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        remedy = "Run this where the cluster's commands are installed."
        raise EngineMissingError(f"{words[0]} is not installed on this host", remedy) from None
    except OSError as error:
        raise EngineError(f"{words[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"{words[0]} did not answer in {TOOL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        raise EngineError(f"{words[0]} failed: {why}")
    return done.stdout
