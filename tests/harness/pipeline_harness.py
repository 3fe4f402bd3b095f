"""A ring of products on a workbench, and how a test turns it."""

from __future__ import annotations

from torch import Tensor

from sentinel.stressor.verification.matmul import DTYPES, MEMORY
from sentinel.stressor.verification.pipeline import Ring, Verify
from sentinel.stressor.verification.sizing import build
from tests.harness.workload_harness import Workbench

#: Every kind of number, and traffic.
ALL = [*DTYPES, "memory"]
SIZE = 64
#: So many quanta are enough for any number of rounds that is waited for here.
MOST = 10_000


def ring_of(bench: Workbench, name: str = "bf16", verify: Verify = "full") -> Ring:
    dtype = DTYPES.get(name, MEMORY)
    (ring,) = build(bench.ctx, (dtype,), workload="gemm", size=SIZE, verify=verify)
    ring.prepare(seed=1)
    assert bench.findings() == []
    return ring


def newest(ring: Ring, back: int = 0) -> Tensor:
    """Return a place whose result was not checked yet."""
    return ring.places[(ring.written - 1 - back) % len(ring.places)]


def turn_until(ring: Ring, round_: int) -> None:
    """Go round until the ring was written so often, and everything is judged."""
    for _ in range(MOST):
        if ring.rounds >= round_:
            return
        assert ring.turn()
    raise AssertionError(f"no round {round_}")
