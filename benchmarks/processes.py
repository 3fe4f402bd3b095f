"""Start the processes of a benchmark, read their output and end them; none outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from benchmarks.host_gpus import Card, Host

Line = dict[str, Any]

#: How long a process may take to load torch on a busy machine and be ready.
TIMEOUT_S = 90.0


#: The prefix of a command that is to see only its own processes.
_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_CONTAINER = (*_NAMESPACE, "--mount", "sh", str(Path(__file__).with_name("container.sh")))
_OWN_LOCKS = ("unshare", "--mount", "sh", str(Path(__file__).with_name("own_locks.sh")))


@dataclass(frozen=True)
class Place:
    """The prefixes of commands that decide where sentinel and newcomers run."""

    sentinel: tuple[str, ...] = ()
    newcomer: tuple[str, ...] = ()


HOST = Place()
#: Names the process whose NVML calls are to hang; see hooks/sitecustomize.py.
HANG_FILE = Path(tempfile.gettempdir(), f"sentinel-benchmark-hang-{os.getpid()}")
_HOOKS = os.pathsep.join([str(Path(__file__).parent / "hooks"), os.environ.get("PYTHONPATH", "")])
#: Sentinel with an NVML whose calls can be made to hang.
HANGING_NVML = Place(sentinel=("env", f"PYTHONPATH={_HOOKS}", f"BENCHMARK_HANG_FILE={HANG_FILE}"))
#: Sentinel in a PID namespace and newcomers outside; the reverse; and newcomers with device nodes
#: of their own as well.
PLACES = {
    "in-namespace": Place(sentinel=_NAMESPACE),
    "from-namespace": Place(newcomer=_NAMESPACE),
    "from-container": Place(newcomer=_CONTAINER),
}

#: The program that starts servers of MPS, if the host has it; servers end with it.
MPS_CONTROL = "nvidia-cuda-mps-control"
HAS_MPS = shutil.which(MPS_CONTROL) is not None


class TooLateError(Exception):
    """An expected event did not happen in time."""


class Program:
    """A process that writes one JSON object per line, and may read lines.

    Args:
        command: The command.
        environment: Additional variables.
        errors: The file for its standard error.
    """

    def __init__(self, command: Sequence[str], environment: Line, errors: TextIO) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.die_with_parent", *command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self.pid = self.process.pid
        self.lines: list[Line] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read_lines, daemon=True)
        self._thread.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            with contextlib.suppress(ValueError), self._changed:
                self.lines.append(json.loads(text))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def send_line(self, line: str) -> None:
        """Write a line to it, unless it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def wait(self, wanted: Callable[[Line], object], within: float, after: int = 0) -> Line:
        """Return the first ``wanted`` line from number ``after`` on.

        Raises:
            TooLateError: There is none ``within`` so many seconds, or the process ended.
        """
        until = time.monotonic() + within
        with self._changed:
            while True:
                for line in self.lines[after:]:
                    if wanted(line):
                        return line
                after = len(self.lines)
                left = until - time.monotonic()
                if left <= 0 or self._ended:
                    how = "ended" if self._ended else f"wrote no such line in {within:.0f} s"
                    raise TooLateError(f"{' '.join(self.command())} {how}")
                self._changed.wait(left)

    def take_lines(self) -> list[Line]:
        """Return the lines since the last call, and forget them: a long run has too many."""
        with self._changed:
            taken, self.lines[:] = self.lines[:], []
        return taken

    def command(self) -> list[str]:
        """Return the command, for messages."""
        arguments = self.process.args
        return list(arguments)[3:] if isinstance(arguments, list) else []

    def ready(self) -> Line:
        """Return its first line, once it is ready."""
        return self.wait(lambda line: line.get("ready"), TIMEOUT_S)

    def end(self, number: signal.Signals = signal.SIGKILL, within: float = 20.0) -> None:
        """Send it signal ``number``, kill it if it does not end, and reap it."""
        self.process.send_signal(number)
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(within)
        self._thread.join(within)


#: The events that start a new stage of a stressor.
STAGES = {
    "stressor.starting",
    "stressor.ready",
    "gpu.yielding",
    "stressor.stopped",
    "stressor.failed",
}


class Sentinel(Program):
    """A sentinel with its usual command line, and its events."""

    def last_of(self, gpu: str) -> str | None:
        """Return the last event about the stressor of a GPU."""
        last = [line for line in self.lines if line.get("gpu") == gpu and line["event"] in STAGES]
        return str(last[-1]["event"]) if last else None

    def holds(self, gpu: str) -> bool:
        """Return whether the stressor of a GPU is ready, by its last event."""
        return self.last_of(gpu) == "stressor.ready"

    def wait_held(self, gpus: Sequence[str], within: float = TIMEOUT_S) -> None:
        """Wait until it holds all of ``gpus``."""
        until = time.monotonic() + within
        for gpu in gpus:
            read = len(self.lines)  # before the check, so that no line is missed
            while not self.holds(gpu):
                self.wait_event("stressor.ready", gpu, until - time.monotonic(), read)
                read = len(self.lines)

    def wait_event(self, name: str, gpu: str, within: float, after: int) -> Line:
        """Return the next event of this name about that GPU."""
        return self.wait(
            lambda line: line["event"] == name and line.get("gpu") == gpu, within, after
        )


