"""The folder of an invented burn-in, with what a test asks for, and its judged report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.record import LAST
from sentinel.burnin.report import Judged, judge_run, report_object
from sentinel.burnin.run_folder import RunFolder, plan_object
from sentinel.burnin.samples import Samples, sample
from sentinel.config.plan import Phase, Plan
from sentinel.diagnostics.kernel_log import KernelLog, KernelRecord
from sentinel.protocol.events import Event
from tests.harness.check_evidence import HEALTHY

BEGAN = 1000.0
STARTED = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
MEMORY, STEADY, COPY = "memory", "steady", "copy"
GIB = 2**30


def uuid(index: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


@dataclass(kw_only=True)
class ExampleRun:
    """What happens in a run; each phase takes a third of its time."""

    gpus: int = 2
    seconds: float = 180.0
    #: The interval of the samples.
    every: float = 3.0
    name: str = "example"
    model: str = "NVIDIA H200"
    #: By GPU: the name of a process that interrupts its steady phase for the second tenth of it.
    interrupted: Mapping[int, str] = field(default_factory=dict)
    #: By GPU: the number of wrong results in its steady phase.
    wrong: Mapping[int, int] = field(default_factory=dict)
    #: By GPU: why its last phase was given up.
    given_up: Mapping[int, str] = field(default_factory=dict)
    #: The GPUs that do not reach the last phase, because of a signal.
    cut: frozenset[int] = frozenset()
    #: By GPU: what differs after the run.
    moved: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    #: The factor of each GPU's rate.
    rates: Mapping[int, float] = field(default_factory=dict)
    #: By GPU: the golden checksums that it computes, by their keys.
    checksums: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    #: The records of the kernel's log in the middle of the run, each a second after the one before.
    kernel: tuple[str, ...] = ()
    #: The ports above each device of NVIDIA, by its address.
    pci_paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
    screen: bool = False
    #: What the node must be, as TOML.
    expectation: str = ""
    #: By key: the value of a setting, as a flag gives it.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: By which it was begun, or None for the defaults.
    thresholds: Thresholds | None = None
    #: The settings of a resumption, or None if there was none.
    resumed: Mapping[str, str] | None = None

    @property
    def plan(self) -> Plan:
        """The plan."""
        third = self.seconds / 3
        return Plan(
            name=self.name,
            title="An example <of> a plan",
            screen=self.screen,
            phases=(
                Phase(name=MEMORY, workload="memtest", passes=2),
                Phase(name=STEADY, workload="gemm", seconds=third / 2, steady=True, warm_up=5.0),
                Phase(name=COPY, workload="elementwise", seconds=third / 2, checked=False),
            ),
        )

    def write(self, path: Path) -> RunFolder:
        """Write the folder of the run."""
        folder = RunFolder(path=path)
        folder.create()
        folder.write(folder.header, self._header(path.name))
        before = [self._counters(index, BEGAN) for index in range(self.gpus)]
        after = [
            {**self._counters(index, BEGAN + self.seconds), **self.moved.get(index, {})}
            for index in range(self.gpus)
        ]
        folder.write(
            folder.counters,
            {
                "before": before,
                "after": after,
                "pci_devices": None,
                "kernel_log_error": None,
                "pci_paths": self.pci_paths,
                "selected": None,
                "known": {},
                "unacknowledged": [],
                "findings": {},
                "driver_error": None,
                "host_before": {"error": "the ports were not read"},
                "host_after": {"error": "the ports were not read"},
            },
        )
        for file, rows in ((folder.events, self._events()), (folder.samples, self._samples())):
            with file.open("w") as out:
                for row in sorted(rows, key=lambda one: float(one["at"])):
                    time = STARTED + timedelta(seconds=row["at"] - BEGAN)
                    out.write(json.dumps({"time": time.isoformat(), **row}) + "\n")
        return folder

    def _header(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "plan": plan_object(self.plan),
            "tool": "sentinel",
            "version": "1.2.3",
            "started": STARTED.isoformat(),
            "simulated": False,
            "settings": _settings(self.settings),
            "expectation": {"source": "node.toml", "text": self.expectation}
            if self.expectation
            else None,
            "confirmed_faulty": {"known": 0, "found_first": 0},
            "thresholds": None if self.thresholds is None else asdict(self.thresholds),
            "resumed": []
            if self.resumed is None
            else [{"started": STARTED.isoformat(), "settings": _settings(self.resumed)}],
            "boot": "01234567-89ab-cdef-0123-456789abcdef",
            "node": {
                "hostname": "node-7",
                "machine_id": "0123456789abcdef0123456789abcdef",
                "kernel": "6.8.0",
                "python": "3.12.1",
                "torch": None,
                "driver": "580.65.06",
                "uid": 0,
            },
        }

    def _counters(self, index: int, at: float) -> dict[str, Any]:
        return asdict(
            replace(
                HEALTHY,
                uuid=uuid(index),
                index=index,
                name=self.model,
                at=at,
                driver="580.65.06",
                serial=f"16520000{index:05d}",
                pci_bus_id=f"00000000:{index + 1:02X}:00.0",
                vbios="96.00.00.00.01",
                reasons=("gpu_idle",),
                energy_j=700 * at,
            )
        )

    def _events(self) -> Iterator[dict[str, Any]]:
        for index in range(self.gpus):
            yield from self._events_of(index)

    def _events_of(self, index: int) -> Iterator[dict[str, Any]]:
        third = self.seconds / 3

        def event(name: str, at: float, **fields: Any) -> dict[str, Any]:
            return {"at": BEGAN + at, "gpu": uuid(index), "index": index, "event": name, **fields}

        for number, phase in enumerate((MEMORY, STEADY, COPY)):
            begin = number * third
            cut = index in self.cut and phase == COPY
            if not cut:
                yield event("burnin.phase_started", begin, phase=phase, number=number + 1, phases=3)
                yield event("stressor.ready", begin + third / 10, held=GIB, chunks=2, start_s=1.0)
            if phase == STEADY:
                yield event("burnin.warm", begin + third / 9, phase=phase)
                yield from self._steady_events(index, begin, third, event)
            yield event(
                "burnin.phase_ended", begin + third - 0.01, phase=phase, **self._work(index, phase)
            )
        reason = "SIGINT" if index in self.cut else None
        yield event("burnin.ended", self.seconds, plan=self.name, reason=reason)

    def _steady_events(
        self, index: int, begin: float, third: float, event: Any
    ) -> Iterator[dict[str, Any]]:
        if name := self.interrupted.get(index):
            at, back = begin + third * 0.2, begin + third * 0.3
            processes = [{"pid": 47110, "name": name, "user": "anna"}]
            yield event("gpu.yielding", at, processes=processes, evidence="process")
            yield event("burnin.interrupted", at, phase=STEADY, stretch_s=third * 0.1)
            yield event("stressor.ready", back, held=GIB, chunks=2, start_s=1.0)
            yield event("burnin.warm", back + third / 90, phase=STEADY)
        if errors := self.wrong.get(index):
            yield event("stressor.mismatch", begin + third / 2, errors=errors, checks=100)
            yield event(
                "stressor.finding",
                begin + third / 2,
                number=1,
                place="result",
                kind="transient",
                workload="gemm",
                dtype="bf16",
                count=errors,
                detail=None,
                round=7,
                seed=1,
                first=[1207, 88],
                repeats=3,
                repeated=0,
            )

    def _work(self, index: int, phase: str) -> dict[str, Any]:
        """Return what was done of a phase."""
        third = self.seconds / 3
        done = 0.0 if index in self.cut and phase == COPY else third * 0.6
        why = self.given_up.get(index) if phase == COPY else None
        done = 0.0 if why else done
        return {
            "seconds": done,
            "uncounted": 1.5,
            "iterations": 100,
            "flops": 7e14 * done if phase == STEADY else 0.0,
            "bytes": 4e12 * done if phase != STEADY else 0.0,
            "checks": 0 if phase == COPY else 1000,
            "errors": self.wrong.get(index, 0) if phase == STEADY else 0,
            "covered": {str(one): 2 for one in range(4)} if phase == MEMORY else {},
            "patterns": 4,
            "share": 0.88 if phase == MEMORY else None,
            "retained": None,
            "stretch": done,
            "longest": done,
            "interruptions": int(phase == STEADY and index in self.interrupted),
            "given_up": why,
            "passes": 2 if phase == MEMORY else 0,
        }

    def _samples(self) -> Iterator[dict[str, Any]]:
        third = self.seconds / 3
        yield from self._logged(BEGAN + self.seconds / 2)
        yield {"at": BEGAN + self.seconds, "event": LAST}
        for index, found in self.checksums.items():
            at = {"at": BEGAN + third / 10, "gpu": uuid(index), "event": "checksum"}
            for key, checksum in found.items():
                yield from [{**at, "key": key, "checksum": checksum, "stored": None}] * 2
        for index in range(self.gpus):
            for number in range(int(self.seconds / self.every)):
                since = number * self.every
                place = since % third / third
                away = index in self.interrupted and 0.2 < place < 0.3 and third < since < 2 * third
                busy = place > 0.1 and not away
                one = {"at": BEGAN + since, "gpu": uuid(index), "index": None}
                yield {
                    **one,
                    "event": "telemetry",
                    "temperature_c": 62 + number % 3 if busy else 35,
                    "memory_temperature_c": 71 if busy else 40,
                    "power_w": 690.0 + number % 7 if busy else 80.0,
                    "power_limit_w": 700.0,
                    "sm_clock_mhz": 1700 + number % 50 if busy else 345,
                    "memory_clock_mhz": 3201,
                    "temperature_margin_c": 20,
                    "reasons": ["sw_power_cap"],
                    "pcie_generation": 5,
                    "pcie_width": 16,
                    "utilization": 1.0 if busy else 0.0,
                }
                if busy:
                    yield {**one, "event": "work", **self._report(index, since)}

    def _logged(self, at: float) -> Iterator[dict[str, Any]]:
        written: list[Event] = []
        with KernelLog("/dev/null") as log:
            samples = Samples(written.append, log)
            records = [
                KernelRecord(at=at + number, text=text) for number, text in enumerate(self.kernel)
            ]
            log.read = lambda: tuple(records)  # type: ignore[method-assign]
            samples.write(sample(LAST, at))
        for event in written[:-1]:
            yield {"event": event.name, **event.fields}

    def _report(self, index: int, since: float) -> dict[str, Any]:
        """Return the work of one interval."""
        steady = self.seconds / 3 <= since < self.seconds * 2 / 3
        rate = self.rates.get(index, 1.0) * (1 + (since % 5) / 1000)
        return {
            "seconds": self.every,
            "iterations": 10,
            "flops": 6.8e14 * rate * self.every if steady else 0.0,
            "bytes": 0.0 if steady else 4.1e12 * rate * self.every,
            "checks": 10,
            "errors": 0,
        }


def _settings(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return settings as a run records them; that of a key with a slash is of GPU 1."""
    return [
        {
            "key": key.removesuffix("/1"),
            "value": value,
            "source": f"--{key.removesuffix('/1')}",
            "gpu": "1" if key.endswith("/1") else None,
        }
        for key, value in values.items()
    ]


#: One run for each verdict of a node.
RUNS = {
    "PASS": ExampleRun(),
    "WARN": ExampleRun(moved={1: {"ecc_corrected_total": 12}}),
    "FAIL": ExampleRun(wrong={1: 3}, interrupted={0: "python"}),
    "INCOMPLETE": ExampleRun(cut=frozenset({1})),
    "N/A": ExampleRun(screen=True),
}


def judged(run: ExampleRun, folder: Path) -> Judged:
    """Write the folder of a run, and judge it."""
    return judge_run(run.write(folder))


def report_of(run: ExampleRun, folder: Path) -> dict[str, Any]:
    """Write the folder of a run, and build its report; as a reader of its JSON gets it."""
    report: dict[str, Any] = json.loads(json.dumps(report_object(judged(run, folder))))
    return report
