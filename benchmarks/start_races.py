"""Races against a starting stressor: newcomers at random moments of the whole start."""

from __future__ import annotations

import contextlib
import hashlib
import random
import signal
import time
from pathlib import Path

import psutil

from benchmarks.handover_race import Races
from benchmarks.host_gpus import Card
from benchmarks.processes import TIMEOUT_S, Rig, Sentinel
from benchmarks.results import Record
from sentinel.client import connect

_ROOT = Path(__file__).parents[1]

#: The workloads by the names of their cells, with the rounds of each.
STARTS = {
    "units": ("units", 200),
    "memtest": ("memtest", 200),
    "gather": ("units:plan=gather", 40),
    "pulse": ("pulse", 40),
    "links": ("links", 40),
    "own": (f"{_ROOT}/examples/sentinel-workload-fft/src/sentinel_workload_fft:fft", 40),
}
#: The formats of gemm, in turn, and their rounds together.
FORMATS = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
FORMAT_ROUNDS = 40

#: What decides how a start goes: counts add up over runs of the same code.
_CODE = ("stressor/*.py", "core/newcomer.py", "core/start_memory.py", "core/lifecycle.py")
#: So many rounds in a row have a standby stressor, and as many have none.
_BLOCK = 5
#: How much later than Ready a newcomer may come, in seconds.
_AFTER_READY_S = 0.05
#: The title of a standby stressor.
_STANDBY = "sentinel: standby"


def code_hash() -> str:
    """Hash the files that decide how a start goes."""
    found = hashlib.sha256()
    for pattern in _CODE:
        for path in sorted((_ROOT / "sentinel").glob(pattern)):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


class StartRaces:
    """Newcomers on a GPU whose stressor starts, with the processes of one rig.

    Args:
        rig: The processes.
        races: The kinds of race.
    """

    def __init__(self, rig: Rig, races: Races) -> None:
        self._rig = rig
        self._races = races
        self._code = code_hash()
        self._count = 0
        #: The duration of a start, by workload and whether it is cold.
        self._start_s: dict[tuple[str, bool], float] = {}

    def formats(self, ahead: int) -> list[Record]:
        """Race one newcomer against the start of the next format of gemm."""
        number = self._count // _BLOCK % len(FORMATS)
        return self.race(f"gemm:dtype={FORMATS[number]}", ahead)

    def race(self, workload: str, ahead: int) -> list[Record]:
        """Race one newcomer at a random moment of a start, cold or from a standby."""
        cold = self._count // _BLOCK % 2 == 1
        if self._count % _BLOCK == 0:
            self._rig.no_sentinel()
        self._count += 1
        card = self._rig.host.cards[0]
        newcomer = self._races.newcomer("bare", card, ahead)
        sentinel = self._rig.sentinel(workload, [card])
        if (workload, cold) not in self._start_s:
            before = self._restart(sentinel, card, cold=cold)
            ready = sentinel.wait_event("stressor.ready", card.uuid, TIMEOUT_S, before)
            self._start_s[workload, cold] = ready["start_s"]
        before = self._restart(sentinel, card, cold=cold)
        starting = sentinel.wait_event("stressor.starting", card.uuid, TIMEOUT_S, before)
        start_s = self._start_s[workload, cold]
        moment = random.uniform(0.0, start_s + _AFTER_READY_S)
        time.sleep(max(0.0, starting["at"] + moment - time.monotonic()))
        used = self._rig.host.used(card.uuid)
        newcomer.send_line("go")
        record = self._races.outcome("bare", card, newcomer)
        yielded = sentinel.wait_event("gpu.yielding", card.uuid, 15, before)
        outcome = self._races.handover(sentinel, card, before)
        return [
            {
                **record,
                "workload": workload,
                "code": self._code,
                "cold": not starting["standby"],
                "moment_s": moment,
                "start_s": start_s,
                "used_then": used,
                "stressor": yielded["stressor"],
                **outcome,
            }
        ]

    def _restart(self, sentinel: Sentinel, card: Card, *, cold: bool) -> int:
        """Have the stressor of a GPU start anew; return the number of events before."""
        if sentinel.last_of(card.uuid) is None:
            sentinel.wait_event("stressor.starting", card.uuid, TIMEOUT_S, 0)
        client = connect(Path(self._rig.socket))
        client.pause([card.uuid])
        self._rig.wait_empty([card])
        if cold:
            end_standby(sentinel)
        before = len(sentinel.lines)
        client.resume([card.uuid])
        return before


def end_standby(sentinel: Sentinel) -> None:
    """Kill the standby stressor, if there is one; the next comes a second later or more."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(sentinel.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if " ".join(child.cmdline()).startswith(_STANDBY):
                    child.send_signal(signal.SIGKILL)
