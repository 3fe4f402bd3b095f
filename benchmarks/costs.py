"""The cost of sentinel itself: CPU and memory of its processes over a period."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

import psutil

from benchmarks.processes import Program, Rig, Sentinel
from benchmarks.results import Record

#: The process titles of a sentinel, and the kinds of process.
_TITLES = {
    "sentinel: probe": "probe",
    "sentinel: spare": "spare",
    "sentinel: standby": "standby",
    "sentinel: keeps": "stressor",
    "sentinel: api": "service",
}

#: Races have each GPU's status logged every second, which no daemon of users does.
_AS_USERS_RUN_IT = ("--status-every", "1m")

#: The spare processes are prepared within so many seconds of a start.
_PREPARATION_S = 30.0


def census(sentinel: Program) -> dict[int, tuple[str, psutil.Process]]:
    """Return every process of a sentinel by PID: its kind and its handle."""
    supervisor = psutil.Process(sentinel.pid)
    found = {supervisor.pid: ("supervisor", supervisor)}
    for child in supervisor.children(recursive=True):
        title = ""
        with suppress(psutil.Error):  # a stressor ends at any time
            title = " ".join(child.cmdline())
        kinds = [kind for start, kind in _TITLES.items() if title.startswith(start)]
        found[child.pid] = (kinds[0] if kinds else "other", child)
    return found


def spent(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


class Costs:
    """Measures a sentinel on all GPUs of the host.

    Args:
        rig: The processes.
        seconds: The length of each period.
    """

    def __init__(self, rig: Rig, seconds: float) -> None:
        self._rig = rig
        self._seconds = seconds

    def nothing_held(self) -> list[Record]:
        """Measure while a foreign process is on every GPU."""
        self._rig.no_sentinel()
        cards = self._rig.host.cards
        self._rig.wait_empty(cards)
        size = 2 * 2**30
        stay = self._seconds + 120
        with ExitStack() as stack:
            for card in cards:
                occupier = self._rig.newcomer("bare", card, size, stay)
                stack.callback(self._rig.end, occupier)
                occupier.ready()
                occupier.send_line("go")
                occupier.wait(lambda line: "got" in line, 60)
            sentinel = self._rig.sentinel("gemm", cards, *_AS_USERS_RUN_IT, empty=False)
            for card in cards:
                sentinel.wait_event("gpu.busy", card.uuid, 60, 0)
            record = self._measure(sentinel)
            self._rig.no_sentinel()
        return [record]

    def all_held(
        self, workload: str, *, nvidia_smi: bool = False, pages: int = 0, scrapers: int = 0
    ) -> list[Record]:
        """Measure while a stressor runs on every GPU, with monitoring clients."""
        cards = self._rig.host.cards
        sentinel = self._rig.sentinel(workload, cards, *_AS_USERS_RUN_IT)
        sentinel.wait_held([card.uuid for card in cards])
        with ExitStack() as stack:
            if nvidia_smi:
                stack.enter_context(self._rig.nvidia_smi())
            if pages or scrapers:
                arguments = ("--pages", str(pages), "--scrapers", str(scrapers))
                stack.enter_context(self._rig.clients("monitoring_clients", *arguments))
            return [{"workload": workload, **self._measure(sentinel)}]

    def _settled(self, sentinel: Sentinel) -> dict[int, tuple[str, psutil.Process]]:
        """Return the processes once the spare ones have been prepared."""
        until = time.monotonic() + _PREPARATION_S
        while time.monotonic() < until:
            time.sleep(0.5)
            processes = census(sentinel)
            titles = [" ".join(process.cmdline()) for _, process in processes.values()]
            prepared = ("sentinel: spare", "sentinel: standby, becomes")
            if all(any(title.startswith(start) for title in titles) for start in prepared):
                break
        time.sleep(2)  # until the work queued by their start is done
        return census(sentinel)

    def _measure(self, sentinel: Sentinel) -> Record:
        """Return shares of a core, and the largest resident sizes, by kind of process."""
        first_line = len(sentinel.lines)
        processes = self._settled(sentinel)
        before = {pid: spent(process) for pid, (_, process) in processes.items()}
        began = time.monotonic()
        time.sleep(self._seconds)
        after = {pid: spent(process) for pid, (_, process) in processes.items()}
        seconds = time.monotonic() - began
        cpu: dict[str, float] = {}
        resident: dict[str, int] = {}
        for pid, (kind, process) in processes.items():
            cpu[kind] = cpu.get(kind, 0.0) + (after[pid] - before[pid]) / seconds
            resident[kind] = max(resident.get(kind, 0), process.memory_info().rss)
        yields = [line for line in sentinel.lines[first_line:] if line["event"] == "gpu.yielding"]
        return {
            "gpus": len(self._rig.host.cards),
            "seconds": seconds,
            "cpu": cpu,
            "rss": resident,
            "yields": len(yields),
        }
