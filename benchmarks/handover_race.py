"""One hand-over race: a GPU is held, and a newcomer requests nearly all of its memory."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.host_gpus import Card
from benchmarks.processes import (
    PLACES,
    TIMEOUT_S,
    Line,
    Program,
    Rig,
    Sentinel,
    TooLateError,
)
from benchmarks.results import Record
from sentinel.client import connect

#: The share of the empty GPU's free memory that a newcomer requests.
SHARE = 0.97
#: A newcomer without an answer after this time has lost.
_ANSWER = 60.0
#: The range of random delays between Ready and the newcomer.
_MOMENTS = (0.0, 1.0)
#: The same after the request to stop; the memory is back in half of it.
_WHILE_IT_STOPS = (0.0, 0.5)
#: The number of simultaneous clients.
CLIENTS = 1000
#: How many clients one MPS server has.
_MPS_CLIENTS = 20


@dataclass(frozen=True)
class Held:
    """GPUs that a sentinel holds, each with an armed memory watch.

    Attributes:
        before: The number of sentinel's events so far.
        levels: The number of lines of each reader so far.
    """

    sentinel: Sentinel
    cards: Sequence[Card]
    before: int
    readers: list[Program]
    levels: list[int]


class Races:
    """All kinds of race, with the processes of one rig.

    Args:
        rig: The processes.
        free: Free bytes that each kind of newcomer sees on the empty GPU, once known.
    """

    def __init__(self, rig: Rig, free: dict[str, int]) -> None:
        self._rig = rig
        self._free = free

    # --- kinds of race ---

    def alone(self, kind: str, ahead: int) -> list[Record]:
        """Give a newcomer an empty GPU."""
        self._rig.no_sentinel()
        card = self._rig.host.cards[0]
        newcomer = self.newcomer(kind, card, ahead)
        # The memory watch takes the driver's lock, too, so the baseline needs the same watch.
        self._rig.reader(card)
        self._rig.wait_empty([card])
        newcomer.send_line("go")
        return [self.outcome(kind, card, newcomer)]

    def against_sentinel(self, kind: str, workload: str, ahead: int) -> list[Record]:
        """Race one newcomer against a sentinel on the first GPU."""
        return self._against_sentinel(kind, workload, ahead, self._rig.host.cards[:1])

    def on_every_gpu(self, kind: str, workload: str) -> list[Record]:
        """Race a newcomer on each GPU against a sentinel that holds all, simultaneously."""
        return self._against_sentinel(kind, workload, 1, self._rig.host.cards)

    def on_a_busy_host(self, kind: str, workload: str, ahead: int) -> list[Record]:
        """Race a sentinel while every core of the host is busy."""
        cards = self._rig.host.cards[:1]
        # Load everything first: that is not measured, and takes very long on busy cores.
        self._expect(kind, cards[0], ahead)
        self._rig.sentinel(workload, cards).wait_held([cards[0].uuid])
        with self._rig.every_core_busy():
            return self._against_sentinel(kind, workload, ahead, cards)

    def beside_nvidia_smi(self, kind: str, workload: str, ahead: int) -> list[Record]:
        """Race a sentinel while ``nvidia-smi -l 1`` runs."""
        cards = self._rig.host.cards[:1]
        self._expect(kind, cards[0], ahead)
        with self._rig.nvidia_smi():
            return self._against_sentinel(kind, workload, ahead, cards)

    def with_clients(self, kind: str, workload: str, ahead: int) -> list[Record]:
        """Race a sentinel while a thousand clients send requests."""
        cards = self._rig.host.cards[:1]
        self._expect(kind, cards[0], ahead)
        self._rig.sentinel(workload, cards).wait_held([cards[0].uuid])
        with self._rig.clients("many_clients", "--clients", str(CLIENTS)) as clients_process:
            records = self._against_sentinel(kind, workload, ahead, cards)
        answers = clients_process.lines[-1].get("answers", {})
        return [{**record, "answers": answers} for record in records]

    def with_monitoring(self, kind: str, workload: str, ahead: int) -> list[Record]:
        """Race a sentinel with an open web page and a scrape each second."""
        cards = self._rig.host.cards[:1]
        self._expect(kind, cards[0], ahead)
        self._rig.sentinel(workload, cards).wait_held([cards[0].uuid])
        with self._rig.clients("monitoring_clients") as clients_process:
            records = self._against_sentinel(kind, workload, ahead, cards)
            clients_process.wait(lambda line: line.get("seen", {}).get("scrapes"), 10)
        return [{**record, "seen": clients_process.lines[-1].get("seen", {})} for record in records]

    def elsewhere(self, place: str, workload: str, ahead: int) -> list[Record]:
        """Race a sentinel that, or a newcomer that, sees only its own processes."""
        cards = self._rig.host.cards[:1]
        self.ask("bare", cards[0])
        with self._rig.at(PLACES[place]):
            return self._against_sentinel("bare", workload, ahead, cards)

    def as_mps_clients(self, workload: str, ahead: int) -> list[Record]:
        """Race clients of an MPS server, one after the other, with one server for all of them."""
        cards = self._rig.host.cards[:1]
        self.ask("bare", cards[0])
        alone = self._free["bare"]
        with self._rig.mps(cards[0]) as (place, free), self._rig.at(place):
            self._free["bare"] = free  # the server has its own context
            records = [
                record
                for left in range(_MPS_CLIENTS, 0, -1)
                for record in self._against_sentinel("bare", workload, min(ahead, left), cards)
            ]
        self._free["bare"] = alone
        return records

    def while_it_stops(self, workload: str, ahead: int) -> list[Record]:
        """Use a GPU whose stressor has just been asked to stop, by a pause."""
        card = self._rig.host.cards[0]
        newcomer = self.newcomer("bare", card, ahead)
        sentinel = self._rig.sentinel(workload, [card])
        sentinel.wait_held([card.uuid])
        client = connect(Path(self._rig.socket))
        before = len(sentinel.lines)
        delay = random.uniform(*_WHILE_IT_STOPS)
        client.pause([card.uuid])
        try:
            time.sleep(delay)
            newcomer.send_line("go")
            record = self.outcome("bare", card, newcomer)
        finally:
            client.resume([card.uuid])
        sentinel.wait_event("stressor.ready", card.uuid, TIMEOUT_S, before)
        return [{**record, "workload": workload, "fault": "stopping", "delay_s": delay}]

    def against_floor(self, kind: str, workload: str, ahead: int) -> list[Record]:
        """Kill the holder of the GPU when the newcomer starts: no supervisor can be faster."""
        return self._against_holder(kind, ahead, ["floor", "--workload", workload], kill=True)

    def against_polling(self, kind: str, ahead: int) -> list[Record]:
        """Race a holder that polls nvidia-smi each second and terminates its child."""
        return self._against_holder(kind, ahead, ["polling"], kill=False)

    # --- parts of a race ---

    def _expect(self, kind: str, card: Card, ahead: int) -> int:
        """Have ``ahead`` newcomers loaded; return how many bytes they request."""
        ask = self.ask(kind, card)
        self._rig.expect(kind, card, ask, ahead)
        return ask

    def newcomer(self, kind: str, card: Card, ahead: int) -> Program:
        """Return a newcomer that waits for its start."""
        return self._rig.next_newcomer(kind, card, self._expect(kind, card, ahead))

    def ask(self, kind: str, card: Card) -> int:
        """Return how many bytes to request, as learned by a first newcomer on an empty GPU."""
        if kind not in self._free:
            self._rig.no_sentinel()
            self._rig.wait_empty([card])
            first_newcomer = self._rig.newcomer(kind, card, 0)
            first_newcomer.ready()
            first_newcomer.send_line("go")
            seen = first_newcomer.wait(lambda line: "got" in line, _ANSWER)
            self._rig.end(first_newcomer)
            self._free[kind] = seen.get("free") or int(card.total * 0.95)
        return int(self._free[kind] * SHARE)

    def outcome(self, kind: str, card: Card, newcomer: Program) -> Record:
        """Return the outcome of a newcomer, and end it."""
        try:
            outcome = newcomer.wait(lambda line: "got" in line, _ANSWER)
        except TooLateError as error:
            outcome = {"got": False, "error": str(error)}
        with contextlib.suppress(Exception):
            newcomer.process.wait(5)
        self._rig.end(newcomer)
        record: Record = {"gpu": card.index, "newcomer": kind, **outcome}
        record["empty_free"] = self._free[kind]
        return record

    def _against_holder(
        self, kind: str, ahead: int, way: Sequence[str], *, kill: bool
    ) -> list[Record]:
        self._rig.no_sentinel()
        card = self._rig.host.cards[0]
        newcomer = self.newcomer(kind, card, ahead)
        self._rig.wait_empty([card])
        self._rig.reader(card)
        holder = self._rig.holder(card, *way)
        try:
            holder.ready()
            time.sleep(random.uniform(*_MOMENTS))
            newcomer.send_line("go")
            if kill:
                holder.process.send_signal(signal.SIGKILL)
            return [self.outcome(kind, card, newcomer)]
        finally:
            self._rig.end(holder)

    def _against_sentinel(
        self, kind: str, workload: str, ahead: int, cards: Sequence[Card]
    ) -> list[Record]:
        newcomers = [self.newcomer(kind, card, ahead) for card in cards]
        held = self.hold(workload, cards)
        for newcomer in newcomers:
            newcomer.send_line("go")
        records = [
            self.outcome(kind, card, newcomer)
            for card, newcomer in zip(cards, newcomers, strict=True)
        ]
        return self.complete(records, workload, held)

    def hold(self, workload: str, cards: Sequence[Card]) -> Held:
        """Have sentinel hold GPUs at a random moment, and watch their memory."""
        sentinel = self._rig.sentinel(workload, cards)
        readers = [self._rig.reader(card) for card in cards]
        held = [card.uuid for card in cards]
        sentinel.wait_held(held)
        time.sleep(random.uniform(*_MOMENTS))
        sentinel.wait_held(held)  # it may have yielded to another process in the meantime
        levels = [len(reader.lines) for reader in readers]
        for reader, level in zip(readers, levels, strict=True):
            reader.send_line("arm")
            reader.wait(lambda line: "armed" in line, 5, level)
        return Held(sentinel, cards, len(sentinel.lines), readers, levels)

    def complete(self, records: list[Record], workload: str, held: Held) -> list[Record]:
        """Add the figures of sentinel and of the memory watch to the outcome on each GPU."""
        watched = zip(records, held.cards, held.readers, held.levels, strict=True)
        for record, card, reader, level in watched:
            record["workload"] = workload
            record.update(self.handover(held.sentinel, card, held.before))
            record.update(_growth(reader, level, record))
        return records

    def handover(self, sentinel: Sentinel, card: Card, before: int) -> Record:
        """Return sentinel's own figures of the hand-over."""
        try:
            event = sentinel.wait_event("gpu.handed_over", card.uuid, 15, before)
        except TooLateError as error:
            return {"sentinel_error": str(error)}
        names = (
            *("evidence", "evidence_at", "read_s", "killed_at"),
            *("kill_s", "exit_s", "memory_back_s"),
        )
        return {name: event[name] for name in names}


def _growth(reader: Program, level: int, record: Record) -> Line:
    """Return the time of the first growth, and how long before the kill it was."""
    try:
        grown = reader.wait(lambda line: "grown_at" in line, 1, level)
    except TooLateError as error:
        return {"reader_error": str(error)}
    seen = {"grown_at": grown["grown_at"], "not_before": grown["not_before"]}
    if "killed_at" in record:
        seen["margin_s"] = record["killed_at"] - grown["grown_at"]
        seen["margin_most_s"] = record["killed_at"] - grown["not_before"]
    return seen
