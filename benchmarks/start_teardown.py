"""How late a starting stressor frees its memory after SIGKILL; see README.md."""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from statistics import median

from benchmarks import main_thread_trace
from benchmarks.driver_calls import CALLS
from benchmarks.handover_race import Races
from benchmarks.measuring import add_machine, add_options, rig_of
from benchmarks.processes import TIMEOUT_S, Program, Rig, TooLateError
from benchmarks.report import machine_line, markdown
from benchmarks.results import Record, Results
from benchmarks.teardown import kill_and_watch
from sentinel.config.specs import parse_workload
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.shared_memory import STRESSOR_STAMPS, Stamps
from sentinel.protocol.stressor import (
    STRESSOR_MESSAGES,
    Activate,
    CreatingContext,
    Failed,
    Lease,
    MemoryTarget,
    Prepared,
    Ready,
    StandbySpec,
    StressorSpec,
)
from sentinel.stressor.main import run_standby
from sentinel.supervisor.child_process import Child

WORKLOADS = ("units", "memtest", "units:plan=gather", "pulse", "links", "gemm", "elementwise")
#: The moment of the kill: after the start, and at most so late after Ready, in seconds.
_AFTER_START_S, _AFTER_READY_S = 0.2, 0.2
#: The moments of a call's kill, once its program holds the GPU, in seconds.
_CALLS_S = (0.1, 0.4)
#: How long before the kill a newcomer comes, in seconds: evidence is seen and acted on within it.
_COMES_BEFORE_S = (0.04, 0.085)
_LEASE_S, _RENEW_EVERY_S = 5.0, 0.3
_SHARE, _CHUNK_BYTES = 0.88, 512 * 2**20
#: Processes that are loaded at the same time.
_AHEAD = 4
#: How many queues of each kind the driver creates, as these variables ask for.
_QUEUES = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS")
_NEWCOMER = "brief"
_FOLDER = "/dev/shm"  # noqa: S108 - a trace must not wait for a disk
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def traced_standby(spec: StandbySpec, channel: socket.socket, parent: int, path: str) -> None:
    """Run as a standby stressor that traces itself."""
    main_thread_trace.begin(Path(path))
    run_standby(spec, channel, parent)


