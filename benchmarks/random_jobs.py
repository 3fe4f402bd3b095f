"""Foreign jobs at random on many simulated GPUs, under a thousand hostile clients; see README.md.

Each job takes a share of one or several GPUs at a random moment, some the whole card at once; some
fork, some crash. The exit code is 1 if a job did not get its memory, two stressors were on one GPU,
more memory was held than a GPU has, the events of a GPU are no legal history, a GPU was not
occupied at the end, or a holder of the token got no answer.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.foreign_jobs import FIRST_BYTES
from benchmarks.gpu_histories import GpuHistories
from benchmarks.growth import QUANTILES, distribution
from benchmarks.host_gpus import Card
from benchmarks.measuring import host_of
from benchmarks.processes import Program, Rig, TooLateError
from benchmarks.results import Record, Results
from benchmarks.watched_daemon import Event, WatchedDaemon, cpu_shares, is_failure
from sentinel.host.simulation import Registry

#: How long the first start and the last one of a stressor on every GPU may take, in seconds.
_OCCUPY_S = 600.0
#: Jobs arrive in this part of the time; the last ones end in the rest.
_ARRIVALS = 0.9
#: The mean stay of a job as a share of the time, and the longest.
_MEAN_STAY, _MAX_STAY = 0.03, 0.1
#: How often the simulated GPUs are looked at, and how often the holder of the token asks.
_LOOK_S, _ASK_S = 0.2, 0.5
#: How often it tries again when its connection is reset.
_TRIES = 3
_ANSWER_S = 30.0

_FLAGS = (
    *("--rearm=500ms", "--rearm-longest=1s", "--workload=hold", "--status-every=5s"),
    # Reads take the processor that other processes need, and none of them is on time to the
    # millisecond.
    *("--watch-interval=40ms", "--unwatched-after=5s"),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One foreign job: when it arrives, what it needs, how long it stays and how it ends."""

    number: int
    arrival_s: float
    gpus: int
    #: The share of each GPU; 1 for the whole card.
    share: float
    stay_s: float
    end: str


