"""Newcomers at random moments of the whole start of a stressor, warm or cold."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from benchmarks.handover_race import Races
from benchmarks.host_gpus import Card
from benchmarks.processes import TIMEOUT_S, Line, Place, Rig, Sentinel, TooLateError
from benchmarks.results import Record
from benchmarks.start_code import start_code
from benchmarks.startup import wait_prepared
from sentinel.client import connect

_FFT = Path(__file__).parents[1] / "examples/sentinel-workload-fft/src/sentinel_workload_fft:fft"
#: The workloads whose starts are raced, by the names of their cells.
STARTS: dict[str, Sequence[str]] = {
    "units": ("units",),
    "memtest": ("memtest",),
    "gather": ("units:plan=gather",),
    "pulse": ("pulse",),
    "links": ("links",),
    "own": (str(_FFT),),
    "formats": [
        f"gemm:dtype={dtype}" for dtype in ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
    ],
    "hold": ("hold",),
    "gemm": ("gemm",),
}
#: A newcomer that leaves once it has its answer, so that the next start begins early.
_KIND = "brief"
#: How long sentinel's events about a hand-over may take, in seconds.
_EVENTS_S = 15.0


class Starts:
    """Races in starts of stressors. Every second start is cold: without a standby stressor.

    The cold ones are those of a second sentinel: while one of the two starts, the other one is
    paused, and the standby stressor of the first one can load meanwhile.

    Args:
        rig: The processes.
        races: The newcomers.
    """

    def __init__(self, rig: Rig, races: Races) -> None:
        self._rig = rig
        self._races = races
        self.code = start_code()
        #: Whether the next start of each cell is cold.
        self._cold: dict[str, bool] = {}
        #: The workloads of each cell, each for a warm and a cold start.
        self._workloads = {
            cell: cycle(one for workload in workloads for one in (workload, workload))
            for cell, workloads in STARTS.items()
        }
        #: From ``stressor.starting`` to Ready by workload, place and cold or not, in seconds.
        self._ready_s: dict[tuple[str, Place, bool], float] = {}

    def race(self, cell: str, place: Place, ahead: int) -> list[Record]:
        """Use an idle GPU at a random moment between ``stressor.starting`` and Ready."""
        card = self._rig.host.cards[0]
        workload = next(self._workloads[cell])
        cold = self._cold[cell] = not self._cold.get(cell, random.choice((False, True)))
        self._races.ask(_KIND, card)
        with self._rig.at(place):
            if (workload, place, cold) not in self._ready_s:
                with self._start(workload, place, cold=cold) as start:
                    start.wait_ready()
                self._ready_s[workload, place, cold] = start.ready_s() or 0.0
            newcomer = self._races.newcomer(_KIND, card, ahead)
            with self._start(workload, place, cold=cold) as start:
                ready_s = self._ready_s[workload, place, cold]
                sleep_until(start.at + random.random() * ready_s)
                moment_s = time.monotonic() - start.at
                newcomer.send_line("go")
                used = self._rig.host.used(card.uuid)  # the driver lets this wait, so not before
                record = self._races.outcome(_KIND, card, newcomer)
                record |= {"moment_s": moment_s, "ready_s": ready_s, **start.met()}
                record |= self._races.handover(start.sentinel, card, start.before)
            self._ready_s[workload, place, cold] = start.ready_s() or ready_s
        name = workload.rpartition("/")[2]
        return [{**record, "workload": name, "used": used, "code": self.code}]

    @contextmanager
    def _start(self, workload: str, place: Place, *, cold: bool) -> Iterator[Start]:
        """Start a stressor on the first GPU; yield once it is starting, and pause in the end."""
        card = self._rig.host.cards[0]
        rig = self._rig.second() if cold else self._rig
        standby = "off" if cold else "on"
        with rig.at(place):
            sentinel = rig.sentinel("hold", [card], "--standby", standby)  # of these races alone
        sentinel.wait(lambda line: line["event"] == "service.ready", TIMEOUT_S)
        client = connect(Path(rig.socket))
        client.pause([card.uuid])
        client.set({"workload": workload, "standby": standby})
        if not cold:
            wait_prepared(sentinel)
        before = len(sentinel.lines)
        client.resume([card.uuid])
        line = sentinel.wait_event("stressor.starting", card.uuid, TIMEOUT_S, before)
        try:
            yield Start(sentinel=sentinel, card=card, before=before, line=line)
        finally:
            client.pause([card.uuid])


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a stressor.

    Attributes:
        sentinel: Its sentinel.
        card: Its GPU.
        before: The number of sentinel's events before it.
        line: The event ``stressor.starting``.
    """

    sentinel: Sentinel
    card: Card
    before: int
    line: Line

    @property
    def at(self) -> float:
        """When it began, on the monotonic clock."""
        return float(self.line["at"])

    def wait_ready(self) -> None:
        """Wait until the stressor is ready."""
        self.sentinel.wait_event("stressor.ready", self.card.uuid, TIMEOUT_S, self.before)

    def ready_s(self) -> float | None:
        """Return how many seconds it took, or None if the stressor was never ready."""
        for line in self.sentinel.lines[self.before :]:
            if line["event"] == "stressor.ready" and line["gpu"] == self.card.uuid:
                return float(line["at"]) - self.at
        return None

    def met(self) -> Record:
        """Describe in which state a newcomer met it."""
        cold = not self.line["standby"]
        try:
            yielded = self.sentinel.wait_event(
                "gpu.yielding", self.card.uuid, _EVENTS_S, self.before
            )
        except TooLateError as error:
            return {"cold": cold, "stressor": None, "sentinel_error": str(error)}
        return {"cold": cold, "stressor": yielded["stressor"], "stage": yielded.get("stage")}


def sleep_until(at: float) -> None:
    """Sleep until a moment of the monotonic clock, if that is still to come."""
    time.sleep(max(0.0, at - time.monotonic()))
