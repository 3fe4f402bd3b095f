"""The verdict about a series: one that grows fails, a flat and noisy one passes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from benchmarks.growth import Measure, Sample, distribution, fit, percentile, trend

#: As for the memory of a process: 100 KiB per 1,000 cycles, in arenas of 2 MiB.
MEMORY = Measure(name="memory", unit="KiB", rate=100.0, step=2048.0)
COUNT = Measure(name="descriptors", unit="", step=2.0)
SLOW_TO_WARM = Measure(name="memory", unit="KiB", rate=100.0, step=2048.0, warm_up=0.5)
LIMITED = Measure(name="log", unit="KiB", limit=500.0)


def series(value: Callable[[float], float], noise: float, cycles: int = 10_000) -> list[Sample]:
    """Build a thousand samples of a run with normally distributed noise."""
    chance = random.Random(7)
    step = cycles / 1000
    return [(n * step, value(n * step) + chance.gauss(0.0, noise)) for n in range(1000)]


@pytest.mark.parametrize(
    ("measure", "samples", "verdict"),
    [
        pytest.param(MEMORY, series(lambda _: 30e3, 0), "flat", id="constant"),
        pytest.param(MEMORY, series(lambda _: 30e3, 900), "flat", id="flat and noisy"),
        pytest.param(MEMORY, series(lambda x: 30e3 - x, 300), "flat", id="falls"),
        pytest.param(MEMORY, series(lambda x: 30e3 + 0.09 * x, 20), "flat", id="as allowed"),
        pytest.param(
            MEMORY, series(lambda x: 30e3 + min(x, 900.0) * 9, 20), "flat", id="warms up only"
        ),
        pytest.param(
            MEMORY, series(lambda x: 30e3 + min(x, 4e3), 20), "FAIL", id="warms up too long"
        ),
        pytest.param(
            SLOW_TO_WARM, series(lambda x: 30e3 + min(x, 4e3), 20), "flat", id="may warm up longer"
        ),
        pytest.param(SLOW_TO_WARM, series(lambda x: 30e3 + x, 20), "FAIL", id="never warm"),
        pytest.param(MEMORY, series(lambda x: 30e3 + 0.4 * x, 20), "FAIL", id="400 bytes a cycle"),
        pytest.param(MEMORY, series(lambda x: 30e3 + x, 900), "FAIL", id="grows under noise"),
        pytest.param(
            MEMORY, series(lambda x: 30e3 + 4096 * (x > 5000), 20), "FAIL", id="jumps in the middle"
        ),
        # A short run: the grain of the measure is more than the rate.
        pytest.param(MEMORY, series(lambda x: 30e3 + 5 * x, 20, 300), "flat", id="an arena"),
        pytest.param(MEMORY, series(lambda x: 30e3 + 20 * x, 20, 300), "FAIL", id="many arenas"),
        pytest.param(COUNT, series(lambda _: 50, 3), "flat", id="count, noisy"),
        pytest.param(COUNT, series(lambda x: 50 + x // 2000, 0), "FAIL", id="one in 2,000 cycles"),
        pytest.param(COUNT, series(lambda x: 50 + 9 * (200 < x < 280), 1, 300), "flat", id="hump"),
        pytest.param(LIMITED, series(lambda x: x / 21, 1), "bounded", id="grows to its limit"),
        pytest.param(LIMITED, series(lambda x: x / 19, 1), "FAIL", id="grows beyond its limit"),
        pytest.param(MEMORY, [], "too few samples", id="nothing measured"),
        pytest.param(MEMORY, [(5.0, 1.0)] * 100, "too few samples", id="no cycle between samples"),
    ],
)
def test_only_growth_beyond_the_allowed_fails(
    measure: Measure, samples: Sequence[Sample], verdict: str
) -> None:
    found = trend(measure, samples)
    assert found.verdict == verdict
    assert found.failed is (verdict not in {"flat", "bounded"})


def test_a_slope_is_that_of_the_line_and_its_error_that_of_the_textbook() -> None:
    # The line is x + 1/3; the squares of the residues are 1/9, 4/9 and 1/9.
    slope, error = fit([(0.0, 0.0), (1.0, 2.0), (2.0, 2.0)])
    assert slope == pytest.approx(1000.0)
    assert error == pytest.approx(1000 * math.sqrt(6 / 9 / 2))


def test_dependent_samples_do_not_look_more_certain_than_they_are() -> None:
    """A measure that wanders is no leak, however many samples repeat each of its values."""
    chance = random.Random(3)
    wander = [chance.gauss(0.0, 400.0) for _ in range(40)]
    samples = [(float(n), 30e3 + wander[n // 250]) for n in range(10_000)]
    assert trend(MEMORY, samples).error > 10.0


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 201)]
    random.Random(1).shuffle(values)
    assert distribution(values) == {"p50": 100.0, "p90": 180.0, "p99": 198.0, "worst": 200.0}
    assert percentile([4.0], 0.99) == 4.0
    assert distribution([]) == {}
