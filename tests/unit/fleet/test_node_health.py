"""When the health check of a node drains it, and when it takes that back."""

from __future__ import annotations

import pytest

from sentinel.fleet.slurm.node_health import DrainRecord, Step, next_step


@pytest.mark.parametrize(
    ("faulty", "good", "drained", "step"),
    [
        ("", "AB", None, Step.NOTHING),
        ("A", "B", None, Step.DRAIN),
        ("A", "B", "A", Step.NOTHING),
        ("AB", "", "A", Step.DRAIN),
        ("", "AB", "A", Step.UNDRAIN),
        # A GPU that is missing, or whose last burn-in was cut off, has not recovered.
        ("", "B", "A", Step.NOTHING),
        ("", "A", "AB", Step.NOTHING),
        ("B", "A", "A", Step.DRAIN),
        ("B", "A", "AB", Step.NOTHING),
    ],
)
def test_the_next_step(faulty: str, good: str, drained: str | None, step: Step) -> None:
    record = None if drained is None else DrainRecord(reason="gpu-sentry: x", gpus=tuple(drained))
    assert next_step(set(faulty), set(good), record) is step
