"""Full power is held for a while; a short peak is not it."""

from __future__ import annotations

from benchmarks.power import Sample, full_power


def samples(*stretches: tuple[float, float]) -> list[Sample]:
    """Build samples, ten a second, of stretches of seconds and watts."""
    watts = [power for seconds, power in stretches for _ in range(round(10 * seconds))]
    return [Sample(number / 10, power) for number, power in enumerate(watts)]


def test_a_peak_before_the_load_does_not_count() -> None:
    found = samples((1.0, 80.0), (0.2, 700.0), (0.8, 120.0), (4.0, 690.0))
    assert full_power(found, later=4.0) == (2.0, 690.0)


def test_a_dip_within_the_load_does_not_delay_it() -> None:
    found = samples((1.0, 80.0), (0.3, 690.0), (0.1, 600.0), (4.0, 690.0))
    assert full_power(found, later=4.0) == (1.0, 690.0)


def test_without_later_samples_there_is_no_time() -> None:
    assert full_power(samples((1.0, 80.0)), later=4.0) == (None, 0.0)
