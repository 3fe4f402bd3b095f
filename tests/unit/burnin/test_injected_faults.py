"""100 of 100 injected faults of each kind are found, and healthy GPUs raise no alarm.

The records are invented, with noise from a fixed seed; bits are flipped in test_injected_bits.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds
from sentinel.burnin.checks.evidence import MomentEvidence
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.loading import load
from sentinel.burnin.record import GpuRecord, Sample
from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.host.event_lines import event_object
from sentinel.protocol.counters import Counters
from tests.harness.check_evidence import (
    FORMER,
    READINGS,
    REFERENCE,
    STEADY,
    Run,
    later,
    random_healthy,
)
from tests.harness.world import World

TRIALS = 100
BAD = {Status.FAIL, Status.WARN}
DEFAULT = Thresholds()
#: One instance each of a normal noise: of rates and power as a share, of temperatures in degrees.
RATE_NOISE, HEAT_NOISE = 0.005, 2.0
RATE = 600e12


def gpu(
    draw: random.Random,
    index: int,
    speed: float = 1.0,
    changed: Mapping[str, Any] | None = None,
    memory: float = 1.0,
) -> GpuRecord:
    """Record half a minute of a GPU under load, with noise; ``changed`` are constant readings."""
    heat = draw.gauss(62.0, HEAT_NOISE)
    own = speed * draw.gauss(1.0, RATE_NOISE)
    # A stream of its own keeps what the others draw, such as temperatures that compare.
    bandwidth = 4.3 * memory * random.Random(heat).gauss(1.0, RATE_NOISE)
    record = Run(copy=bandwidth).record(index)
    steady = record.phases[-1]
    steady.telemetry, steady.reports = [], []
    for at in range(30):
        values = {
            **READINGS,
            "power_w": min(700.0, draw.gauss(690.0, 690.0 * RATE_NOISE)),
            "temperature_c": round(draw.gauss(heat, 0.7)),
            "memory_temperature_c": round(draw.gauss(heat + 8, 0.7)),
            "temperature_margin_c": round(draw.gauss(87 - heat, 0.7)),
            "sm_clock_mhz": round(draw.gauss(1700, 20)),
        }
        steady.telemetry.append(Sample(at=float(at), values={**values, **(changed or {})}))
        work = {"seconds": 1.0, "bytes": 0.0, "flops": RATE * own * draw.gauss(1.0, RATE_NOISE)}
        steady.reports.append(Sample(at=float(at), values=work))
    return record


def judged(draw: random.Random, record: GpuRecord, peers: list[GpuRecord]) -> list[CheckResult]:
    """Judge the load of a GPU against its peers, its own past and a reference."""
    medians, rate = FORMER[0].medians, (STEADY.name, "flops_per_s")
    rates = [RATE * draw.gauss(1.0, RATE_NOISE) for _ in range(5)]
    former = [
        replace(FORMER[0], medians={**medians, rate: one}, temperature_c=62.0) for one in rates
    ]
    evidence = LoadEvidence(
        record=record, peers=[record, *peers], references=(REFERENCE,), former=former
    )
    return CHECKS.run(evidence, DEFAULT)


def alarms(results: list[CheckResult]) -> set[str]:
    """Select the checks that warn or fail."""
    return {result.id for result in results if result.status in BAD}


# --- no false alarm --------------------------------------------------------------------------


#: Ten thousand GPUs are judged for minutes, and a hundred always.
LONG = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.parametrize("nodes", [13, pytest.param(1250, marks=LONG)])
def test_healthy_loads_raise_no_alarm(nodes: int) -> None:
    """Judge the load of eight healthy GPUs of each node."""
    draw = random.Random(20261124)
    for node in range(nodes):
        records = [gpu(draw, index) for index in range(8)]
        for record in records:
            found = judged(draw, record, [other for other in records if other is not record])
            assert alarms(found) == set(), (node, [r for r in found if r.status in BAD])


@pytest.mark.parametrize("nodes", [50, pytest.param(2500, marks=LONG)])
def test_healthy_gpus_raise_no_alarm(nodes: int) -> None:
    """Judge two healthy GPUs of each node twice: at one moment, and after a time."""
    dice = random.Random(20261123)
    for _ in range(nodes):
        node = tuple(random_healthy(dice, index) for index in range(2))
        for one in node:
            moment = CHECKS.run(MomentEvidence(counters=one, node=node), DEFAULT)
            assert alarms(moment) == set(), one
            after = later(dice, one, dice.choice((1.0, 61.0, 600.0)))
            assert counter_alarms(one, after, *node) == set(), (one, after)


# --- every fault -----------------------------------------------------------------------------


@pytest.mark.long
def test_every_slowed_gpu_is_found_and_no_other_is_accused() -> None:
    draw = random.Random(1)
    for _ in range(TRIALS):
        speed = draw.uniform(0.4, 0.88)
        slow, peers = gpu(draw, 0, speed), [gpu(draw, index) for index in range(1, 8)]
        results = {one.id: one.status for one in judged(draw, slow, peers)}
        assert results["rate.peers"] is Status.FAIL, speed
        assert results["rate.history"] is Status.FAIL, speed
        other = judged(draw, peers[0], [slow, *peers[1:]])
        assert alarms(other) == set()


@pytest.mark.long
def test_every_slow_gpu_with_a_bad_cooler_is_found_and_no_cool_one_is_accused() -> None:
    draw = random.Random(6)
    for _ in range(TRIALS):
        power, more = draw.uniform(300, 500), draw.uniform(14, 25)
        peers = [gpu(draw, index) for index in range(1, 8)]
        for extra, found in ((more, {"load.temperature_spread"}), (0.0, set())):
            heat = {"power_w": power, "temperature_c": 30 + 32 * power / 690 + extra}
            records = [gpu(draw, 0, changed=heat), *peers]
            for record in records:
                assert record.before is not None
                record.before = replace(record.before, temperature_c=30)
            spread = {"load.temperature_spread"} & alarms(judged(draw, records[0], records[1:]))
            assert spread == found, (power, extra)


@pytest.mark.long
def test_every_slow_memory_is_found_and_no_other_is_accused() -> None:
    draw = random.Random(7)
    for _ in range(TRIALS):
        share = draw.uniform(0.4, 0.92)
        slow, peers = gpu(draw, 0, memory=share), [gpu(draw, index) for index in range(1, 8)]
        found = alarms(judged(draw, slow, peers))
        assert {"bandwidth.peers", "bandwidth.history"} <= found, share
        assert found <= {"bandwidth.peers", "bandwidth.history", "rate.worst"}, share
        assert alarms(judged(draw, peers[0], [slow, *peers[1:]])) == set()


@pytest.mark.long
def test_every_narrower_or_slower_link_is_found() -> None:
    draw = random.Random(2)
    for _ in range(TRIALS):
        changed = draw.choice(
            [
                {"pcie_width": draw.choice((1, 2, 4, 8))},
                {"pcie_generation": draw.randrange(1, 5)},
                {"pcie_width": 8, "pcie_generation": 3},
            ]
        )
        results = judged(draw, gpu(draw, 0, changed=changed), [])
        assert alarms(results) == {name.replace("_", ".") for name in changed}, changed


@pytest.mark.long
def test_every_high_rate_of_corrected_errors_is_found() -> None:
    """Let the errors begin at any time of the load, on top of those of a card's former life."""
    draw = random.Random(4)
    for _ in range(TRIALS):
        rate, begin, former = draw.uniform(101, 20_000), draw.randrange(60), draw.randrange(10**10)
        record = gpu(draw, 0)
        record.phases[-1].telemetry = [
            Sample(
                at=float(at),
                values={
                    **READINGS,
                    "ecc_corrected_total": former + int(rate * max(0, at - begin)),
                },
            )
            for at in range(begin + 70)
        ]
        results = {one.id: one.status for one in judged(draw, record, [])}
        assert results["ecc.corrected_load"] is Status.FAIL, (rate, begin)


