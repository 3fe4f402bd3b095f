"""Measurements on all GPUs of one host: foreign jobs on several, and the driver's own delays."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.handover_race import SHARE, Races
from benchmarks.host_gpus import Card
from benchmarks.processes import TIMEOUT_S, Program, Rig, TooLateError
from benchmarks.results import Record

#: The share of a GPU's total memory that a rank of NCCL takes; contexts and NCCL need the rest.
NCCL_SHARE = 0.9
#: NVLink multicast stays off.
_NCCL = ("env", "NCCL_NVLS_ENABLE=0")
#: How many contexts are created beside an onlooker, and how long it looks without any.
_CONTEXTS = 5
_QUIET_S = 2.0


class SeveralGpus:
    """Measurements on all GPUs, with the processes of one rig.

    Args:
        rig: The processes.
        races: The parts of a race.
    """

    def __init__(self, rig: Rig, races: Races) -> None:
        self._rig = rig
        self._races = races
        self._cards = rig.host.cards
        self._free = 0

    def in_turn(self, workload: str) -> list[Record]:
        """Race one process that takes each GPU, one after the other."""
        if not self._free:
            self._rig.no_sentinel()
            self._rig.wait_empty(self._cards)
            with self._programs([self._in_turn(0)]) as programs:
                seen = _turns(programs[0], self._cards)
            if failed := [record for record in seen if not record["got"]]:
                raise RuntimeError(f"no context on an empty GPU: {failed}")
            self._free = min(int(record["free"]) for record in seen)
        with self._programs([self._in_turn(int(self._free * SHARE))]) as programs:
            held = self._races.hold(workload, self._cards)
            records = _turns(programs[0], self._cards)
        records = [{**record, "empty_free": self._free} for record in records]
        return self._races.complete(records, workload, held)

    def nccl(self, workload: str) -> list[Record]:
        """Race a job with a rank on each GPU that allocates, then sums over all GPUs by NCCL."""
        with self._programs(self._ranks()) as ranks:
            held = self._races.hold(workload, self._cards)
            for rank in ranks:
                rank.send_line("go")
            records = [
                {"gpu": card.index, "newcomer": "nccl", **_answer(rank, "got")}
                for card, rank in zip(self._cards, ranks, strict=True)
            ]
            # Without one rank, the others would wait for it in vain.
            if all(record["got"] for record in records):
                for record, rank in zip(records, ranks, strict=True):
                    record.update(_answer(rank, "all_reduce"))
        return self._races.complete(records, workload, held)

    def onlooker(self, workload: str) -> list[Record]:
        """Read the memory of the second GPU while contexts come and go on the first."""
        used, other = self._cards[:2]
        uuids = [card.uuid for card in self._cards]
        self._rig.no_readers()  # each takes the driver's lock, too
        sentinel = self._rig.sentinel(workload, self._cards)
        sentinel.wait_held(uuids)
        until = time.monotonic() + _QUIET_S
        record: Record = {
            **self._looked("quiet_", other, lambda: time.monotonic() < until),
            "contexts": 0,
        }
        before = len(sentinel.lines)
        for _ in range(_CONTEXTS):
            newcomer = self._rig.next_newcomer("bare", used, 0)
            sentinel.wait_held(uuids)
            newcomer.send_line("go")
            until = time.monotonic() + TIMEOUT_S

            def running(newcomer: Program = newcomer, until: float = until) -> bool:
                return newcomer.process.poll() is None and time.monotonic() < until

            for name, value in self._looked("", other, running).items():
                record[name] = max(record.get(name, 0), value)
            record["contexts"] += bool(_answer(newcomer, "got")["got"])
            self._rig.end(newcomer)
        yields = [line for line in sentinel.lines[before:] if line["event"] == "gpu.yielding"]
        record["yields"] = sum(line["gpu"] == other.uuid for line in yields)
        return [{"gpu": other.index, "workload": workload, **record}]

    def _looked(self, prefix: str, card: Card, wanted: Callable[[], bool]) -> Record:
        """Return the longest read, and the longest time between the ends of two reads."""
        read_s = gap_s = 0.0
        last = time.monotonic()
        while wanted():
            at = time.monotonic()
            self._rig.host.used(card.uuid)
            done = time.monotonic()
            read_s, gap_s, last = max(read_s, done - at), max(gap_s, done - last), done
            time.sleep(0.001)
        return {f"{prefix}longest_read_s": read_s, f"{prefix}longest_gap_s": gap_s}

    # --- programs ---

    @contextlib.contextmanager
    def _programs(self, programs: Sequence[Program]) -> Iterator[Sequence[Program]]:
        """Wait until programs are loaded, and end them with the block."""
        try:
            for program in programs:
                program.ready()
            yield programs
        finally:
            for program in programs:
                self._rig.end(program)

    def _in_turn(self, ask: int) -> Program:
        command = ("benchmarks.newcomer", "in-turn", "--ask", str(ask))
        return self._rig.start(*command, cards=self._cards)

    def _ranks(self) -> list[Program]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        job = (f"WORLD_SIZE={len(self._cards)}", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}")
        command = ("benchmarks.nccl_rank", "--share", str(NCCL_SHARE))
        return [
            self._rig.start(*command, cards=self._cards, within=(*_NCCL, *job, f"RANK={rank}"))
            for rank in range(len(self._cards))
        ]


def _answer(program: Program, name: str, turn: int = 0) -> Record:
    """Return the line with this name, or the error if there is none."""
    try:
        return program.wait(
            # A line with an error is about all turns from there on.
            lambda line: name in line and line.get("turn", turn) == turn,
            TIMEOUT_S,
        )
    except TooLateError as error:
        return {name: False, "error": str(error)}


def _turns(program: Program, cards: Sequence[Card]) -> list[Record]:
    """Start a program that takes GPUs in turn, and return the outcome on each."""
    program.send_line("go")
    return [
        {"gpu": card.index, "newcomer": "in-turn", **_answer(program, "got", turn)}
        for turn, card in enumerate(cards)
    ]
