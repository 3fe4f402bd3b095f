"""Races against a sentinel of which one process has just been killed or stopped."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.handover_race import Races
from benchmarks.host_gpus import Card, Host
from benchmarks.processes import (
    HANG_FILE,
    HANGING_NVML,
    HOST,
    TIMEOUT_S,
    Rig,
    Sentinel,
    TooLateError,
)
from benchmarks.results import Record
from sentinel.host.simulation import Registry

#: By the name of the fault: the titles of the processes, and the signal that they get. Only the
#: first is waited for: the next spare probe comes seconds after a probe, and where it is not there
#: yet, a killed probe leaves the stressors as alone as when both are killed.
FAULTS = {
    "probe-killed": (("sentinel: probe",), signal.SIGKILL),
    "both-probes-killed": (("sentinel: probe", "sentinel: spare"), signal.SIGKILL),
    "probe-stopped": (("sentinel: probe",), signal.SIGSTOP),
    "supervisor-killed": (("sentinel: supervisor",), signal.SIGKILL),
    "supervisor-stopped": (("sentinel: supervisor",), signal.SIGSTOP),
    "api-killed": (("sentinel: api",), signal.SIGKILL),
    "api-stopped": (("sentinel: api",), signal.SIGSTOP),
    "stressor-stopped": (("sentinel: keeps",), signal.SIGSTOP),
}
#: The fault of a probe whose driver calls hang.
HUNG = "probe-hung"
#: The faults that are also followed by a newcomer on each GPU.
ON_EVERY_GPU = [fault for fault in FAULTS if fault not in {"api-stopped", "stressor-stopped"}]
#: The times between the fault and the start of the newcomer, in seconds, in turn.
DELAYS_S = (0.02, 0.1, 0.5, 1.0, 2.5)
#: So many races have one sentinel: a probe that dies again within a minute is replaced later each
#: time, up to 30 s.
_RACES_EACH = 4


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
        self._count = 0

    def race(self, fault: str, workload: str, ahead: int) -> list[Record]:
        """Race one newcomer some time after a fault."""
        with self._rig.at(HANGING_NVML if fault == HUNG else HOST):
            return self._race(fault, workload, ahead, self._rig.host.cards[:1])

    def on_every_gpu(self, fault: str, workload: str) -> list[Record]:
        """Race a newcomer on each GPU some time after a fault, simultaneously."""
        return self._race(fault, workload, 1, self._rig.host.cards)

    def _race(self, fault: str, workload: str, ahead: int, cards: Sequence[Card]) -> list[Record]:
        if self._count % _RACES_EACH == 0:
            self._rig.no_sentinel()
        self._count += 1
        newcomers = [self._races.newcomer("bare", card, ahead) for card in cards]
        sentinel = self._rig.sentinel(workload, cards)
        held = [card.uuid for card in cards]
        sentinel.wait_held(held)
        time.sleep(random.uniform(0.0, 1.0))
        sentinel.wait_held(held)
        delay = next(self._delays[fault])
        before = len(sentinel.lines)
        with _fault(fault, sentinel, self._rig.host) as victims:
            time.sleep(delay)
            for newcomer in newcomers:
                newcomer.send_line("go")
            records = [
                self._races.outcome("bare", card, newcomer)
                for card, newcomer in zip(cards, newcomers, strict=True)
            ]
        # A killed supervisor reports nothing; the next race starts another one.
        dead = fault == "supervisor-killed"
        for record, card in zip(records, cards, strict=True):
            record.update(workload=workload, fault=fault, delay_s=delay, victims=victims)
            record.update({} if dead else self._races.handover(sentinel, card, before))
        return records


@contextlib.contextmanager
def _fault(fault: str, sentinel: Sentinel, host: Host) -> Iterator[int]:
    """Send processes of a sentinel the signal of a fault, and continue them at the end.

    Yields the number of processes.
    """
    titles, number = FAULTS.get(fault, (("sentinel: probe",), None))
    victims = [_wait_for_process(sentinel, titles[0])]
    victims += filter(None, (_find_process(sentinel, title) for title in titles[1:]))
    if number is None:
        with _hang(victims[0], host):
            yield len(victims)
        return
    for victim in victims:
        victim.send_signal(number)
    try:
        yield len(victims)
    finally:
        for victim in victims if number is signal.SIGSTOP else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGCONT)


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


def _wait_for_process(sentinel: Sentinel, title: str) -> psutil.Process:
    """Return a process of a sentinel by its title.

    Raises:
        TooLateError: There is none for long.
    """
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        if (process := _find_process(sentinel, title)) is not None:
            return process
        time.sleep(0.01)
    raise TooLateError(f"there is no process with the title {title!r}")


def _find_process(sentinel: Sentinel, title: str) -> psutil.Process | None:
    """Return a process of a sentinel by its title; None if there is none now."""
    whole = psutil.Process(sentinel.process.pid)
    every = (whole, *whole.children(recursive=True))
    return next((process for process in every if titled(process, title)), None)


def titled(process: psutil.Process, title: str) -> bool:
    """Check whether the title of a process begins with some words."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).startswith(title)
    return False
