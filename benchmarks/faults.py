"""Races against a sentinel of which one process has just been killed or stopped."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.handover_race import Races
from benchmarks.host_gpus import Host
from benchmarks.processes import HANG_FILE, HANGING_NVML, HOST, Rig, Sentinel
from benchmarks.results import Record
from sentinel.host.simulation import Registry

#: By the name of the fault: the title of the process, and the signal that it gets.
FAULTS = {
    "probe-killed": ("sentinel: probe", signal.SIGKILL),
    "probe-stopped": ("sentinel: probe", signal.SIGSTOP),
    "supervisor-killed": ("sentinel: supervisor", signal.SIGKILL),
    "supervisor-stopped": ("sentinel: supervisor", signal.SIGSTOP),
    "api-killed": ("sentinel: api", signal.SIGKILL),
    "api-stopped": ("sentinel: api", signal.SIGSTOP),
    "stressor-stopped": ("sentinel: keeps", signal.SIGSTOP),
}
#: The fault of a probe whose driver calls hang.
HUNG = "probe-hung"
#: The times between the fault and the start of the newcomer, in seconds, in turn.
DELAYS_S = (0.02, 0.1, 0.5, 1.0, 2.5)


class Faults:
    """Races after a fault, with the processes of one rig.

    Args:
        rig: The processes.
        races: The kinds of race without a fault.
    """

    def __init__(self, rig: Rig, races: Races) -> None:
        self._rig = rig
        self._races = races
        self._delays = {fault: itertools.cycle(DELAYS_S) for fault in (*FAULTS, HUNG)}

    def race(self, fault: str, workload: str, ahead: int) -> list[Record]:
        """Race one newcomer some time after a fault."""
        with self._rig.at(HANGING_NVML if fault == HUNG else HOST):
            return self._race(fault, workload, ahead)

    def _race(self, fault: str, workload: str, ahead: int) -> list[Record]:
        card = self._rig.host.cards[0]
        newcomer = self._races.newcomer("bare", card, ahead)
        sentinel = self._rig.sentinel(workload, [card])
        sentinel.wait_held([card.uuid])
        time.sleep(random.uniform(0.0, 1.0))
        sentinel.wait_held([card.uuid])
        delay = next(self._delays[fault])
        before = len(sentinel.lines)
        with _fault(fault, sentinel, self._rig.host):
            time.sleep(delay)
            newcomer.send_line("go")
            record = self._races.outcome("bare", card, newcomer)
        # A killed supervisor reports nothing; the next race starts another one.
        dead = fault == "supervisor-killed"
        outcome = {} if dead else self._races.handover(sentinel, card, before)
        return [{**record, "workload": workload, "fault": fault, "delay_s": delay, **outcome}]


@contextlib.contextmanager
def _fault(fault: str, sentinel: Sentinel, host: Host) -> Iterator[None]:
    """Send a process of a sentinel the signal of a fault, and continue it at the end."""
    title, number = FAULTS.get(fault, ("sentinel: probe", None))
    process = next(child for child in _processes(sentinel) if titled(child, title))
    if number is None:
        with _hang(process, host):
            yield
        return
    process.send_signal(number)
    try:
        yield
    finally:
        if number is signal.SIGSTOP:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def _hang(process: psutil.Process, host: Host) -> Iterator[None]:
    """Let the driver calls of a process hang; on a simulated GPU, the next read of its memory."""
    if host.simulation is not None:
        registry, uuid = Registry(Path(host.simulation)), host.cards[0].uuid
        registry.inject(uuid, "hang")
        try:
            yield
        finally:
            registry.inject(uuid, None)
        return
    HANG_FILE.write_text(str(process.pid))
    try:
        yield
    finally:
        HANG_FILE.unlink()


def _processes(sentinel: Sentinel) -> list[psutil.Process]:
    """List the processes of a sentinel, the supervisor first."""
    whole = psutil.Process(sentinel.process.pid)
    return [whole, *whole.children(recursive=True)]


def titled(process: psutil.Process, title: str) -> bool:
    """Check whether the title of a process begins with some words."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).startswith(title)
    return False
