"""Follow a fleet run: read what its nodes have written, and ask its engine what is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from sentinel.errors import ConfigError
from sentinel.fleet.clush import Clush
from sentinel.fleet.engine import Engine, EngineError, EngineMissingError, Task, TaskState
from sentinel.fleet.node_run import read_verdict
from sentinel.fleet.records.progress import read_progress
from sentinel.fleet.records.run_file import FleetFolder, FleetRun
from sentinel.fleet.slurm.slurm_engine import Slurm
from sentinel.fleet.status import NodeStatus, merge

T = TypeVar("T")

#: The shortest pause between two looks at a run, in seconds.
MIN_PAUSE_S = 2.0
#: A look takes at most this share of the time, so that the controller of a large cluster is not
#: kept busy by those who only watch.
_MAX_SHARE = 0.05
ENGINES = ("slurm", "clush")


def engine_of(run: FleetRun, folder: FleetFolder) -> Engine:
    """Return the engine of a run that was submitted.

    Raises:
        ConfigError: This version has no such engine.
    """
    if run.engine == "slurm":
        return Slurm(folder)
    if run.engine == "clush":
        return Clush(folder=folder)
    raise ConfigError(f"engine {run.engine!r} is unknown", f"Known are {', '.join(ENGINES)}.")


class FleetFollower:
    """Reads the state of a run again and again.

    Args:
        folder: The folder of the run.
        run: What it has.
        engine: The engine of the run.
    """

    def __init__(self, folder: FleetFolder, run: FleetRun, engine: Engine) -> None:
        self._folder = folder
        #: What it has, as at the last look.
        self.run = run
        self._engine = engine
        #: Why the engine did not answer at the last look, or None.
        self.engine_error: EngineError | None = None
        self._progress = _Files(read_progress)
        self._verdicts = _Files(read_verdict)
        self._runs = _Files(_read_run)
        self._was_over: frozenset[str] = frozenset()
        self._cost_s = 0.0
        self._has_answered = False

    def look(self) -> tuple[NodeStatus, ...]:
        """Read the state of every node.

        Raises:
            EngineMissingError: The engine's commands are not installed here.
        """
        begin = time.monotonic()
        # `fleet resume` in another terminal adds tasks to it.
        self.run = self._runs.read({"": self._folder.run_file}).get("", self.run)
        nodes = self.run.nodes
        tasks = self._tasks()
        # After the engine: a report is written before its task is over.
        progress = self._progress.read({one: self._folder.progress(one) for one in nodes})
        verdicts = self._verdicts.read({one: self._folder.report(one) for one in nodes})
        self._cost_s = time.monotonic() - begin
        return merge(nodes, tasks, progress, verdicts)

    def _is_cancelled(self) -> bool:
        return self._folder.cancelled.exists()

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look."""
        return max(MIN_PAUSE_S, self._cost_s / _MAX_SHARE)

    def _tasks(self) -> Mapping[str, Task] | None:
        """Ask the engine; a task is over only if it is so twice: it may just be requeued."""
        try:
            tasks = self._engine.tasks(self.run)
            if any(task.awaits_turn for task in tasks.values()) and not self._is_cancelled():
                # Also if the task whose turn it was to do so was killed.
                self._engine.advance(self.run)
        except EngineError as error:
            if isinstance(error, EngineMissingError) and not self._has_answered:
                raise  # it never will: this host is none of the cluster's
            self.engine_error = error
            return None
        self.engine_error = None
        self._has_answered = True
        over = frozenset(node for node, task in tasks.items() if task.state is TaskState.OVER)
        sure, self._was_over = over & self._was_over, over
        return {
            node: Task(state=TaskState.RUNNING) if node in over - sure else task
            for node, task in tasks.items()
        }


def _read_run(path: Path) -> FleetRun | None:
    """Read ``fleet.json``; None if it cannot be read at the moment."""
    try:
        return FleetFolder(path=path.parent).read()
    except ConfigError:
        return None


class _Files(Generic[T]):
    """The parsed files of all nodes; a file is read again only when it was replaced.

    Args:
        parse: Reads one file; None if there is nothing to read.
    """

    def __init__(self, parse: Callable[[Path], T | None]) -> None:
        self._parse = parse
        self._known: dict[str, tuple[tuple[int, int, int], T | None]] = {}

    def read(self, paths: Mapping[str, Path]) -> dict[str, T]:
        """Read the files that have changed; return the values of all, by node."""
        found = {}
        for node, path in paths.items():
            try:
                there = path.stat()
            except OSError:  # not written yet, or the disk does not answer: what was known stays
                value = self._known.get(node, (None, None))[1]
            else:
                stamp = (there.st_ino, there.st_mtime_ns, there.st_size)
                known = self._known.get(node)
                value = known[1] if known is not None and known[0] == stamp else self._parse(path)
                self._known[node] = (stamp, value)
            if value is not None:
                found[node] = value
        return found
