"""Each check of a GPU's load: one record that it fails, one that it passes, one that it skips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sentinel.burnin.checks import link_checks
from sentinel.burnin.checks.check import Check, CheckResult, Status
from sentinel.burnin.checks.load_checks import LoadEvidence
from sentinel.burnin.checks.references import Reference, load_references
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.records.history import Former
from sentinel.burnin.records.record import Checksum, GpuRecord, PhaseRecord, Sample
from sentinel.burnin.reports.report import LOAD_CHECKS
from sentinel.burnin.reports.verdict import Verdict, judge_gpu, judge_node
from sentinel.config.plan import Phase, Plan
from sentinel.protocol.counters import Counters

#: Those of links have tests of their own.
CHECKS: dict[str, Check[LoadEvidence]] = {
    check.id: check for check in LOAD_CHECKS if check not in link_checks.CHECKS
}
STEADY = Phase(name="steady", workload="gemm", seconds=60, steady=True)
MEMORY = Phase(name="memory", workload="memtest", passes=1)
REFERENCE = Reference(
    workload="gemm", unit="TFLOP/s", median=600.0, n=2, state="warm", source="a test"
)


@dataclass(kw_only=True)
class Load:
    """What a GPU did in the steady phase; healthy by default."""

    tflops: float = 600.0
    power_w: float | None = 690.0
    power_limit_w: float | None = 700.0
    temperature_c: float | None = 60.0
    memory_temperature_c: float | None = 70.0
    temperature_margin_c: float | None = 25.0
    memory_clock_mhz: float | None = 3201.0
    pcie_generation: float | None = 5
    pcie_width: float | None = 16
    checks: int = 1000
    share: float | None = 0.81
    events: list[dict[str, Any]] = field(default_factory=list)
    #: Whether a stretch of the steady phase counts.
    steady: bool = True
    ended: str | None = None
    #: The checksum that it computes, and the one on record before.
    checksum: tuple[str, str | None] | None = ("0xa", "0xa")
    before: Counters = field(
        default_factory=lambda: Counters(
            uuid="GPU-0",
            index=0,
            name="NVIDIA H200",
            at=0.0,
            maximum_c=87,
            memory_maximum_c=95,
            memory_clock_maximum_mhz=3201,
            sm_clock_maximum_mhz=1980,
            power_limit_w=700.0,
            pcie_generation_maximum=5,
            pcie_width_maximum=16,
        )
    )

    def record(self) -> GpuRecord:
        names = (
            *("power_w", "power_limit_w", "temperature_c", "memory_temperature_c"),
            "temperature_margin_c",
            *("memory_clock_mhz", "pcie_generation", "pcie_width"),
        )
        telemetry = [
            Sample(at=float(at), values={name: getattr(self, name) for name in names})
            for at in range(60)
        ]
        work = {"seconds": 1.0, "flops": self.tflops * 1e12, "bytes": 0.0}
        phase = PhaseRecord(
            phase=STEADY,
            spans=[(0.0, 60.0)],
            work={"seconds": 60.0, "longest": 60.0, "checks": self.checks, "errors": 0},
            stretches=[(0.0, 60.0)] if self.steady else [],
            telemetry=telemetry,
            reports=[Sample(at=float(at), values=work) for at in range(60)],
        )
        memory = PhaseRecord(
            phase=MEMORY,
            spans=[(-9.0, -1.0)],
            work={"passes": 1, "share": self.share, "checks": self.checks},
        )
        return GpuRecord(
            uuid="GPU-0",
            index=0,
            phases=[memory, phase],
            before=self.before,
            after=self.before,
            events=[{"at": 1.0, **event} for event in self.events],
            ended=self.ended,
            checksums=[Checksum(key="bf16", checksum=self.checksum[0], stored=self.checksum[1])]
            if self.checksum
            else [],
        )


FORMER = [
    Former(run=str(day), rate=600.0 + day, temperature_c=60.0, power_limit_w=700.0)
    for day in range(3)
]


def result(
    check: str,
    load: Load,
    peers: list[Load] | None = None,
    former: list[Former] | None = None,
) -> CheckResult:
    records = [one.record() for one in (load, *(peers or []))]
    for index, one in enumerate(records):
        one.uuid, one.index = f"GPU-{index}", index
    evidence = LoadEvidence(
        record=records[0],
        peers=records,
        references=(REFERENCE,),
        former=FORMER if former is None else former,
        model="NVIDIA H200",
    )
    return CHECKS[check].run(evidence, Thresholds())


MISMATCH = {"event": "stressor.mismatch", "errors": 2, "checks": 10}
FINDING = {"event": "stressor.finding", "place": "memory", "detail": "bit 3", "workload": "memtest"}
HANG = {"event": "stressor.failed", "kind": "hang", "reason": "no progress for 30 s"}
OTHER = {"event": "stressor.failed", "kind": "stuck", "reason": "longer than a lease"}
HEALTHY = [Load() for _ in range(7)]

FAILED = {
    "load.margin": Load(temperature_margin_c=-1),
    "results.wrong": Load(events=[MISMATCH]),
    "results.finding": Load(events=[FINDING]),
    "golden.stored": Load(checksum=("0xb", "0xa")),
    "golden.peers": Load(checksum=("0xb", None)),
    "gpu.hang": Load(events=[HANG, HANG]),
    "load.temperature": Load(temperature_c=88),
    "load.memory_temperature": Load(memory_temperature_c=96),
    "load.memory_clock": Load(memory_clock_mhz=1600),
    "load.pcie": Load(pcie_width=8),
    "rate.peers": Load(tflops=530),
    "rate.history": Load(tflops=560),
    "rate.reference": Load(tflops=440),
}
WARNED = {
    "load.margin": Load(temperature_margin_c=3),
    "stressor.failures": Load(events=[OTHER]),
    "memory.covered": Load(share=0.5),
    "gpu.hang": Load(events=[HANG]),
    "load.temperature": Load(temperature_c=85),
    "load.memory_temperature": Load(memory_temperature_c=93),
    "load.temperature_spread": Load(temperature_c=76),
    "load.power": Load(power_w=400),
    "rate.history": Load(tflops=575),
    "rate.peers": Load(tflops=565, before=replace(Load().before, power_limit_w=600.0)),
}
UNTESTED = {
    "memory.covered": Load(share=None),
    "results.wrong": Load(checks=0),
    "results.finding": Load(checks=0),
    "golden.stored": Load(checksum=("0xa", None)),
    "golden.peers": Load(checksum=None),
    "load.temperature": Load(temperature_c=None),
    "load.power": Load(steady=False),
    "load.memory_clock": Load(memory_clock_mhz=None),
    "load.pcie": Load(pcie_generation=None),
    "rate.peers": Load(power_w=400),
    "rate.history": Load(power_w=400),
    "rate.reference": Load(power_w=400),
}
ABSENT = {
    "load.margin": Load(temperature_margin_c=None),
    "load.temperature": Load(before=replace(Load().before, maximum_c=None)),
    "load.memory_temperature": Load(before=replace(Load().before, memory_maximum_c=None)),
    "load.memory_clock": Load(before=replace(Load().before, memory_clock_maximum_mhz=None)),
    "load.pcie": Load(before=replace(Load().before, pcie_width_maximum=None)),
}
CASES = {
    Status.FAIL: FAILED,
    Status.WARN: WARNED,
    Status.NOT_TESTED: UNTESTED,
    Status.NOT_APPLICABLE: ABSENT,
}


@pytest.mark.parametrize(
    ("check", "load", "status"),
    [(check, load, status) for status, cases in CASES.items() for check, load in cases.items()],
)
def test_each_check_has_the_result_of_its_record(check: str, load: Load, status: Status) -> None:
    found = result(check, load, HEALTHY)
    assert found.status is status, found
    if status in {Status.FAIL, Status.WARN}:
        assert found.action
        assert found.threshold
        assert found.source


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_passes_a_healthy_gpu_and_can_fail_or_warn(check: str) -> None:
    assert result(check, Load(), HEALTHY).status is Status.PASS
    assert check in FAILED or check in WARNED


@pytest.mark.parametrize("check", ["rate.peers", "load.temperature_spread"])
def test_too_few_gpus_are_no_peers(check: str) -> None:
    found = result(check, Load(tflops=100, temperature_c=90), [Load(), Load()])
    assert found.status is Status.NOT_APPLICABLE


def test_other_failures_of_a_stressor_are_no_hang() -> None:
    assert result("gpu.hang", Load(events=[OTHER])).status is Status.PASS


def test_a_gpu_that_cannot_be_read_any_more_has_failed() -> None:
    load = Load(ended="it is lost, or hangs: it fell off the bus")
    assert result("gpu.hang", load).status is Status.FAIL
    load = Load(ended="it cannot be read: the driver is being replaced")
    assert result("gpu.hang", load).status is Status.PASS


def test_a_card_is_not_compared_with_few_runs_or_with_hotter_ones() -> None:
    slow = Load(tflops=300)
    assert result("rate.history", slow, former=FORMER[:2]).status is Status.NOT_APPLICABLE
    flashed = [replace(one, vbios="97") for one in FORMER]
    assert result("rate.history", slow, former=flashed).status is Status.NOT_APPLICABLE
    hot = [replace(one, temperature_c=70.0) for one in FORMER]
    assert result("rate.history", slow, former=hot).status is Status.NOT_APPLICABLE
    assert result("rate.history", slow).status is Status.FAIL


def test_eight_equal_gpus_with_usual_noise_pass() -> None:
    peers = [Load(tflops=600 + delta) for delta in (-6, -4, -1, 0, 1, 3, 5)]
    assert result("rate.peers", Load(tflops=592), peers).status is Status.PASS


def test_five_percent_alone_is_no_failure_among_gpus_that_differ() -> None:
    peers = [Load(tflops=one) for one in (560, 580, 600, 620, 640, 660, 540)]
    assert result("rate.peers", Load(tflops=555), peers).status is Status.WARN


def test_the_rule_of_three_is_in_the_evidence() -> None:
    assert "1.5e-03" in result("results.wrong", Load(checks=1000)).evidence


def test_another_number_format_is_not_compared_with_the_reference() -> None:
    record = Load(tflops=50).record()
    record.phases[1].phase = replace(STEADY, workload="gemm:dtype=fp64")
    evidence = LoadEvidence(record=record, references=(REFERENCE,))
    assert CHECKS["rate.reference"].run(evidence, Thresholds()).status is Status.NOT_TESTED


def test_the_coverage_is_judged_where_no_stripe_is_held() -> None:
    record = Load(share=0.8).record()
    work = {"passes": 1, "share": 0.5, "retained": 0.11}
    held = PhaseRecord(phase=replace(MEMORY, name="retention"), work=work)
    record.phases.append(held)
    evidence = LoadEvidence(record=record)
    assert CHECKS["memory.covered"].run(evidence, Thresholds()).status is Status.PASS
    record.phases = [held]
    assert CHECKS["memory.covered"].run(evidence, Thresholds()).status is Status.WARN


def test_an_unknown_model_has_no_reference() -> None:
    evidence = LoadEvidence(record=Load().record(), model="a card")
    found = CHECKS["rate.reference"].run(evidence, Thresholds())
    assert (found.status, found.evidence) == (
        Status.NOT_APPLICABLE,
        "there is no reference for a card",
    )


def test_the_shipped_references_have_sources_and_phases_of_the_levels() -> None:
    for references in load_references().values():
        for one in references:
            assert one.source
            assert one.n > 0
            assert one.workload in {"gemm", "elementwise"}
            assert one.unit in {"TFLOP/s", "TB/s"}


# --- the verdict -----------------------------------------------------------------------------

PLAN = Plan(name="test", phases=(STEADY,))


def verdict(load: Load, plan: Plan = PLAN, *, complete: bool = True) -> Verdict:
    record = load.record()
    if not complete:
        record.phases[1].work = {"longest": 30.0, "seconds": 55.0}
    return judge_gpu(record, [result(check, load) for check in CHECKS], plan).verdict


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (lambda: verdict(Load()), Verdict.PASS),
        (lambda: verdict(Load(events=[MISMATCH])), Verdict.FAIL),
        (lambda: verdict(Load(events=[MISMATCH]), complete=False), Verdict.FAIL),
        (lambda: verdict(Load(), complete=False), Verdict.INCOMPLETE),
        (lambda: verdict(Load(power_w=300), complete=False), Verdict.INCOMPLETE),
        (lambda: verdict(Load(power_w=300)), Verdict.WARN),
        (lambda: verdict(Load(), replace(PLAN, screen=True)), Verdict.NOT_APPLICABLE),
        (lambda: verdict(Load(events=[HANG, HANG]), replace(PLAN, screen=True)), Verdict.FAIL),
    ],
)
def test_a_fault_is_final_and_a_pass_needs_every_quota(
    found: Callable[[], Verdict], wanted: Verdict
) -> None:
    assert found() is wanted


@pytest.mark.parametrize("changes", [{"before": None}, {"after": None}, {"dropped": 3}])
def test_a_pass_needs_the_counters_and_every_event(changes: dict[str, Any]) -> None:
    record = Load().record()
    for name, value in changes.items():
        setattr(record, name, value)
    assert judge_gpu(record, [], PLAN).verdict is Verdict.INCOMPLETE


def test_a_pass_needs_results_that_were_checked() -> None:
    assert verdict(Load(checks=0)) is Verdict.INCOMPLETE


def test_an_error_counts_although_its_event_was_lost() -> None:
    record = Load().record()
    record.phases[1].work = {**record.phases[1].work, "errors": 7}
    found = CHECKS["results.wrong"].run(LoadEvidence(record=record), Thresholds())
    assert found.status is Status.FAIL


def test_gpus_that_ran_at_other_times_are_no_peers() -> None:
    slow, others = Load(tflops=500).record(), [Load().record() for _ in range(5)]
    for number, one in enumerate(others):
        one.phases[1].stretches = [(100.0 * number + 100, 100.0 * number + 160)]
    evidence = LoadEvidence(record=slow, peers=[slow, *others])
    assert CHECKS["rate.peers"].run(evidence, Thresholds()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["rate.peers", "rate.history", "rate.reference"])
def test_no_rate_is_judged_at_a_lower_power_limit(check: str) -> None:
    before = replace(Load().before, power_limit_w=500.0, power_limit_default_w=700.0)
    load = Load(tflops=400, power_w=495, power_limit_w=500, before=before)
    assert result(check, load, HEALTHY).status in {Status.NOT_TESTED, Status.NOT_APPLICABLE}


def test_a_geforce_that_computes_below_its_memory_clock_passes() -> None:
    assert result("load.memory_clock", Load(memory_clock_mhz=3201 * 0.974)).status is Status.PASS


def test_an_optional_phase_is_not_missed() -> None:
    optional = replace(STEADY, mandatory=False)
    load = Load()
    record = load.record()
    record.phases = [record.phases[0], PhaseRecord(phase=optional)]
    assert judge_gpu(record, [], Plan(name="test", phases=(optional,))).verdict is Verdict.PASS


def test_a_node_has_the_worst_verdict_and_an_empty_one_is_no_pass() -> None:
    passed = judge_gpu(Load().record(), [], PLAN)
    failed = judge_gpu(Load().record(), [result("gpu.hang", Load(events=[HANG, HANG]))], PLAN)
    assert judge_node([passed, failed]) is Verdict.FAIL
    assert judge_node([passed]) is Verdict.PASS
    assert judge_node([]) is Verdict.INCOMPLETE
