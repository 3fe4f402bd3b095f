"""A ring of products on a workbench, and how a test turns it."""

from __future__ import annotations

from torch import Tensor

from sentinel.stressor.verification.matmul import DTYPES, MEMORY
from sentinel.stressor.verification.pipeline import ResultPipeline, Verify
from sentinel.stressor.verification.sizing import build
from tests.harness.workload_harness import Workbench

#: Every kind of number, and traffic.
ALL = [*DTYPES, "memory"]
SIZE = 64
#: So many quanta are enough for any number of rounds that is waited for here.
MOST = 10_000


def ring_of(bench: Workbench, name: str = "bf16", verify: Verify = "full") -> ResultPipeline:
    dtype = DTYPES.get(name, MEMORY)
    (pipeline,) = build(bench.ctx, (dtype,), workload="gemm", size=SIZE, verify=verify)
    pipeline.prepare(seed=1)
    assert bench.findings() == []
    return pipeline


def newest(pipeline: ResultPipeline, back: int = 0) -> Tensor:
    """Return a place whose result was not checked yet."""
    return pipeline.places[(pipeline.written - 1 - back) % len(pipeline.places)]


def turn_until(pipeline: ResultPipeline, round_: int) -> None:
    """Go round until the ring was written so often, and everything is judged."""
    for _ in range(MOST):
        if pipeline.rounds >= round_:
            return
        assert pipeline.turn()
    raise AssertionError(f"no round {round_}")
