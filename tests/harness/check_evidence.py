"""Evidence of healthy GPUs for the checks, with what a test changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.burnin.checks.evidence import MomentEvidence
from sentinel.burnin.checks.load_checks import LoadEvidence, Reference
from sentinel.burnin.record import Checksum, GpuRecord, PhaseRecord, Sample
from sentinel.burnin.run_folder import Former
from sentinel.config.plan import Phase
from sentinel.protocol.counters import Counters
from sentinel.protocol.stressor import LinkPart
from tests.harness.healthy_counters import HEALTHY

SECONDS = 3600.0
PEER = replace(HEALTHY, index=1, uuid="GPU-22222222-0000-0000-0000-000000000000")
STEADY = Phase(name="steady", workload="gemm", seconds=60, steady=True)
MEMORY = Phase(name="memory", workload="memtest", passes=1)
LINKS = Phase(name="links", workload="links", seconds=15, together=True, mandatory=False)
REFERENCE = Reference(
    workload="gemm", unit="TFLOP/s", median=600.0, n=2, state="warm", source="a test"
)
FORMER = tuple(
    Former(
        run=str(day),
        rate=600.0 + day,
        temperature_c=60.0,
        power_limit_w=HEALTHY.power_limit_w,
        vbios=HEALTHY.vbios,
    )
    for day in range(3)
)
#: The readings of a healthy GPU under load.
READINGS: Mapping[str, float | None] = {
    "power_w": 690.0,
    "power_limit_w": 700.0,
    "temperature_c": 60.0,
    "memory_temperature_c": 70.0,
    "temperature_margin_c": 25.0,
    "memory_clock_mhz": 3201.0,
    "pcie_generation": 5,
    "pcie_width": 16,
}
#: What two H200 measured of their links to the host, in GB/s.
TO_HOST: Mapping[LinkPart, float | None] = {
    LinkPart.TO_DEVICE: 55.3,
    LinkPart.TO_HOST: 55.3,
    LinkPart.BOTH: 90.0,
}
TO_PEERS: Mapping[int, float | None] = dict.fromkeys(range(1, 8), 360.0)


def moment(*peers: Counters, findings: int | None = 0, **changed: Any) -> MomentEvidence:
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
    checks: int = 1000
    share: float | None = 0.81
    #: The readings under load that differ from READINGS.
    read: Mapping[str, float | None] = field(default_factory=dict)
    #: The counters before and after the run that differ from HEALTHY.
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    #: Both.
    counters: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    #: Whether a stretch of the steady phase counts.
    steady: bool = True
    ended: str | None = None
    #: The keys, the checksums and those on record.
    checksums: tuple[tuple[str, str, str | None], ...] = (("bf16", "0xa", "0xa"),)
    links: Links | None = field(default_factory=Links)
    given_up: str | None = None
    phase_of_links: Phase = LINKS

    def record(self, index: int = 0) -> GpuRecord:
        """Build the record of the GPU."""
        sample = Sample(at=0.0, values={**READINGS, **self.read})
        work = {"seconds": 1.0, "flops": self.tflops * 1e12, "bytes": 0.0}
        seconds = [float(at) for at in range(60)]
        steady = PhaseRecord(
            phase=STEADY,
            spans=[(0.0, 60.0)],
            work={"seconds": SECONDS, "longest": 60.0, "checks": self.checks, "errors": 0},
            stretches=[(0.0, 60.0)] if self.steady else [],
            telemetry=[replace(sample, at=at) for at in seconds],
            reports=[Sample(at=at, values=work) for at in seconds],
        )
        memory = PhaseRecord(
            phase=MEMORY,
            spans=[(-9.0, -1.0)],
            work={"passes": 1, "share": self.share, "checks": self.checks},
        )
        links = PhaseRecord(phase=self.phase_of_links, work={"given_up": self.given_up})
        links.links = self.links.samples() if self.links is not None else []
        first: Any = {"uuid": f"GPU-{index}", "index": index, **self.counters}
        last: Any = {"at": HEALTHY.at + SECONDS, "energy_j": 2e6, **first, **self.after}
        first = {**first, **self.before}
        return GpuRecord(
            uuid=f"GPU-{index}",
            index=index,
            phases=[memory, links, steady],
            before=replace(HEALTHY, **first),
            after=replace(HEALTHY, **last),
            events=[{"at": 1.0, **event} for event in self.events],
            ended=self.ended,
            closed=True,
            checksums=[Checksum(key=k, checksum=c, stored=s) for k, c, s in self.checksums],
        )

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
