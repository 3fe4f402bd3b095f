"""Whether a measure grows over a long run: a least-squares slope, its error and a verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

#: The first part of a run: caches fill, and memory is allocated for the first time.
WARM_UP = 0.1
#: Neighbouring samples depend on each other. The means of this many groups hardly do, so that the
#: standard error of their slope is not too small.
GROUPS = 40
#: Fewer groups than this have no useful error.
MIN_GROUPS = 5
#: The interval of confidence in standard errors: more than 99.9 % from 20 groups on. A run has
#: twenty measures, and none may fail by chance.
ERRORS = 4.0
#: A slope is given per so many cycles.
PER = 1000.0

#: One sample: the number of cycles until then, and the value.
Sample = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One series of a run, and the growth or the size that it may have.

    Attributes:
        name: What is measured.
        unit: The unit of the values.
        rate: The allowed growth per 1,000 cycles.
        step: The allowed growth over a whole run, where that is more: the grain of the measure.
        limit: The largest allowed value, or None. A series with a limit may grow up to it.
        warm_up: The first part of a run, which does not count.
    """

    name: str
    unit: str
    rate: float = 0.0
    step: float = 0.0
    limit: float | None = None
    warm_up: float = WARM_UP


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The trend of a series after the warm-up, and the verdict."""

    measure: Measure
    samples: int
    first: float
    last: float
    highest: float
    #: Per 1,000 cycles.
    slope: float
    error: float
    #: The allowed slope of this run, per 1,000 cycles.
    allowed: float
    #: "flat", "bounded", "too few samples" or "FAIL".
    verdict: str

    @property
    def failed(self) -> bool:
        """Whether the verdict is a failure."""
        return self.verdict not in {"flat", "bounded"}


def trend(measure: Measure, samples: Sequence[Sample]) -> Trend:
    """Fit a line to a series after its warm-up, and judge it.

    Args:
        measure: What was measured.
        samples: The series, in the order of time.
    """
    end = samples[-1][0] if samples else 0.0
    kept = [sample for sample in samples if sample[0] >= end * measure.warm_up]
    points = group(kept, GROUPS)
    span = (points[-1][0] - points[0][0]) / PER if points else 0.0
    if len(points) < MIN_GROUPS or not span:
        empty = dict.fromkeys(("first", "last", "highest", "slope", "error", "allowed"), math.nan)
        return Trend(measure=measure, samples=len(kept), verdict="too few samples", **empty)
    slope, error = fit(points)
    allowed = max(measure.rate, measure.step / span)
    highest = max(value for _, value in kept)
    if measure.limit is not None:
        verdict = "bounded" if highest <= measure.limit else "FAIL"
    else:
        # A hump in the middle, as of a busy host, has a slope in a short run, and is no growth.
        grown = (points[-1][1] - points[0][1]) / span > allowed
        verdict = "FAIL" if grown and slope > max(allowed, ERRORS * error) else "flat"
    return Trend(
        measure=measure,
        samples=len(kept),
        first=points[0][1],
        last=points[-1][1],
        highest=highest,
        slope=slope,
        error=error,
        allowed=allowed,
        verdict=verdict,
    )


def group(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Average neighbouring samples, into at most ``count`` groups of equal size."""
    size = max(1, len(samples) // count)
    whole = len(samples) // size * size
    pieces = [samples[start : start + size] for start in range(0, whole, size)]
    return [(fmean(x for x, _ in piece), fmean(y for _, y in piece)) for piece in pieces]


def fit(points: Sequence[Sample]) -> tuple[float, float]:
    """Compute the slope by least squares per 1,000 cycles, and its standard error."""
    x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    residues = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    error = math.sqrt(residues / (len(points) - 2) / spread)
    return slope * PER, error * PER


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


#: The columns of the distribution of latencies.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the 90th and 99th percentile and the worst of some values."""
    return {name: percentile(values, share) for name, share in QUANTILES.items()} if values else {}
