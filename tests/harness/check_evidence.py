"""Counters of healthy GPUs and evidence for the checks, with what a test changes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.burnin.checks.evidence import Findings, MomentEvidence
from sentinel.burnin.checks.load_evidence import LoadEvidence, Reference
from sentinel.burnin.former_runs import Former
from sentinel.burnin.record import Checksum, GpuRecord, PhaseRecord, Sample
from sentinel.config.plan import Phase
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.counters import Counters, NvLink
from sentinel.protocol.stressor import LinkPart

#: An H200 under load, on a host with NVSwitches.
HEALTHY = Counters(
    uuid="GPU-11111111-0000-0000-0000-000000000000",
    index=0,
    name="NVIDIA H200",
    at=1000.0,
    driver="580.159",
    serial="1650000000001",
    pci_bus_id="00000000:0A:00.0",
    vbios="96.00.9F.00.02",
    inforom="G520.0280.00.05",
    memory_total=143771 * 2**20,
    persistence=True,
    mig=False,
    ecc=True,
    ecc_pending=True,
    inforom_valid=True,
    ecc_corrected_total=0,
    ecc_uncorrected_total=0,
    ecc_corrected_lifetime_total=0,
    ecc_uncorrected_lifetime_total=0,
    sram_corrected_lifetime_total=0,
    sram_uncorrected_lifetime_total=0,
    sram_threshold_exceeded=False,
    remapped_corrected_total=0,
    remapped_uncorrected_total=0,
    remap_pending=False,
    remap_failed=False,
    remap_banks_low=0,
    remap_banks_none=0,
    retired_corrected_total=0,
    retired_uncorrected_total=0,
    retirement_pending=False,
    channel_repair_pending=False,
    tpc_repair_pending=False,
    memory_unrepairable=False,
    recovery_action="none",
    power_throttled_s=100.0,
    thermal_throttled_s=0.0,
    software_thermal_throttled_s=0.0,
    hardware_thermal_throttled_s=0.0,
    power_brake_throttled_s=0.0,
    reasons=("sw_power_cap",),
    sm_clock_mhz=1600,
    sm_clock_maximum_mhz=1980,
    memory_clock_mhz=3201,
    memory_clock_maximum_mhz=3201,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    energy_j=1e6,
    temperature_c=60,
    memory_temperature_c=70,
    slowdown_c=89,
    maximum_c=87,
    shutdown_c=95,
    memory_maximum_c=95,
    temperature_margin_c=27,
    slowdown_margin_c=-2,
    pcie_generation=5,
    pcie_generation_maximum=5,
    pcie_generation_own_maximum=5,
    pcie_width=16,
    pcie_width_maximum=16,
    pcie_replays_total=3,
    nvlinks=tuple(
        NvLink(
            link=link,
            active=True,
            speed_mbps=26562,
            replays_total=0,
            recoveries_total=0,
            crc_errors_total=0,
            effective_ber=1.5e-254,
        )
        for link in range(18)
    ),
    fabric_state="completed",
    fabric_health="healthy",
)


def random_healthy(dice: random.Random, index: int = 0) -> Counters:
    """Vary the counters of a healthy GPU as a fleet does: models, ages, loads, missing values."""
    links = dice.choice(((), HEALTHY.nvlinks or ()))
    idle, limit = dice.random() < 0.5, dice.choice((500.0, 700.0))
    old = replace(
        HEALTHY,
        index=index,
        uuid=f"GPU-{index}",
        pci_bus_id=f"00000000:{index:02X}:00.0",
        name=dice.choice(("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090")),
        at=dice.uniform(0, 1e7),
        persistence=dice.random() < 0.5,
        ecc_corrected_total=dice.randrange(1000),
        ecc_corrected_lifetime_total=dice.randrange(10**6),
        ecc_uncorrected_lifetime_total=dice.choice((0, 0, 0, 2)),
        remapped_corrected_total=dice.randrange(4),
        remapped_uncorrected_total=dice.choice((0, 0, 0, 3)),
        retired_corrected_total=dice.randrange(10),
        power_throttled_s=dice.uniform(0, 1e6),
        software_thermal_throttled_s=dice.uniform(0, 1e3),
        reasons=("gpu_idle",) if idle else dice.choice(((), ("sw_power_cap",))),
        power_limit_w=limit,
        power_limit_default_w=limit,
        temperature_c=dice.randrange(25, 84),
        memory_temperature_c=dice.randrange(25, 89),
        temperature_margin_c=dice.randrange(4, 60),
        pcie_generation=1 if idle else 5,
        pcie_replays_total=dice.randrange(10**6),
        nvlinks=links or None,
        fabric_state="completed" if links else "not_supported",
        fabric_health="healthy" if links else "not_supported",
    )
    if old.name == "NVIDIA GeForce RTX 4090":
        old = replace(old, ecc=False, ecc_pending=False, serial=None, nvlinks=None)
    if dice.random() < 0.2:  # an old driver counts all heat together
        old = replace(
            old,
            software_thermal_throttled_s=None,
            hardware_thermal_throttled_s=None,
            power_brake_throttled_s=None,
            temperature_margin_c=None,
            slowdown_margin_c=None,
        )
    return old


def later(dice: random.Random, before: Counters, seconds: float) -> Counters:
    """Let a healthy GPU run for a time."""
    heat = before.software_thermal_throttled_s
    return replace(
        before,
        at=before.at + seconds,
        energy_j=(before.energy_j or 0.0) + seconds * 600,
        ecc_corrected_total=(before.ecc_corrected_total or 0) + dice.randrange(10),
        power_throttled_s=(before.power_throttled_s or 0.0) + seconds,
        software_thermal_throttled_s=None if heat is None else heat + seconds * 0.004,
        pcie_replays_total=(before.pcie_replays_total or 0)
        + int(seconds / 60 * 16 * 1.92 * 0.1 * dice.uniform(0, 0.4)),
    )


SECONDS = 3600.0
PEER = replace(
    HEALTHY,
    index=1,
    uuid="GPU-22222222-0000-0000-0000-000000000000",
    serial="1650000000002",
    pci_bus_id="00000000:0B:00.0",
)
STEADY = Phase(name="steady", workload="gemm", seconds=60, steady=True)
COPY = Phase(name="copy", workload="elementwise", seconds=10, checked=False)
MEMORY = Phase(name="memory", workload="memtest", passes=1)
LINKS = Phase(name="links", workload="links", seconds=15, together=True, mandatory=False)
REFERENCE = Reference(
    workload="gemm", unit="TFLOP/s", median=600.0, n=2, state="warm", source="a test"
)
FORMER = tuple(
    Former(
        run=str(day),
        medians={
            (STEADY.name, "flops_per_s"): 600e12 + day * 1e12,
            (COPY.name, "bytes_per_s"): 4.3e12,
        },
        temperature_c=60.0,
        power_limit_w=HEALTHY.power_limit_w,
        vbios=HEALTHY.vbios,
        all_reduce=240e9,
        gpus=8,
    )
    for day in range(3)
)
#: The readings of a healthy GPU under load.
READINGS: Mapping[str, float | None] = {
    "power_w": 690.0,
    "power_limit_w": 700.0,
    "temperature_c": 60.0,
    "sm_clock_mhz": 1700.0,
    "memory_temperature_c": 70.0,
    "temperature_margin_c": 25.0,
    "memory_clock_mhz": 3201.0,
    "pcie_generation": 5,
    "pcie_width": 16,
    "ecc_corrected_total": 7,
}
#: What two H200 measured of their links to the host, in GB/s.
TO_HOST: Mapping[LinkPart, float | None] = {
    LinkPart.TO_DEVICE: 55.3,
    LinkPart.TO_HOST: 55.3,
    LinkPart.BOTH: 90.0,
}
TO_PEERS: Mapping[int, float | None] = dict.fromkeys(range(1, 8), 360.0)


def moment(
    *peers: Counters,
    findings: Findings | None = Findings(),  # noqa: B008 - frozen
    **changed: Any,
) -> MomentEvidence:
    """Build the evidence of one moment, with these counters changed."""
    now = replace(HEALTHY, **changed)
    return MomentEvidence(counters=now, node=(now, *(peers or (PEER,))), findings=findings)


@dataclass(frozen=True, kw_only=True)
class Links:
    """What a GPU measured of its links, in GB/s; as one of eight by default."""

    host: Mapping[LinkPart, float | None] = field(default_factory=lambda: TO_HOST)
    peers: Mapping[int, float | None] = field(default_factory=lambda: TO_PEERS)
    all_reduce: float | None = 240.0
    size: int = 8
    wrong: int = 0
    checked: int = 10**9

    def samples(self) -> list[Sample]:
        """Return the samples of each link."""
        return [
            *(self._sample(part, None, rate) for part, rate in self.host.items()),
            *(self._sample(LinkPart.PEER, peer, rate) for peer, rate in self.peers.items()),
            *([self._sample(LinkPart.ALL_REDUCE, None, self.all_reduce)] * (self.size > 1)),
        ]

    def _sample(self, part: LinkPart, peer: int | None, rate: float | None) -> Sample:
        values = {"part": part.value, "peer": peer, "size": self.size, "checked": self.checked}
        speed = None if rate is None else rate * 1e9
        return Sample(at=1.0, values={**values, "rate": speed, "wrong": self.wrong})


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one GPU did in a burn-in; healthy by default, with seven others."""

    tflops: float = 600.0
    #: The bandwidth of copying, in TB/s.
    copy: float | None = 4.3
    checks: int = 1000
    share: float | None = 0.81
    #: The readings under load that differ from READINGS.
    read: Mapping[str, Any] = field(default_factory=dict)
    #: The counters before and after the run that differ from HEALTHY.
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    #: Both.
    counters: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    #: Whether a stretch of the steady phase counts.
    steady: bool = True
    ended: str | None = None
    #: How many corrected errors are counted in each second of the steady phase from the given one.
    corrected: float = 0.0
    corrected_from: int = 0
    #: The keys, the checksums and those on record.
    checksums: tuple[tuple[str, str, str | None], ...] = (("bf16", "0xa", "0xa"),)
    links: Links | None = field(default_factory=Links)
    given_up: str | None = None
    phase_of_links: Phase = LINKS

    def record(self, index: int = 0) -> GpuRecord:
        """Build the record of the GPU."""
        sample = Sample(at=0.0, values={**READINGS, **self.read})
        work = {"seconds": 1.0, "flops": self.tflops * 1e12, "bytes": 0.0}
        seconds = [float(at) for at in range(61)]
        steady = PhaseRecord(
            phase=STEADY,
            spans=[(0.0, 60.0)],
            work=PhaseWork(
                seconds=SECONDS,
                longest=60.0,
                checks=self.checks,
                flops=self.tflops * 1e12 * SECONDS,
            ),
            stretches=[(0.0, 60.0)] if self.steady else [],
            telemetry=[self._reading(sample, at) for at in seconds],
            reports=[Sample(at=at, values=work) for at in seconds],
        )
        memory = PhaseRecord(
            phase=MEMORY,
            spans=[(-9.0, -1.0)],
            work=PhaseWork(covered={"0": 1}, patterns=1, share=self.share, checks=self.checks),
        )
        done = 0.0 if self.given_up else self.phase_of_links.seconds
        work_of_links = PhaseWork(given_up=self.given_up, longest=done, checks=self.checks)
        links = PhaseRecord(phase=self.phase_of_links, work=work_of_links)
        links.links = self.links.samples() if self.links is not None else []
        copy = PhaseRecord(phase=COPY, work=PhaseWork(seconds=COPY.seconds))
        if self.copy is not None:
            moved = {"seconds": 1.0, "flops": 0.0, "bytes": self.copy * 1e12}
            copy.stretches = [(0.0, 9.0)]
            copy.reports = [Sample(at=at, values=moved) for at in seconds[:10]]
        first: Any = {"uuid": f"GPU-{index}", "index": index, **self.counters}
        last: Any = {"energy_j": 2e6, **first, "at": HEALTHY.at + SECONDS, **self.after}
        first = {**first, **self.before}
        return GpuRecord(
            uuid=f"GPU-{index}",
            index=index,
            phases=[memory, links, copy, steady],
            before=replace(HEALTHY, **first),
            after=replace(HEALTHY, **last),
            events=[{"at": 1.0, **event} for event in self.events],
            ended=self.ended,
            closed=True,
            checksums=[Checksum(key=k, checksum=c, stored=s) for k, c, s in self.checksums],
        )

    def _reading(self, sample: Sample, at: float) -> Sample:
        """Count corrected errors on top of those from before the run; no power is constant."""
        before = sample.values["ecc_corrected_total"]
        since = max(0.0, at - self.corrected_from)
        count = None if before is None else before + int(since * self.corrected)
        noise = at % 2 / 1000
        power = sample.values["power_w"]
        varied = {"power_w": power and power + noise, "ecc_corrected_total": count}
        return Sample(at=at, values={**sample.values, **varied})

    def evidence(
        self, peers: Sequence[Run] | None = None, gpus: int = 8, **more: Any
    ) -> LoadEvidence:
        """Build the evidence.

        Args:
            peers: The other GPUs; seven healthy ones by default.
            gpus: How many GPUs the node has.
            more: Fields of the evidence.
        """
        others = [Run()] * 7 if peers is None else peers
        records = [run.record(index) for index, run in enumerate((self, *others))]
        model = records[0].before.name if records[0].before is not None else ""
        given = {"references": (REFERENCE,), "former": FORMER, "model": model, **more}
        node = tuple(replace(HEALTHY, index=index) for index in range(gpus))
        return LoadEvidence(record=records[0], peers=records, node=node, **given)