def after_a_run(draw: random.Random) -> tuple[Counters, Counters]:
    """Draw the counters of a healthy GPU before and after ten minutes."""
    before = replace(random_healthy(draw), reasons=("sw_power_cap",))
    return before, later(draw, before, 600.0)


def counter_alarms(before: Counters, after: Counters, *node: Counters) -> set[str]:
    """Judge the counters of a run; select the checks that fail or warn."""
    record = GpuRecord(uuid=before.uuid, index=0, phases=[], before=before, after=after)
    evidence = LoadEvidence(record=record, node=node or (before,))
    return alarms(CHECKS.run(evidence, DEFAULT))


@pytest.mark.long
def test_every_lost_gpu_is_found() -> None:
    draw = random.Random(3)
    for _ in range(TRIALS):
        before, after = after_a_run(draw)
        gone = Counters(uuid=before.uuid, index=0, name=before.name, at=after.at, lost="gone")
        assert counter_alarms(before, gone) == {"gpu.lost"}
        assert "gpu.lost" in counter_alarms(gone, after)


#: By field: the smallest and the largest growth, and the check that finds it.
RISES: dict[str, tuple[float, float, str]] = {
    "ecc_uncorrected_total": (1, 1000, "ecc.uncorrected_new"),
    "ecc_uncorrected_lifetime_total": (1, 1000, "ecc.uncorrected_lifetime_new"),
    "ecc_corrected_total": (11, 10**6, "ecc.corrected_new"),
    "sram_uncorrected_lifetime_total": (1, 100, "memory.sram_uncorrected_new"),
    "remapped_uncorrected_total": (1, 8, "memory.remapped_uncorrected_new"),
    "remapped_corrected_total": (1, 8, "memory.remapped_corrected_new"),
    "hardware_thermal_throttled_s": (0.001, 600.0, "throttle.hardware_thermal"),
    "power_brake_throttled_s": (0.001, 600.0, "throttle.power_brake"),
    "software_thermal_throttled_s": (3.01, 600.0, "throttle.software_thermal"),
    "pcie_replays_total": (81, 10**6, "pcie.replays"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RISES)
def test_every_counter_that_rises_is_found(name: str) -> None:
    assert name in {field.name for field in fields(Counters)}
    least, most, check = RISES[name]
    draw = random.Random(name)
    for _ in range(TRIALS):
        before, after = after_a_run(draw)
        first: Any = getattr(before, name) or 0
        whole = isinstance(least, int)
        rise = draw.randint(int(least), int(most)) if whole else draw.uniform(least, most)
        known: dict[str, Any] = {name: first}
        changed: dict[str, Any] = {name: first + rise}
        before = replace(before, **known)
        assert check in counter_alarms(before, replace(after, **changed)), (first, rise)


def hung(draw: random.Random) -> GpuRecord:
    """Run a plan in a world in which a stressor hangs twice; build the record of its GPU."""
    plan = Plan(name="test", phases=(Phase(name="gemm", workload="gemm", seconds=100),))
    world = World(gpus=1, tick=0.4, config=Config(rearm=1.0, rearm_longest=1.0, plan=plan))
    world.at(0).checks = 10

    def works() -> bool:
        child = world.at(0).child
        return child is not None and child.stage == 3 and not child.unresponsive

    for _ in range(2):
        world.run(works)
        until = world.now + draw.uniform(0.0, 30.0)
        world.run(lambda until=until: world.now >= until)  # type: ignore[misc]
        child = world.child()
        child.unresponsive = True
        count = len(world.events("stressor.failed"))
        failed: Callable[[], bool] = lambda n=count: len(world.events("stressor.failed")) > n  # type: ignore[misc]  # noqa: E731
        world.run(failed)
    events = [event_object(one, {"GPU-0": world.at(0).gpu}) for one in world.published]
    return load(plan, events, [])["GPU-0"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_hang_is_found() -> None:
    draw = random.Random(5)
    for _ in range(TRIALS):
        record = hung(draw)
        found = CHECKS["gpu.hang"].run(LoadEvidence(record=record), DEFAULT)
        assert (found.status, found.value) == (Status.FAIL, 2), found