class Rig:
    """All processes of a benchmark.

    Args:
        host: The GPUs.
        errors: The file for the standard error of all processes.
        rearm: How long sentinel waits before it takes a GPU again.
        within: A prefix of sentinel's command, whatever the place.

    Attributes:
        socket: The socket of sentinel's API.
    """

    def __init__(self, host: Host, errors: Path, rearm: str, within: Sequence[str] = ()) -> None:
        self.host = host
        self.socket = str(Path(tempfile.mkdtemp(prefix="sentinel-benchmark-")) / "socket")
        self._errors = errors.open("a")
        self._log, self._rearm, self._within = errors, rearm, within
        self._started: list[Program] = []
        self._waiting: dict[tuple[Place, str, str, int], list[Program]] = {}
        self._readers: dict[str, Program] = {}
        self._sentinel: tuple[tuple[Place, str, int, tuple[str, ...]], Sentinel] | None = None
        self._place = HOST
        self._second: Rig | None = None

    # --- processes ---

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Run sentinel and newcomers in ``place``."""
        self._place, before = place, self._place
        try:
            yield
        finally:
            self._place = before

    def second(self) -> Rig:
        """Return the processes of a second sentinel on the same GPUs, which ends with the first.

        The one that is not to use the GPUs has to be paused. Only root can keep their locks apart:
        for another user, the second one is the first one.
        """
        if os.geteuid() != 0:
            return self
        if self._second is None:
            self._second = Rig(self.host, self._log, self._rearm, _OWN_LOCKS)
        return self._second

    def start(
        self, *command: str, cards: Sequence[Card] = (), within: Sequence[str] = ()
    ) -> Program:
        """Start a program of this package, or any other by its full command."""
        is_module = command[0].startswith("bench")
        whole = [*within, *([sys.executable, "-m"] if is_module else []), *command]
        return self._keep(Program(whole, self._environment(cards), self._errors))

    def _keep(self, program: Program) -> Program:
        self._started.append(program)
        return program

    def end(self, program: Program, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process and remove it from the list."""
        program.end(number)
        self._started.remove(program)

    def _environment(self, cards: Sequence[Card]) -> Line:
        # A private socket: benchmarks run side by side, and the host may have a daemon.
        variables = {"SENTINEL_CONFIG": os.devnull, "SENTINEL_SOCKET": self.socket}
        if self.host.simulation is not None:
            variables["SENTINEL_SIM_DIR"] = self.host.simulation
        if cards:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(card.uuid for card in cards)
        return variables

    def reset(self) -> None:
        """End all processes: sentinel by a request, as users do, then the rest at once."""
        self.no_sentinel()
        self._waiting.clear()
        self._readers.clear()
        for program in self._started:
            program.process.kill()
        for program in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(10)
        self._started.clear()

    # --- witnesses ---

    def reader(self, card: Card) -> Program:
        """Return the memory watch of a GPU, one for all races."""
        if card.uuid not in self._readers:
            self._readers[card.uuid] = self.start(
                "benchmarks.memory_watch", "--gpu", card.uuid, *self.simulation_arguments()
            )
            self._readers[card.uuid].ready()
        return self._readers[card.uuid]

    def no_readers(self) -> None:
        """End the memory watches, before costs are measured."""
        for reader in self._readers.values():
            self.end(reader)
        self._readers.clear()

    def simulation_arguments(self) -> list[str]:
        """Return the arguments that select simulated GPUs, if the host has them."""
        return ["--simulation", self.host.simulation] if self.host.simulation else []

    def holder(self, card: Card, *way: str) -> Program:
        """Start another holder of a GPU; returns before it holds anything."""
        way += ("--gpu", card.uuid, *self.simulation_arguments())
        return self.start("benchmarks.baselines", *way, cards=[card])

    # --- newcomers ---

    def expect(self, kind: str, card: Card, ask: int, count: int) -> None:
        """Keep ``count`` loaded newcomers waiting, so that loading disturbs no race."""
        waiting = self._waiting.setdefault((self._place, kind, card.uuid, ask), [])
        while len(waiting) < count:
            waiting.append(self.newcomer(kind, card, ask))

    def newcomer(self, kind: str, card: Card, ask: int, stay: float = 0.0) -> Program:
        """Start one newcomer."""
        arguments = ["--ask", str(ask), "--stay", str(stay)]
        if self.host.simulation is not None:
            arguments += ["--simulated", str(card.index)]
        within = self._place.newcomer
        return self.start("benchmarks.newcomer", kind, *arguments, cards=[card], within=within)

    def next_newcomer(self, kind: str, card: Card, ask: int) -> Program:
        """Return a newcomer that waits for its start."""
        self.expect(kind, card, ask, 1)
        program = self._waiting[self._place, kind, card.uuid, ask].pop(0)
        program.ready()
        return program

    # --- sentinel ---

    def sentinel(
        self, workload: str, cards: Sequence[Card], *flags: str, empty: bool = True
    ) -> Sentinel:
        """Return a sentinel with this workload on these GPUs, which may be running already.

        A new one is started once the GPUs are ``empty``, with further ``flags``.
        """
        wanted = (self._place, workload, len(cards), flags)
        if self._sentinel is not None:
            had, running = self._sentinel
            if had == wanted and running.process.poll() is None:
                return running
            self.no_sentinel()
        if empty:
            self.wait_empty(cards)
        command = [*self._within, *self._place.sentinel]
        command += [sys.executable, "-m", "sentinel", "run", "--json"]
        command += ["--workload", workload]
        # The backoff must not grow, though it yields repeatedly here.
        command += ["--rearm", self._rearm, "--rearm-longest", self._rearm, "--status-every", "1s"]
        command += flags
        if self.host.simulation is not None:
            command += ["--simulate", str(self.host.count)]
        started = Sentinel(command, self._environment(cards), self._errors)
        self._keep(started)
        self._sentinel = (wanted, started)
        return started

    def no_sentinel(self) -> None:
        """End the running sentinel, if there is one, and a second one."""
        if self._second is not None:
            self._second.no_sentinel()
        if self._sentinel is not None:
            (place, *_), running = self._sentinel
            self._sentinel = None
            # unshare --fork ignores SIGTERM and kills its child when it is killed.
            forks = "--fork" in place.sentinel
            self.end(running, signal.SIGKILL if forks else signal.SIGTERM)

    def wait_empty(self, cards: Sequence[Card], within: float = 30.0) -> None:
        """Wait until hardly any memory of the GPUs is used.

        Raises:
            TooLateError: A GPU stays in use.
        """
        until = time.monotonic() + within
        for card in cards:
            while self.host.used(card.uuid) > card.total // 50:
                if time.monotonic() > until:
                    used = self.host.used(card.uuid) >> 20
                    raise TooLateError(f"GPU {card.index} is in use: {used} MiB")
                time.sleep(0.01)

    def wait_used(self, cards: Sequence[Card], size: int) -> None:
        """Wait until so many bytes of each GPU are used.

        Raises:
            TooLateError: A GPU stays below that.
        """
        until = time.monotonic() + TIMEOUT_S
        for card in cards:
            while self.host.used(card.uuid) < size:
                if time.monotonic() > until:
                    raise TooLateError(f"GPU {card.index} is not in use")
                time.sleep(0.002)

    # --- surroundings ---

    @contextlib.contextmanager
    def every_core_busy(self) -> Iterator[None]:
        """Run a busy loop for each core of the host."""
        loop = """print('{"ready": true}', flush=True)\nwhile True:\n    pass"""
        loops = [self.start(sys.executable, "-c", loop) for _ in range(os.cpu_count() or 1)]
        try:
            for running in loops:
                running.ready()
            yield
        finally:
            for running in loops:
                self.end(running)

    @contextlib.contextmanager
    def clients(self, kind: str, *flags: str) -> Iterator[Program]:
        """Have clients use the API all the time: many_clients or monitoring_clients."""
        running = self.start(sys.executable, "-m", f"benchmarks.{kind}", self.socket, *flags)
        try:
            running.ready()
            yield running
        finally:
            self.end(running)

    @contextlib.contextmanager
    def mps(self, card: Card) -> Iterator[tuple[Place, int]]:
        """Run an MPS server on a GPU; yields the place of its clients, and their free bytes."""
        self.no_sentinel()
        self.wait_empty([card])
        with tempfile.TemporaryDirectory(prefix="sentinel-benchmark-mps-") as folder:
            folders = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), folder)
            variables = ("env", *(f"{name}={value}" for name, value in folders.items()))
            control = self.start(*variables, MPS_CONTROL, "-f", cards=[card])
            place = Place(newcomer=variables)
            try:
                with self.at(place):  # the first client has the server started, which stays
                    first = self.newcomer("bare", card, 0)
                    first.ready()
                    first.send_line("go")
                    free = first.wait(lambda line: line.get("got"), TIMEOUT_S)["free"]
                    self.end(first)
                yield place, free
            finally:
                subprocess.run(
                    [MPS_CONTROL],
                    input="quit\n",
                    text=True,
                    env={**os.environ, **folders},
                    capture_output=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
                self.end(control, signal.SIGTERM)

    @contextlib.contextmanager
    def nvidia_smi(self) -> Iterator[None]:
        """Run ``nvidia-smi -l 1``, a common tool."""
        if self.host.simulation is not None:
            yield
            return
        command = ["sh", "-c", "exec nvidia-smi -l 1 >/dev/null"]
        running = self.start(*command)
        try:
            yield
        finally:
            self.end(running)