def plan(count: int, seconds: float, gpus: int, chance: random.Random) -> list[Job]:
    """Draw the jobs of a run, in the order of their arrival."""
    arrivals = sorted(chance.uniform(0, seconds * _ARRIVALS) for _ in range(count))
    jobs = []
    for number, arrival_s in enumerate(arrivals):
        many = chance.random() < 0.2  # noqa: PLR2004 - a fifth of the jobs needs several GPUs
        whole = chance.random() < 0.3  # noqa: PLR2004 - and three tenths need whole cards
        jobs.append(
            Job(
                number=number,
                arrival_s=arrival_s,
                gpus=chance.randint(2, max(2, min(8, gpus // 4))) if many else 1,
                share=1.0 if whole else chance.uniform(0.02, 0.95),
                stay_s=min(chance.expovariate(1 / (_MEAN_STAY * seconds)), _MAX_STAY * seconds),
                end=chance.choices(["exit", "crash", "fork"], [6, 2, 2])[0],
            )
        )
    return jobs


class Ledger:
    """The memory that jobs have on each GPU, so that no job asks for what other jobs hold.

    Args:
        cards: The GPUs.
    """

    def __init__(self, cards: Sequence[Card]) -> None:
        self._total = min(card.total for card in cards)
        self._free = {card.uuid: self._total for card in cards}
        self._taken: dict[int, tuple[list[str], int]] = {}

    def take(self, job: Job, chance: random.Random) -> tuple[list[str], int] | None:
        """Choose GPUs with room for a job at random; return them with its size, or None."""
        size = max(2 * FIRST_BYTES, int(job.share * self._total))
        fitting = [gpu for gpu, free in self._free.items() if free >= size]
        if len(fitting) < job.gpus:
            return None
        gpus = chance.sample(fitting, job.gpus)
        for gpu in gpus:
            self._free[gpu] -= size
        self._taken[job.number] = gpus, size
        return gpus, size

    def give_back(self, number: int) -> None:
        """Free what a job had."""
        gpus, size = self._taken.pop(number)
        for gpu in gpus:
            self._free[gpu] += size

    def __len__(self) -> int:
        """Count the jobs that are on GPUs."""
        return len(self._taken)


class TokenHolder(threading.Thread):
    """A client over TCP that shows the token and asks for the status, again and again.

    Args:
        port: The port of the API.
        token: The token.
    """

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}"}
        self._ended = threading.Event()
        self.seconds: list[float] = []
        self.failures: Counter[str] = Counter()
        self.resets = 0

    def run(self) -> None:
        """Ask until :meth:`end`, with a new connection each time."""
        while not self._ended.wait(_ASK_S):
            began = time.monotonic()
            for _ in range(_TRIES):
                try:
                    answer = self._ask()
                except ConnectionResetError as error:
                    # Too many clients of this address have shown no token yet: try again.
                    answer = type(error).__name__
                    self.resets += 1
                    continue
                except OSError as error:
                    answer = type(error).__name__
                break
            if answer == "200":
                self.seconds.append(time.monotonic() - began)
            else:
                self.failures[answer] += 1

    def _ask(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/status", headers=self._headers)
            response = connection.getresponse()
            response.read()
            return str(response.status)

    def end(self) -> None:
        """Wait for the last answer."""
        self._ended.set()
        self.join(_ANSWER_S)


class Crowd:
    """Hostile clients, and a holder of the token beside them.

    Args:
        rig: The processes of the benchmark.
        clients: The number of hostile clients; without any there is no holder of the token either.
        port: The TCP port of the API.
    """

    def __init__(self, rig: Rig, clients: int, port: int) -> None:
        self._rig = rig
        self._clients = clients
        self._port = port
        self._answers: Record = {}
        self.holder: TokenHolder | None = None

    @contextlib.contextmanager
    def around(self, daemon: WatchedDaemon) -> Iterator[None]:
        """Have all of them use the API of a daemon."""
        if not self._clients:
            yield
            return
        token = (daemon.state / "token").read_text().strip()
        flags = ("--clients", str(self._clients), "--hostile", "--port", str(self._port))
        with self._rig.clients("many_clients", *flags) as clients:
            self.holder = TokenHolder(self._port, token)
            self.holder.start()
            yield
            self.holder.end()
            self._answers = clients.lines[-1].get("answers", {})

    def record(self) -> Record:
        """Return how often and how fast the API answered."""
        seconds = self.holder.seconds if self.holder else []
        return {
            "clients": self._clients,
            "clients_answers": self._answers,
            "token_answers": len(seconds),
            "token_resets": self.holder.resets if self.holder else 0,
            "token_ms": distribution([1000 * second for second in seconds]),
        }


@dataclass
class Run:
    """One run: its jobs, and what was seen.

    Attributes:
        daemon: The daemon under test.
        jobs: The program that forks the jobs.
        cards: The GPUs.
        registry: The same GPUs, as the simulation keeps them.
    """

    daemon: WatchedDaemon
    jobs: Program
    cards: Sequence[Card]
    registry: Registry
    chance: random.Random
    histories: GpuHistories = field(default_factory=GpuHistories)
    events: Counter[str] = field(default_factory=Counter)
    failed: list[Event] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    done: int = 0
    looks: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    fullest: float = 0.0
    _looked: float = 0.0

    def occupy(self) -> None:
        """Wait until every GPU is held."""
        self._until(lambda: self.histories.held() == len(self.cards), "every GPU is held")

    def work(self, jobs: Sequence[Job]) -> None:
        """Let all jobs come and go."""
        ledger, ends = Ledger(self.cards), {job.number: job.end for job in jobs}
        began, waiting = time.monotonic(), list(jobs)
        while waiting or len(ledger):
            self.look()
            for line in self._lines():
                self._note(line, ledger, ends)
            while waiting and time.monotonic() - began >= waiting[0].arrival_s:
                taken = ledger.take(waiting[0], self.chance)
                if taken is None:
                    break  # it waits for other jobs
                job = waiting.pop(0)
                order = {"job": job.number, "gpus": taken[0], "size": taken[1], "end": job.end}
                self.jobs.send_line(json.dumps({**order, "stay": job.stay_s}))
            if time.monotonic() - began > jobs[-1].arrival_s + _OCCUPY_S:
                raise TooLateError(f"{len(ledger)} jobs have not ended, {len(waiting)} wait")

    def _note(self, line: Record, ledger: Ledger, ends: dict[int, str]) -> None:
        """Apply one line of a job."""
        number = line["job"]
        if line["event"] == "got" and line["wait_s"] is not None:
            self.waits_s.append(line["wait_s"])
        if line.get("got") is False:
            self.refused.append(number)
        # What a job has forked ends after it, unless the job got nothing.
        last = "ended" if ends[number] == "fork" and number not in self.refused else "left"
        if line["event"] == last:
            ledger.give_back(number)
            self.done += 1

    def _lines(self) -> Iterator[Record]:
        return (line for line in self.jobs.take_lines() if "event" in line)

    def _until(self, met: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _OCCUPY_S
        while not met():
            if time.monotonic() > until:
                raise TooLateError(f"within {_OCCUPY_S:.0f} s, it did not happen that {what}")
            self.look()

    def look(self) -> None:
        """Read the events, and the processes on every GPU."""
        for event in self.daemon.events(0.02):
            self.histories.add(event)
            self.events[event["event"]] += 1
            if is_failure(event):
                self.failed.append(event)
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        self.looks += 1
        for card in self.cards:
            processes = self.registry.processes(card.uuid)
            stressors = [process.pid for process in processes if _is_stressor(process.pid)]
            used = sum(process.memory or 0 for process in processes) / card.total
            self.fullest = max(self.fullest, used)
            self.wrong["two stressors on a GPU"] += len(stressors) > 1
            self.wrong["more memory than a GPU has"] += used > 1


def _is_stressor(pid: int) -> bool:
    """Check whether a process is a stressor, by its title."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sentinel: keeps")
    return False


def _free_port() -> int:
    """Find a TCP port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def failures(run: Run, jobs: int, crowd: Crowd) -> list[str]:
    """List everything that makes the run fail."""
    found = [f"{count} times {what}" for what, count in run.wrong.items() if count]
    found += run.histories.violations[:20]
    if run.refused:
        found.append(f"{len(run.refused)} jobs did not get their memory")
    if run.done < jobs:
        found.append(f"{run.done} of {jobs} jobs ended")
    if run.histories.held() < len(run.cards):
        found.append(f"{run.histories.held()} of {len(run.cards)} GPUs are held at the end")
    holder = crowd.holder
    if holder is not None and (holder.failures or not holder.seconds):
        found.append(f"the holder of the token: {dict(holder.failures)}")
    return [*found, *(f"{event['event']}: {event.get('reason')}" for event in run.failed[:20])]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_jobs", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("random_jobs.jsonl"), metavar="FILE")
    parser.add_argument("--simulate", type=int, default=64, metavar="N", help="simulated GPUs")
    parser.add_argument("--jobs", type=int, default=200, metavar="N")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=1000, metavar="N", help="0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=float, default=5.0, help="seconds that a job waits for its memory"
    )
    return parser.parse_args(arguments)


def measure(given: argparse.Namespace, results: Results) -> int:
    """Let the jobs come and go, record and print the outcome; return 1 if something failed."""
    error = None
    with ExitStack() as stack:
        host = stack.enter_context(host_of(given.simulate, ()))
        assert host.simulation is not None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinel-random-")))
        rig = Rig(host, given.results.with_suffix(".log"), "500ms")
        stack.callback(rig.reset)
        port = _free_port()
        flags = (*_FLAGS, f"--tcp=127.0.0.1:{port}")
        limit = ("--limit", str(given.limit))
        forks = rig.start("benchmarks.foreign_jobs", *limit, *rig.simulation_arguments())
        forks.ready()
        run = Run(
            daemon=WatchedDaemon(rig, folder, host.cards, *flags),
            jobs=forks,
            cards=host.cards,
            registry=Registry(Path(host.simulation)),
            chance=random.Random(given.seed),
        )
        began, cpu = time.monotonic(), psutil.cpu_times()
        crowd = Crowd(rig, given.clients, port)
        try:
            run.occupy()
            print(f"{time.monotonic() - began:.0f} s until every GPU is held", flush=True)
            with crowd.around(run.daemon):
                run.work(plan(given.jobs, given.seconds, given.simulate, run.chance))
            run.occupy()
        except TooLateError as late:
            error = str(late)
        seconds, shares = time.monotonic() - began, cpu_shares(cpu)
        machine = {**host.describe(), "date": time.strftime("%Y-%m-%d")}
    failed = [*([error] if error else []), *failures(run, given.jobs, crowd)]
    record = {
        "jobs": run.done,
        "seed": given.seed,
        "seconds": round(seconds),
        "cpu": shares,
        "looks": run.looks,
        "fullest": run.fullest,
        "refused": len(run.refused),
        "handovers": len(run.waits_s),
        "latency_ms": distribution([1000 * wait for wait in run.waits_s]),
        "waits_ms": [round(1000 * wait, 1) for wait in run.waits_s],
        **crowd.record(),
        "events": dict(run.events),
        "failed": failed,
    }
    results.add({"cell": "machine", "round": 0, **machine})
    results.add({"cell": "random jobs", "round": 0, **record})
    print("\n".join(table(record)))
    for reason in failed:
        print(f"FAIL: {reason}")
    return int(bool(failed))


def table(record: Record) -> Iterator[str]:
    """Yield the lines of the tables of one run."""
    yield f"| | number | {' | '.join(QUANTILES)} |"
    yield "| --- | --- | --- | --- | --- | --- |"
    rows = {
        "hand-overs, first byte to memory": (record["handovers"], record["latency_ms"]),
        "answers to the holder of the token": (record["token_answers"], record["token_ms"]),
    }
    for name, (count, waits) in rows.items():
        values = (f"{waits[name]:,.0f} ms" if waits else "-" for name in QUANTILES)
        yield f"| {name} | {count} | {' | '.join(values)} |"
    yield ""
    yield (
        f"{record['jobs']} jobs, {record['refused']} refused, {record['looks']} looks at every GPU,"
        f" at most {record['fullest']:.1%} of one in use, {record['seconds']} s"
    )
    yield f"answers to {record['clients']} clients: {record['clients_answers']}"


def _stop(number: int, _: object) -> None:
    """End the run early: what was measured until then is recorded."""
    raise TooLateError(f"ended by {signal.Signals(number).name}")


def main() -> int:
    """Run the jobs."""
    given = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with contextlib.suppress(FileNotFoundError):
        given.results.unlink()
    return measure(given, Results(given.results))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
