"""A GPU has shown a fault by a failed burn-in or by wrong results, and by nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sentinel.burnin.checks.node_checks import FAILED, PASSED, proven_fault
from sentinel.burnin.verdict import Verdict
from sentinel.protocol.api_types import GpuProof


@pytest.mark.parametrize(
    ("verdict", "errors", "findings", "fault"),
    [
        (None, None, 0, None),
        ("PASS", 0, 0, None),
        ("INCOMPLETE", 0, 0, None),
        ("FAIL", None, 0, "failed burn-in long"),
        ("FAIL", 1, 1, "failed burn-in long"),
        ("PASS", 1, 0, "1 wrong result"),
        (None, 1, 2, "3 wrong results"),
    ],
)
def test_a_fault(verdict: str | None, errors: int | None, findings: int, fault: str | None) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    proof = None if errors is None else GpuProof(since=since, errors=errors, findings=findings)
    assert proven_fault(verdict, "long", proof) == fault


def test_the_names_are_those_of_verdicts() -> None:
    assert {FAILED} == {Verdict.FAIL.value}
    assert {Verdict.PASS.value, Verdict.WARN.value} == PASSED
