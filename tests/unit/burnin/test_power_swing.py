"""The swing of the power in phases of pulses: seen where the samples show it, else said so."""

from __future__ import annotations

import math

import pytest

from sentinel.burnin.power_swing import describe_swing, power_swing
from sentinel.burnin.record import PhaseRecord, Sample
from sentinel.config.plan import Phase
from tests.harness.narrowing import not_none

SECONDS = 60


def phase_of(workload: str, hz: float, every: float, count: int | None = None) -> PhaseRecord:
    """Build a phase in which the power swings by 200 W around 400."""
    count = round(SECONDS / every) if count is None else count
    phase = PhaseRecord(phase=Phase(name="pulse", workload=workload, seconds=SECONDS))
    phase.stretches.append((1000.0, 1000.0 + SECONDS))
    for number in range(count):
        at = 1000.0 + number * every + 0.03 * every * (number % 3)  # the host is not punctual
        power = 400 + 200 * math.sin(2 * math.pi * hz * at)
        phase.telemetry.append(Sample(at=at, values={"power_w": power}))
    return phase


@pytest.mark.parametrize(
    ("workload", "hz", "every", "text"),
    [
        ("pulse:hz=0.4", 0.4, 1.0, "power at 0.4 Hz: 2"),
        ("pulse:hz=0.2,duty=0.3", 0.2, 1.0, "power at 0.2 Hz: "),
        ("pulse:hz=3", 3.0, 0.1, "power at 3 Hz: "),
        ("pulse", 1.0, 1.0, "power at 1 Hz: not visible: NVML's power was read every 1 s"),
        ("pulse:hz=10,burst=2", 10.0, 1.0, "and shows less than 0.49 Hz"),
        ("pulse:hz=0.4", 0.4, 10.0, "and shows less than 0.049 Hz"),
    ],
)
def test_a_swing_is_measured_below_half_of_the_rate_of_samples(
    workload: str, hz: float, every: float, text: str
) -> None:
    swing = not_none(power_swing(phase_of(workload, hz, every)))
    assert swing["hz"] == hz
    assert swing["visible_below_hz"] == pytest.approx(0.5 / every, rel=0.1)
    if hz < swing["visible_below_hz"]:
        assert swing["amplitude_w"] == pytest.approx(200, rel=0.1)
    else:
        assert swing["amplitude_w"] is None
    assert text in describe_swing({"power_swing": swing})


def test_a_constant_power_has_no_swing() -> None:
    swing = not_none(power_swing(phase_of("pulse:hz=0.4", 0.0, 1.0)))
    assert swing["amplitude_w"] < 1.0


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_samples_show_nothing(count: int) -> None:
    swing = not_none(power_swing(phase_of("pulse:hz=0.4", 0.4, 1.0, count)))
    assert swing["amplitude_w"] is None
    assert describe_swing({"power_swing": swing}).startswith("power at 0.4 Hz: not ")


@pytest.mark.parametrize("workload", ["gemm", "mine:pulse:hz=1"])
def test_other_work_has_none(workload: str) -> None:
    assert power_swing(phase_of(workload, 1.0, 1.0)) is None
    assert describe_swing({"power_swing": None}) == describe_swing({}) == ""
