"""Whether a GPU has shown a fault: by its last burn-in, or by wrong results under any daemon."""

from __future__ import annotations

from typing import Final

from sentinel.protocol.api_types import GpuProof

#: Verdicts as a status has them: sentinel.burnin.reports.verdict is slow to import, and a health
#: check of a node must end within a second.
FAILED: Final = "FAIL"
PASSED: Final = frozenset({"PASS", "WARN"})


def proven_fault(verdict: str | None, plan: str | None, proof: GpuProof | None) -> str | None:
    """Describe the fault that a GPU has shown, or return None.

    A GPU of which nothing is known, or whose burn-in was not complete, has shown none.

    Args:
        verdict: The verdict of its last burn-in, or None without one.
        plan: The name of that burn-in's plan.
        proof: Its verified work, or None without any.
    """
    if verdict == FAILED:
        return f"failed burn-in {plan}" if plan else "failed burn-in"
    wrong = 0 if proof is None else proof.wrong
    return f"{wrong} wrong result{'s' * (wrong != 1)}" if wrong else None
