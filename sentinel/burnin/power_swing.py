"""Find the swing of the power at the rate of the workload pulse, as far as samples show it. Pure.

Samples at equal intervals show frequencies below half of their rate (Nyquist). Power is read about
once a second, as the mean of that second: of a swing of 0.4 Hz, 0.76 are left in the samples.
"""

from __future__ import annotations

import cmath
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sentinel.burnin.record import PhaseRecord
from sentinel.config.specs import parse_workload

#: Fewer samples, or fewer periods, show no amplitude.
_LEAST_SAMPLES, _LEAST_PERIODS = 8, 3.0

#: The rate of ``pulse`` where a plan names none.
_DEFAULT_HZ = 1.0


def power_swing(phase: PhaseRecord) -> dict[str, Any] | None:
    """Return the swing of the power in a phase of pulses, or None for other work.

    Returns:
        The rate ``hz`` of the pulses, the median ``interval_s`` of the samples of the power, the
        frequency ``visible_below_hz`` that it limits, and ``amplitude_w``, half of what the
        sinusoid of that rate swings by; None where it is not visible.
    """
    name, options = parse_workload(phase.phase.workload)
    if name != "pulse":
        return None
    hz = float(options.get("hz", _DEFAULT_HZ))
    points = sorted(
        {
            sample.at: float(sample.values["power_w"])
            for sample in phase.judged(phase.telemetry)
            if sample.values.get("power_w") is not None
        }.items()
    )
    intervals = [later - earlier for (earlier, _), (later, _) in pairwise(points)]
    interval = statistics.median(intervals) if intervals else None
    below = 0.5 / interval if interval else None
    enough = len(points) >= _LEAST_SAMPLES and points[-1][0] - points[0][0] >= _LEAST_PERIODS / hz
    visible = below is not None and hz < below and enough
    return {
        "hz": hz,
        "interval_s": interval,
        "visible_below_hz": below,
        "amplitude_w": _amplitude(points, hz) if visible else None,
    }


def _amplitude(points: Sequence[tuple[float, float]], hz: float) -> float:
    """Compute the amplitude of one frequency by a discrete Fourier sum."""
    mean = statistics.fmean(value for _, value in points)
    terms = ((value - mean) * cmath.exp(-2j * cmath.pi * hz * at) for at, value in points)
    return 2 * abs(sum(terms)) / len(points)


def describe_swing(phase: Mapping[str, Any]) -> str:
    """Describe the swing of a phase of the report; empty for other work than pulses."""
    swing = phase.get("power_swing")  # a report of an earlier version has none
    if swing is None:
        return ""
    at = f"power at {swing['hz']:g} Hz"
    if swing["amplitude_w"] is not None:
        return f"{at}: {swing['amplitude_w']:.0f} W up and down, in means of a second"
    below = swing["visible_below_hz"]
    if below is None:
        return f"{at}: not read"
    why = f"NVML's power was read every {swing['interval_s']:.2g} s, as the mean of a second"
    return f"{at}: not visible: {why}, and shows less than {below:.2g} Hz"
