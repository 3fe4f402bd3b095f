"""The record of a burn-in of a node as lists: healthy with realistic noise, until a test spoils it.

Rates, power and temperatures are those of the H100s in ``benchmarks/measured``: the rates of one
card vary by 0.2 % from second to second, those of two good cards by more.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.report import Judged, judge_run, report_object
from sentinel.burnin.run_folder import RunFolder, plan_object
from sentinel.config.plan import Phase, Plan
from sentinel.protocol import __version__
from sentinel.protocol.stressor import LinkPart
from tests.harness.check_evidence import HEALTHY

#: A row of a file of the run.
Row = dict[str, Any]

BEGAN = 5000.0
STARTED = datetime(2026, 11, 27, 8, 0, tzinfo=UTC)
H100, A100, GEFORCE = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"
#: The NVLinks of each model.
LINKS_OF = {H100: 18, A100: 12, GEFORCE: 0}
MEMORY, STEADY, FP16, COPY, LINKS = "memory", "steady", "fp16", "copy", "links"
PHASES = (
    Phase(name=MEMORY, workload="memtest", seconds=30.0, passes=2),
    Phase(name=STEADY, workload="gemm", seconds=120.0, steady=True, warm_up=60.0),
    Phase(name=FP16, workload="gemm:dtype=fp16", seconds=12.0, mandatory=False),
    Phase(name=COPY, workload="elementwise", seconds=20.0, checked=False),
    Phase(name=LINKS, workload="links", seconds=12.0, together=True, mandatory=False),
)
#: The start of a stressor, and the warming up before a steady phase, in seconds.
_START_S, _WARM_S = 3.0, 20.0
_RATES = {STEADY: 672e12, FP16: 690e12}
_MOVED = {MEMORY: 2.6e12, COPY: 3.044e12}
_POWER = {STEADY: 692.0, FP16: 690.0}
#: What NVML reports of data-centre cards only.
_UNREAD_BY_GEFORCE = [
    name
    for name in vars(HEALTHY)
    if name.startswith(("ecc_corrected", "ecc_uncorrected", "sram_", "remap", "channel_", "tpc_"))
] + ["serial", "mig", "memory_unrepairable", "memory_temperature_c", "memory_maximum_c"]
_UNREAD_BY_GEFORCE += ["temperature_margin_c", "slowdown_margin_c"]


def uuid(index: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


def kind_of(phase: str) -> str:
    """Return the name of a phase without the number of its cycle."""
    return phase.partition("-")[0]


@dataclass(kw_only=True)
class RecordedNode:
    """A node, and what was recorded of its burn-in; the lists may be changed before they are read.

    Attributes:
        offsets: How much faster each card is than the median, as a share.
        earlier: How many healthy runs of the same GPUs are beside this one.
        before, after: The counters of each GPU.
    """

    gpus: int = 8
    model: str = H100
    phases: tuple[Phase, ...] = PHASES
    seed: int = 1
    every_s: float = 1.0
    offsets: dict[int, float] = field(default_factory=dict)
    started: datetime = STARTED
    earlier: int = 0
    settings: list[Row] = field(default_factory=list)
    #: What the node must be: the text and its source; None for nothing.
    expectation: Row | None = None
    #: How many samples were written, if some were taken away since.
    written: int | None = None
    before: list[Row] = field(init=False)
    after: list[Row] = field(init=False)
    events: list[Row] = field(init=False)
    samples: list[Row] = field(init=False)
    counters: Row = field(init=False)

    def __post_init__(self) -> None:
        """Record a healthy run."""
        self._dice = random.Random(self.seed)
        #: When each phase began, its stressor was ready, its work counted, and it ended.
        self.spans: dict[str, tuple[float, float, float, float]] = {}
        at = BEGAN + 2.0
        for phase in self.phases:
            ready = at + _START_S
            counts = ready + (_WARM_S if phase.steady else 0.0)
            self.spans[phase.name] = (at, ready, counts, counts + phase.seconds)
            at = counts + phase.seconds + 0.5
        self.ended = at
        self.before = [self._counters(index, BEGAN) for index in range(self.gpus)]
        self.after = [self._counters(index, at) for index in range(self.gpus)]
        self.events, self.samples = [], []
        named = [{"uuid": uuid(index), "index": index} for index in range(self.gpus)]
        self.events.append({"at": BEGAN, "event": "burnin.run_started", "gpus": named, "gpu": None})
        for index in range(self.gpus):
            self.events += self._events(index)
            self.samples += self._samples(index)
        self.counters = {"pci_devices": None, "selected": False, "known": {}}
        self.counters |= {"kernel_log_error": None, "host_before": {}, "host_after": {}}
        self.counters |= {
            "pci_paths": {},
            "unacknowledged": [],
            "findings": {},
            "driver_error": None,
        }

    # --- what a test changes ------------------------------------------------------------------

    def rows(self, gpu: int, event: str, *phases: str, part: slice | None = None) -> list[Row]:
        """Select samples of a GPU in phases; ``part`` is a slice of the thousandths of each."""
        found = []
        for phase in phases or self.spans:
            _, ready, _, end = self.spans[phase]
            first, last = (0, 1000) if part is None else (part.start, part.stop)
            begin, stop = (ready + (end - ready) * share / 1000 for share in (first, last))
            found += [
                row
                for row in self.samples
                if row["event"] == event and row["gpu"] == uuid(gpu) and begin <= row["at"] < stop
            ]
        return found

    def tell(self, gpu: int | None, event: str, at: float, **fields: Any) -> None:
        """Add an event; the time is in seconds since the run began."""
        row = {"at": BEGAN + at, "event": event, "gpu": None, "index": None, **fields}
        if gpu is not None:
            row |= {"gpu": uuid(gpu), "index": gpu}
        self.events.append(row)

    def log(self, at: float, number: int, gpu: int, text: str = "", pid: int | None = None) -> None:
        """Add an XID of the kernel's log; the time is in seconds since the run began."""
        address = str(self.before[gpu]["pci_bus_id"]).removesuffix(".0")
        row = {"at": BEGAN + at, "event": "xid", "gpu": None, "index": None, "number": number}
        self.samples.append(row | {"pci_bus_id": address, "pid": pid, "text": text})

    def ends_of(self, gpu: int, phase: str) -> Row:
        """Return the event that ends a phase of a GPU."""
        return next(
            row
            for row in self.events
            if row["event"] == "burnin.phase_ended"
            and row["gpu"] == uuid(gpu)
            and row["phase"] == phase
        )

    # --- writing and judging ------------------------------------------------------------------

    def write(self, path: Path) -> RunFolder:
        """Write the folder of the run, and those of the earlier ones beside it."""
        folder = RunFolder(path=path)
        folder.create()
        for number in range(1, self.earlier + 1):
            self._write_earlier(path.with_name(f"earlier-{number}"), number)
        plan = Plan(name="lab", title="a plan of all kinds of work", phases=self.phases)
        node: Row = {"hostname": "node-7", "machine_id": "0123456789abcdef0123456789abcdef"}
        node |= {"kernel": "6.8.0", "python": "3.12.1", "torch": None, "driver": "580.105.08"}
        header: Row = {"id": path.name, "plan": plan_object(plan), "tool": "sentinel"}
        header |= {"version": __version__, "started": self.started.isoformat()}
        header |= {"simulated": False}
        header |= {"settings": self.settings, "confirmed_faulty": {"known": 0, "found_first": 0}}
        header |= {"thresholds": None, "expectation": self.expectation}
        header |= {"resumed": [], "boot": "01234567-89ab-cdef-0123-456789abcdef"}
        folder.write(folder.header, {**header, "node": {**node, "uid": 0}})
        after = [row for row in self.after if row.get("uuid")]
        folder.write(folder.counters, {"before": self.before, "after": after, **self.counters})
        count = len(self.samples) if self.written is None else self.written
        last = {"at": self.ended, "event": "last", "gpu": None, "index": None, "count": count}
        last["event_count"] = len(self.events)
        _write_rows(folder.events, self.events)
        _write_rows(folder.samples, [*self.samples, last])
        return folder

    def _write_earlier(self, path: Path, days: int) -> None:
        if path.exists():
            return
        node = RecordedNode(gpus=self.gpus, model=self.model, phases=self.phases, seed=days)
        node.started -= timedelta(days=days)
        judged = node.judge(path)
        (path / "report.json").write_text(json.dumps(report_object(judged)))

    def judge(self, path: Path, thresholds: Thresholds | None = None) -> Judged:
        """Write the folder of the run, and judge it."""
        return judge_run(self.write(path), thresholds or Thresholds())

    # --- a healthy run ------------------------------------------------------------------------

    def _counters(self, index: int, at: float) -> Row:
        links = LINKS_OF[self.model]
        old = self.model == GEFORCE
        # What a card of this kind cannot read.
        unread: Row = dict.fromkeys(_UNREAD_BY_GEFORCE) if old else {}
        known: Row = {"serial": f"1652000{index:05d}", "memory_temperature_c": 38}
        known |= {"temperature_margin_c": 50, **unread}
        link = replace((HEALTHY.nvlinks or ())[0], effective_ber=0.0)
        found = replace(
            HEALTHY,
            uuid=uuid(index),
            index=index,
            name=self.model,
            at=at,
            driver="580.105.08",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            vbios="96.00.74.00.01",
            inforom="G520",
            memory_total=80 * 2**30,
            ecc=not old,
            ecc_pending=not old,
            retired_corrected_total=None,
            retired_uncorrected_total=None,
            retirement_pending=None,
            power_throttled_s=0.0,
            reasons=("gpu_idle",),
            sm_clock_mhz=345,
            memory_clock_mhz=2619,
            memory_clock_maximum_mhz=2619,
            energy_j=1e6 + 600 * at,
            temperature_c=32,
            pcie_replays_total=0,
            nvlinks=tuple(replace(link, link=number) for number in range(links)) or None,
            fabric_state="completed" if links else "not_supported",
            fabric_health="healthy" if links else "not_supported",
            **known,
        )
        row: Row = json.loads(json.dumps(asdict(found)))
        return row

    def _events(self, index: int) -> Iterator[Row]:
        def row(event: str, at: float, **fields: Any) -> Row:
            return {"at": at, "gpu": uuid(index), "index": index, "event": event, **fields}

        for number, phase in enumerate(self.phases, start=1):
            begin, ready, counts, end = self.spans[phase.name]
            pid = 1000 + 100 * index + number
            name, seconds = phase.name, phase.seconds
            yield row(
                "burnin.phase_started", begin, phase=name, number=number, phases=len(self.phases)
            )
            yield row("stressor.starting", begin + 0.1, pid=pid)
            yield row("stressor.ready", ready, pid=pid)
            if phase.steady:
                yield row("burnin.warm", counts, phase=name)
            kind = kind_of(name)
            yield row(
                "burnin.phase_ended",
                end,
                phase=name,
                seconds=seconds,
                uncounted=counts - ready + 1.0,
                iterations=int(100 * seconds),
                flops=_RATES.get(kind, 0.0) * seconds,
                bytes=_MOVED.get(kind, 0.0) * seconds,
                checks=int(100 * seconds) if phase.checked else 0,
                errors=0,
                covered={str(one): phase.passes for one in range(4)} if phase.passes else {},
                patterns=4 if phase.passes else 0,
                share=0.88 if phase.passes else None,
                retained=None,
                stretch=seconds,
                longest=seconds,
                interruptions=0,
                given_up=None,
                passes=phase.passes,
            )
            yield row("stressor.stopped", end + 0.1, cause="policy", killed=False, stop_s=0.1)
        yield row("burnin.ended", self.ended - 0.2, plan="lab", reason=None)

    def _samples(self, index: int) -> Iterator[Row]:
        own = {"gpu": uuid(index), "index": None}
        watched = {"first": BEGAN, "last": self.ended}
        yield {"at": self.ended, "event": "xids_watched", **watched, **own}
        dice, faster = self._dice, 1 + self.offsets.get(index, 0.0)
        heat = dice.uniform(-4, 4)
        for phase in self.phases:
            kind = kind_of(phase.name)
            _, ready, _, end = self.spans[phase.name]
            for number in range(int((end - ready) / self.every_s)):
                at = ready + 0.3 + number * self.every_s
                hot = kind in _POWER
                yield {
                    "at": at,
                    "event": "telemetry",
                    **own,
                    "temperature_c": round((63 if hot else 50) + heat),
                    "memory_temperature_c": None if self.model == GEFORCE else round(72 + heat),
                    "power_w": _POWER.get(kind, 350.0) + dice.uniform(-3, 3),
                    "power_limit_w": 700.0,
                    "sm_clock_mhz": 1600 + dice.randrange(50),
                    "memory_clock_mhz": 2619,
                    "temperature_margin_c": None if self.model == GEFORCE else 20,
                    "reasons": ["sw_power_cap"] if hot else [],
                    "pcie_generation": 5,
                    "pcie_width": 16,
                    "utilization": 1.0,
                    "ecc_corrected_total": None if self.model == GEFORCE else 0,
                }
                yield {
                    "at": at + 0.2,
                    "event": "work",
                    **own,
                    "seconds": self.every_s,
                    "iterations": 100,
                    "flops": _RATES.get(kind, 0.0) * faster * dice.gauss(1, 0.002) * self.every_s,
                    "bytes": _MOVED.get(kind, 0.0) * dice.gauss(1, 0.0007) * self.every_s,
                    "checks": 100 if phase.checked else 0,
                    "errors": 0,
                }
                if kind == LINKS:
                    yield from self._links(index, at + 0.3, own)

    def _links(self, index: int, at: float, own: Row) -> Iterator[Row]:
        to_peers = [(LinkPart.PEER, peer, 300e9) for peer in range(self.gpus) if peer != index]
        host = [(LinkPart.TO_DEVICE, None, 55e9), (LinkPart.TO_HOST, None, 55e9)]
        for part, peer, rate in [*host, *(to_peers if LINKS_OF[self.model] else [])]:
            measured = {"rate": rate * self._dice.gauss(1, 0.003), "checked": 10**9, "wrong": 0}
            more = {"size": self.gpus, "memory": None}
            yield {
                "at": at,
                "event": "link",
                "part": part.value,
                "peer": peer,
                **measured,
                **more,
                **own,
            }


def _write_rows(path: Path, rows: list[Row]) -> None:
    with path.open("w") as file:
        for row in sorted(rows, key=lambda one: one["at"]):
            at = STARTED + timedelta(seconds=row["at"] - BEGAN)
            file.write(json.dumps({"time": at.isoformat(), **row}) + "\n")