class Stressor:
    """A standby stressor that becomes the stressor of a GPU.

    Args:
        path: The file of its trace.
        queues: How many queues it lets the driver create.
    """

    def __init__(self, path: Path, queues: int) -> None:
        main_thread_trace.create(path)
        self._path = path
        self.queues = queues
        environment = _ENVIRONMENT | dict.fromkeys(_QUEUES, str(queues))
        self._child = Child(traced_standby, StandbySpec(), (str(path),), environment)
        self._stamps = Stamps.create(STRESSOR_STAMPS)
        self._renewed_at = float("inf")
        self.pid = self._child.pid
        #: The times and names of the stages of its start.
        self.stages: list[tuple[float, str]] = []

    def start(self, rig: Rig, workload: str, *, self_watch: bool) -> float:
        """Start on the first GPU once it is loaded; return the time."""
        self.wait(Prepared)
        card = rig.host.cards[0]
        name, options = parse_workload(workload)
        spec = StressorSpec(
            gpu=Gpu(
                uuid=card.uuid,
                index=card.index,
                name=card.name,
                pci_bus_id="",
                memory_total=card.total,
            ),
            memory=MemoryTarget(share=_SHARE),
            chunk=_CHUNK_BYTES,
            workload=name,
            options=options,
            lease=_LEASE_S,
            inject_faults=True,
            simulation=rig.host.simulation,
            self_watch=self_watch,
        )
        self.stages.clear()
        began_at = time.monotonic()
        self._child.send(Activate(spec=spec), [self._stamps.fd])
        self._renewed_at = 0.0
        return began_at

    def wait(self, kind: type, within: float = TIMEOUT_S) -> None:
        """Wait for a message.

        Raises:
            TooLateError: It did not come, or the stressor failed.
        """
        if not self.follow(time.monotonic() + within, kind):
            raise TooLateError(f"no {kind.__name__}: {self.stages}")

    def follow(self, until: float, kind: type | None = None) -> bool:
        """Renew the lease and note messages until a moment, or until one of ``kind``."""
        data = b""
        while (now := time.monotonic()) < until:
            if now - self._renewed_at > _RENEW_EVERY_S:
                self._renewed_at = now
                self._child.send(Lease(seconds=_LEASE_S))
            if not select.select([self._child.channel], [], [], min(0.1, until - now))[0]:
                continue
            with suppress(ConnectionError):
                data = self._child.channel.recv(MAX_DATAGRAM_BYTES)
            if not data:
                self.stages.append((time.monotonic(), "ended"))
                break
            message = decode(data, STRESSOR_MESSAGES)
            if isinstance(message, Failed):
                raise TooLateError(message.reason)
            if isinstance(message, (CreatingContext, Ready)) or hasattr(message, "stage"):
                stage = str(getattr(message, "stage", type(message).__name__))
                self.stages.append((time.monotonic(), stage))
            if kind is not None and isinstance(message, kind):
                return True
        _sleep_until(until if kind is None else 0.0)
        return False

    def trace(self) -> list[tuple[float, str]]:
        """Read the positions of its main thread."""
        return main_thread_trace.read(self._path)

    def close(self) -> None:
        """Kill it and remove what it has left."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.process.join(TIMEOUT_S)
        self._child.channel.close()
        self._stamps.close()
        self._path.unlink(missing_ok=True)


@dataclass
class Trials:
    """Kills on the first GPU of a rig.

    Attributes:
        rig: The processes.
        folder: The folder of the traces.
        newcomers: Whether a newcomer comes before each kill.
        running_s: How long after Ready the kill comes at most; None for one at any moment.
        queues: The numbers of the driver's queues, in turn.
    """

    rig: Rig
    folder: Path
    newcomers: bool
    running_s: float | None
    queues: Sequence[int]

    def __post_init__(self) -> None:
        """Load the first processes."""
        self._card = self.rig.host.cards[0]
        self._races = Races(self.rig, {})
        if self.newcomers:
            self._races.ask(_NEWCOMER, self._card)
        self._standbys: list[Stressor] = []
        self._number = 0
        self._programs: list[Program] = []
        self._ready_s: dict[str, float] = {}

    def close(self) -> None:
        """End the standby stressors."""
        for standby in self._standbys:
            standby.close()

    def start(self, workload: str) -> tuple[str, Record]:
        """Kill a stressor at a random moment of its start; the first one after it is ready."""
        while len(self._standbys) < _AHEAD:
            queues = self.queues[self._number % len(self.queues)]
            self._number += 1
            self._standbys.append(Stressor(self.folder / str(self._number), queues))
        self.rig.wait_empty([self._card])
        with closing(self._standbys.pop(0)) as stressor:
            if self.running_s is not None:
                name = f"running {workload}, queues {stressor.queues}"
                return name, self._running(stressor, workload, self.running_s)
            if workload not in self._ready_s:
                return f"ready {workload}", self._to_ready(stressor, workload)
            return f"start {workload}", self._in_start(stressor, workload)

    def _to_ready(self, stressor: Stressor, workload: str) -> Record:
        empty = self._used()
        began_at = stressor.start(self.rig, workload, self_watch=True)
        stressor.wait(Ready)
        ready_at = stressor.stages[-1][0]
        self._ready_s[workload] = ready_at - began_at
        stressor.follow(ready_at + _AFTER_READY_S)
        record = self._kill(stressor.pid, empty, None)
        return {
            "stages": [(round(at - began_at, 3), name) for at, name in stressor.stages],
            "profile": main_thread_trace.profile(stressor.trace(), began_at),
            **record,
        }

    def _in_start(self, stressor: Stressor, workload: str) -> Record:
        newcomer = self._newcomer()
        empty = self._used()
        # Its own kill would come before the one that is measured.
        began_at = stressor.start(self.rig, workload, self_watch=newcomer is None)
        latest_s = self._ready_s[workload] + _AFTER_READY_S
        moment_s = random.uniform(_AFTER_START_S, max(_AFTER_START_S, latest_s))
        stressor.follow(began_at + moment_s)
        stage = stressor.stages[-1][1] if stressor.stages else ""
        record = self._kill(stressor.pid, empty, newcomer, stressor.follow)
        positions = [text for at, text in stressor.trace() if at <= record["killed_at"]]
        return {"moment_s": moment_s, "stage": stage, "positions": positions[-6:], **record}

    def _running(self, stressor: Stressor, workload: str, latest_s: float) -> Record:
        newcomer = self._newcomer()
        empty = self._used()
        stressor.start(self.rig, workload, self_watch=False)
        stressor.wait(Ready)
        moment_s = random.uniform(0.0, latest_s)
        stressor.follow(stressor.stages[-1][0] + moment_s)
        return {
            "moment_s": moment_s,
            **self._kill(stressor.pid, empty, newcomer, stressor.follow),
        }

    def call(self, name: str) -> tuple[str, Record]:
        """Kill a program that repeats a kind of call."""
        while len(self._programs) < _AHEAD:
            self._programs.append(self.rig.start("benchmarks.driver_calls", cards=[self._card]))
        program, newcomer = self._programs.pop(0), self._newcomer()
        program.ready()
        self.rig.wait_empty([self._card])
        empty = self._used()
        program.send_line(name)
        program.wait(lambda line: "holding" in line, TIMEOUT_S)
        time.sleep(random.uniform(*_CALLS_S))
        record = self._kill(program.pid, empty, newcomer)
        self.rig.end(program)
        return f"call {name}", record

    def _newcomer(self) -> Program | None:
        if not self.newcomers:
            return None
        return self._races.newcomer(_NEWCOMER, self._card, _AHEAD)

    def _used(self) -> int:
        return self.rig.host.used(self._card.uuid)

    def _kill(
        self,
        pid: int,
        empty: int,
        newcomer: Program | None,
        follow: Callable[[float], object] | None = None,
    ) -> Record:
        """Let a newcomer come, if there is one, and kill the holder of the GPU soon after."""
        held = self._used()
        if newcomer is not None:
            newcomer.send_line("go")
            until = time.monotonic() + random.uniform(*_COMES_BEFORE_S)
            (follow or _sleep_until)(until)
        there = newcomer is not None
        killed_at = time.monotonic()
        record = kill_and_watch(
            self.rig.host, self._card, pid, empty=empty, held=held, newcomer=there
        )
        if newcomer is not None:
            record["newcomer"] = self._races.outcome(_NEWCOMER, self._card, newcomer)
        return {"killed_at": killed_at, **record}


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def table(results: Results) -> str:
    """Render a row for each cell: how late its memory and its newcomers came."""
    rows = []
    for cell in dict.fromkeys(str(one["cell"]) for one in results.records):
        trials = [one for one in results.of(cell) if "exit_s" in one]
        if not trials:
            continue
        came = [one["newcomer"] for one in trials if "newcomer" in one]
        times = [
            [one[name] * 1e3 for one in trials if one.get(name) is not None]
            for name in ("first_free_s", "all_free_s", "exit_s")
        ]
        spread = [f"{median(ms):.0f} / {max(ms):.0f} ms" if ms else "-" for ms in times]
        got = f"{sum(bool(one.get('got')) for one in came)} of {len(came)}" if came else "-"
        rows.append([cell, str(len(trials)), *spread, got])
    head = ["killed", "trials", "first free byte, median / worst", "all free", "exit", "newcomers"]
    return "\n".join([machine_line(results), "", markdown(head, rows)])


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_teardown", description=__doc__
    )
    add_options(parser, results="start-teardown.jsonl")
    parser.add_argument("--budget", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=10**9, metavar="N", help="of each name")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="these workloads, or kinds of call"
    )
    parser.add_argument(
        "--running", type=float, metavar="SECONDS", help="kill at most so long after Ready instead"
    )
    parser.add_argument(
        "--queues",
        type=int,
        nargs="+",
        default=(1,),
        metavar="N",
        help="have the driver create so many queues of each kind, in turn",
    )
    parser.add_argument("--newcomers", action="store_true", help="one comes before each kill")
    parser.add_argument(
        "--calls", action="store_true", help="kill programs that repeat one kind of call"
    )
    return parser.parse_args()


def run(given: argparse.Namespace, rig: Rig, folder: Path) -> Iterator[tuple[str, Record]]:
    """Yield trials in turn until the budget is used up."""
    deadline = time.monotonic() + given.budget
    trials = Trials(rig, folder, given.newcomers, given.running, given.queues)
    with closing(trials):
        run_trial = trials.call if given.calls else trials.start
        names: Sequence[str] = given.only or (tuple(CALLS) if given.calls else WORKLOADS)
        for name in chain.from_iterable(repeat(names, given.rounds)):
            if time.monotonic() > deadline:
                return
            try:
                yield run_trial(name)
            except TooLateError as error:  # the other trials must still be made
                print(error, flush=True)


def main() -> None:
    """Run the trials and print the table."""
    given = parse()
    if given.calls and given.simulate:
        sys.exit("--calls needs a real GPU")
    results = Results(given.results)
    if not given.table:
        with rig_of(given, "300ms") as rig, tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            add_machine(results, rig.host)
            for cell, record in run(given, rig, Path(folder)):
                results.add({"cell": cell, "round": results.rounds(cell), **record})
                shown = ("stages", "moment_s", "stage", "first_free_s", "all_free_s", "exit_s")
                print(cell, {name: record[name] for name in shown if name in record}, flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
