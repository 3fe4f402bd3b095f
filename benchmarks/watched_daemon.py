"""A daemon with its log, its folders and its processes, as a long run observes them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.costs import census
from benchmarks.host_gpus import Card
from benchmarks.processes import Program, Rig, TooLateError
from sentinel.cli.display.log_reader import follow
from sentinel.host.log_file import MAX_BYTES, MAX_OLD_FILES
from sentinel.protocol.stressor import FailureKind

#: How often the log is looked at, in seconds.
_LOOK_S = 0.02
#: How long a daemon may take to write its first event.
_START_S = 60.0
#: A daemon whose processes are observed: its kinds of process that stay.
LASTING = ("supervisor", "probe", "spare", "service")
#: The most bytes of the log with its older files, and of the history with its journal.
MAX_LOG_BYTES = MAX_BYTES * (MAX_OLD_FILES + 1)
HISTORY_BYTES = 16 * 2**20

#: Events that have no cause in a long run.
_FAILURES = {
    *("stressor.failed", "stressor.fatal", "stressor.unkillable", "standby.failed"),
    *("service.failed", "probe.exited", "gpu.memory_leaked", "log.dropped"),
}

#: What stressors on simulated GPUs import instead of torch.
_STAND_IN = Path(__file__).with_name("torch_stand_in.py")

Event = dict[str, Any]


def is_failure(event: Event) -> bool:
    """Check for an event without a cause in a long run.

    A newcomer that takes the whole GPU while a stressor starts is a cause: no memory is left then.
    """
    if event["event"] == "stressor.failed" and event["kind"] == FailureKind.OUT_OF_MEMORY:
        return False
    return event["event"] in _FAILURES


class WatchedDaemon:
    """A daemon in the foreground that writes its log, as ``sentinel start`` starts it.

    Args:
        rig: The processes of the benchmark; ends this one, too.
        folder: A folder for its state and its log.
        cards: Its GPUs.
        flags: Flags of ``run``.
    """

    def __init__(self, rig: Rig, folder: Path, cards: Sequence[Card], *flags: str) -> None:
        self._rig = rig
        self.state = folder / "state"
        self.runtime = Path(rig.socket).parent
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        variables = [f"STATE_DIRECTORY={self.state}", f"LOGS_DIRECTORY={self.state}"]
        command = [sys.executable, "-m", "sentinel", "run", "--daemon"]
        command += ["--history-size", f"{HISTORY_BYTES}B", *flags]
        if rig.host.simulation is not None:
            paths = [str(_stand_in(folder)), os.environ.get("PYTHONPATH", "")]
            variables.append(f"PYTHONPATH={os.pathsep.join(filter(None, paths))}")
            # Compiled once, not by each stressor.
            variables.append("PYTHONDONTWRITEBYTECODE=")
            command += ["--simulate", str(len(cards))]
        else:
            command += ["--gpus", ",".join(card.uuid for card in cards)]
        self.program: Program = rig.start(*command, within=("env", *variables))
        self._log = self.state / "sentinel.log"
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def pid(self) -> int:
        """The PID of the supervisor."""
        return self.program.pid

    def _follow(self) -> None:
        """Queue each event; the log is rotated meanwhile."""
        until = time.monotonic() + _START_S
        while not self._log.exists() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        for line in follow(self._log, 1000, lambda _: time.sleep(_LOOK_S)):
            with contextlib.suppress(ValueError):
                self._events.put(json.loads(line))

    def events(self, within: float) -> Iterator[Event]:
        """Yield the events that have arrived; wait for the first one ``within`` some seconds.

        Raises:
            TooLateError: The daemon has ended.
        """
        if self.program.process.poll() is not None:
            raise TooLateError(f"the daemon ended with {self.program.process.returncode}")
        with contextlib.suppress(queue.Empty):
            yield self._events.get(timeout=within)
            while True:
                yield self._events.get_nowait()

    def sample(self) -> dict[str, float]:
        """Measure its processes and its folders now."""
        found: dict[str, float] = {"zombies": 0, "children": 0}
        for kind, process in census(self.program).values():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    found["zombies"] += 1
                    continue
                found["children"] += kind != "supervisor"
                if kind in LASTING:
                    found[f"{kind}: USS"] = process.memory_full_info().uss
                    found[f"{kind}: descriptors"] = process.num_fds()
                    found[f"{kind}: threads"] = process.num_threads()
        return found | self._folders()

    def _folders(self) -> dict[str, float]:
        """Count the files and bytes of the state and the runtime folder."""
        found = dict.fromkeys(("files", "bytes", "log: files", "log: bytes", "history: bytes"), 0.0)
        for path in [*self.state.rglob("*"), *self.runtime.rglob("*")]:
            with contextlib.suppress(FileNotFoundError):
                size = path.lstat().st_size
                part = "log: " if path.name.startswith("sentinel.log") else ""
                if path.name.startswith("history"):
                    found["history: bytes"] += size
                    found["files"] += 1
                    continue
                found[f"{part}files"] += 1
                found[f"{part}bytes"] += size
        return found


def cpu_shares(before: Any) -> dict[str, float]:
    """Compute how busy the machine's cores have been since ``before``, a psutil.cpu_times().

    ``steal`` is the time that other virtual machines had: the figures of a run depend on it.
    """
    now = psutil.cpu_times()
    spent = {name: getattr(now, name) - getattr(before, name) for name in now._fields}
    whole = sum(spent.values()) or 1.0
    return {name: round(spent[name] / whole, 3) for name in ("user", "system", "idle", "steal")}


def _stand_in(folder: Path) -> Path:
    """Create a folder from which stressors import the stand-in instead of torch."""
    place = folder / "torch"
    place.mkdir()
    (place / "torch.py").symlink_to(_STAND_IN)
    return place
