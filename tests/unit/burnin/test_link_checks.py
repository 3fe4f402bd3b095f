"""Each check of links: a record that it fails, one that it passes, and ones that prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sentinel.burnin.checks import link_checks
from sentinel.burnin.checks.check import Check, CheckResult, Status
from sentinel.burnin.checks.load_checks import LoadEvidence
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.records.record import GpuRecord, PhaseRecord, Sample, load
from sentinel.config.plan import Phase, Plan
from sentinel.protocol.counters import Counters
from sentinel.protocol.stressor import LinkPart

CHECKS: dict[str, Check[LoadEvidence]] = {check.id: check for check in link_checks.CHECKS}
LINKS = Phase(name="links", workload="links", seconds=15, together=True, mandatory=False)
OTHER = Phase(name="other", workload="gemm", seconds=15)
FINDING = {"event": "stressor.finding", "place": "link", "detail": "peer from GPU 1"}
ALONE = {"event": "burnin.grouped", "missing": []}
BUSY = {"event": "burnin.grouped", "missing": [3]}
#: As two H200 measured it, in GB/s.
HOST = {LinkPart.TO_DEVICE: 55.3, LinkPart.TO_HOST: 55.3, LinkPart.BOTH: 90.0}
EIGHT = dict.fromkeys(range(1, 8), 360.0)


@dataclass(kw_only=True)
class Links:
    """What a GPU measured; healthy by default, with seven others."""

    host: Mapping[LinkPart, float | None] = field(default_factory=lambda: HOST)
    peers: Mapping[int, float | None] = field(default_factory=lambda: EIGHT)
    all_reduce: float | None = 240.0
    size: int = 8
    wrong: int = 0
    checked: int = 10**9
    events: tuple[dict[str, Any], ...] = ()
    measured: bool = True
    given_up: str | None = None
    phase: Phase = LINKS
    generation: int | None = 5
    model: str = "NVIDIA H200"
    node_gpus: int = 8

    def record(self) -> GpuRecord:
        phase = PhaseRecord(phase=self.phase, work={"given_up": self.given_up})
        if self.measured:
            phase.links = [
                *(self._sample(part, None, rate) for part, rate in self.host.items()),
                *(self._sample(LinkPart.PEER, peer, rate) for peer, rate in self.peers.items()),
            ]
            if self.size > 1:
                phase.links.append(self._sample(LinkPart.ALL_REDUCE, None, self.all_reduce))
        before = Counters(
            uuid="GPU-0",
            index=0,
            name=self.model,
            at=0.0,
            pcie_generation_maximum=self.generation,
            pcie_width_maximum=16,
        )
        return GpuRecord(
            uuid="GPU-0",
            index=0,
            phases=[phase],
            before=before,
            after=before,
            events=[{"at": 1.0, **event} for event in self.events],
        )

    def _sample(self, part: LinkPart, peer: int | None, rate: float | None) -> Sample:
        return Sample(
            at=1.0,
            values={
                "part": part.value,
                "peer": peer,
                "size": self.size,
                "rate": None if rate is None else rate * 1e9,
                "checked": self.checked,
                "wrong": self.wrong,
            },
        )


def two(**changes: Any) -> Links:
    """Build the links of one of two GPUs."""
    values: dict[str, Any] = {
        "size": 2,
        "node_gpus": 2,
        "peers": {1: 380.0},
        "all_reduce": 324.0,
        **changes,
    }
    return Links(**values)


def one(**changes: Any) -> Links:
    """Build the links of a GPU alone."""
    return Links(size=1, node_gpus=1, peers={}, events=(ALONE,), **changes)


def result(check: str, links: Links, peers: list[Links] | None = None) -> CheckResult:
    evidence = LoadEvidence(
        record=links.record(),
        peers=[one.record() for one in [links, *(peers or [])]],
        model=links.model,
        node_gpus=links.node_gpus,
    )
    return CHECKS[check].run(evidence, Thresholds())


HEALTHY = [Links() for _ in range(7)]


def slow(part: LinkPart, rate: float) -> dict[LinkPart, float]:
    return {**HOST, part: rate}


SIMULATED: dict[str, Any] = {
    "host": dict.fromkeys(HOST),
    "peers": dict.fromkeys(EIGHT),
    "all_reduce": None,
}
CASES: list[tuple[str, Links, Status]] = [
    ("links.data", Links(), Status.PASS),
    ("links.data", Links(wrong=8), Status.FAIL),
    ("links.data", Links(events=(FINDING,)), Status.FAIL),
    ("links.data", Links(measured=False, events=(FINDING,)), Status.FAIL),
    ("links.data", Links(checked=0), Status.NOT_TESTED),
    ("links.data", one(), Status.PASS),
    ("links.data", Links(**SIMULATED), Status.PASS),
    ("links.data", Links(**SIMULATED, wrong=8), Status.FAIL),
    ("links.host", Links(), Status.PASS),
    ("links.host", Links(host=slow(LinkPart.TO_DEVICE, 47)), Status.WARN),
    ("links.host", Links(host=slow(LinkPart.TO_HOST, 27)), Status.FAIL),
    ("links.host", Links(host=slow(LinkPart.BOTH, 20)), Status.PASS),
    ("links.host", Links(host=slow(LinkPart.TO_HOST, 27), generation=4), Status.PASS),
    ("links.host", Links(generation=None), Status.NOT_APPLICABLE),
    ("links.host", one(host=slow(LinkPart.TO_HOST, 27)), Status.FAIL),
    ("links.host", two(host=slow(LinkPart.TO_HOST, 27), node_gpus=8), Status.NOT_TESTED),
    ("links.host", two(node_gpus=8), Status.PASS),
    ("links.peer", Links(), Status.PASS),
    ("links.peer", Links(peers={**EIGHT, 3: 330.0}), Status.WARN),
    ("links.peer", Links(peers={**EIGHT, 3: 180.0}), Status.FAIL),
    ("links.peer", Links(peers={**EIGHT, 3: 180.0}, node_gpus=9), Status.NOT_TESTED),
    ("links.peer", two(), Status.PASS),
    ("links.peer", two(peers={1: 200.0}), Status.WARN),
    ("links.peer", two(peers={1: 20.0}, model="a card"), Status.NOT_APPLICABLE),
    ("links.peer", one(), Status.NOT_APPLICABLE),
    ("links.all_reduce", Links(), Status.PASS),
    ("links.all_reduce", two(), Status.PASS),
    ("links.all_reduce", Links(all_reduce=100), Status.WARN),
    ("links.all_reduce", two(all_reduce=200, node_gpus=4), Status.NOT_TESTED),
    ("links.all_reduce", two(all_reduce=1, model="a card"), Status.NOT_APPLICABLE),
    ("links.all_reduce", one(), Status.NOT_APPLICABLE),
]


@pytest.mark.parametrize(("check", "links", "status"), CASES)
def test_each_check_has_the_result_of_its_record(check: str, links: Links, status: Status) -> None:
    found = result(check, links, HEALTHY if links.size == 8 else [])
    assert found.status is status, found


@pytest.mark.parametrize("check", CHECKS)
def test_what_was_not_run_is_not_tested(check: str) -> None:
    links = Links(measured=False, given_up="its group was broken up 3 times")
    assert result(check, links).status is Status.NOT_TESTED
    assert "broken up" in result(check, links).evidence
    absent = result(check, Links(measured=False, phase=OTHER))
    assert (absent.status, absent.evidence) == (
        Status.NOT_APPLICABLE,
        "the plan has no phase that tests links",
    )


@pytest.mark.parametrize("check", ["links.host", "links.peer", "links.all_reduce"])
def test_a_simulated_gpu_has_no_rate(check: str) -> None:
    assert result(check, Links(**SIMULATED)).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["links.peer", "links.all_reduce"])
def test_the_links_between_gpus_are_said_to_be_skipped(check: str) -> None:
    assert result(check, one()).evidence == "skipped: the run has one GPU"
    busy = Links(size=1, peers={}, events=(BUSY,))
    assert result(check, busy).status is Status.NOT_TESTED
    assert "GPU 3" in result(check, busy).evidence


def test_a_gpu_with_shorter_ways_is_compared_with_others_that_have_such() -> None:
    bridged = [Links(size=4, node_gpus=4, peers={1: 100.0, 2: 20.0, 3: 20.0}) for _ in range(4)]
    assert result("links.peer", bridged[0], bridged[1:]).status is Status.PASS
    lost = Links(size=4, node_gpus=4, peers={1: 20.0, 2: 20.0, 3: 20.0})
    assert result("links.peer", lost, bridged[1:]).status is Status.FAIL


def test_samples_of_links_are_in_the_record_of_their_phase() -> None:
    sample = {"event": "link", "gpu": "G", "at": 3.0, **Links().record().links[0].values}
    events = [
        {"event": "sentinel.started", "at": 0.0, "gpus": [{"uuid": "G", "index": 0}]},
        {"event": "burnin.phase_started", "gpu": "G", "at": 2.0, "phase": "links"},
    ]
    record = load(Plan(name="test", phases=(OTHER, LINKS)), events, [sample])["G"]
    assert [len(phase.links) for phase in record.phases] == [0, 1]
    assert record.phases[1].link_rates() == {"host_to_device_bytes_per_s": [55.3e9]}
