"""When the health check of a node drains it, and when it takes that back."""

from __future__ import annotations

import pytest

from sentinel.fleet.drain import DrainRecord, DrainStep, next_step


@pytest.mark.parametrize(
    ("faulty", "good", "drained", "step"),
    [
        ("", "AB", None, DrainStep.NOTHING),
        ("A", "B", None, DrainStep.DRAIN),
        ("A", "B", "A", DrainStep.NOTHING),
        ("AB", "", "A", DrainStep.DRAIN),
        ("", "AB", "A", DrainStep.UNDRAIN),
        # A GPU that is missing, or whose last burn-in was cut off, has not recovered.
        ("", "B", "A", DrainStep.NOTHING),
        ("", "A", "AB", DrainStep.NOTHING),
        ("B", "A", "A", DrainStep.DRAIN),
        ("B", "A", "AB", DrainStep.NOTHING),
    ],
)
def test_the_next_step(faulty: str, good: str, drained: str | None, step: DrainStep) -> None:
    record = None if drained is None else DrainRecord(reason="gpu-sentry: x", gpus=tuple(drained))
    assert next_step(set(faulty), set(good), record) is step
