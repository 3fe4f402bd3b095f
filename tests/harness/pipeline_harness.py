"""A result pipeline with tiny matrices, and functions that step it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.config.options import Verify
from sentinel.stressor.matmul import DTYPES, MEMORY
from sentinel.stressor.pipeline import ResultPipeline
from sentinel.stressor.sizing import build
from tests.harness.workload_harness import Workbench, workbench

#: All dtypes. The CPU emulates fp8 at 60 ns per multiplication.
ALL_DTYPES = [
    pytest.param(name, marks=pytest.mark.long if name == "fp8" else ()) for name in DTYPES
]
#: All dtypes, and memory traffic.
ALL = [*ALL_DTYPES, "memory"]

#: Rows of the matrices.
SIZE = 16

#: The simulated size of a chunk. Its tensor has 2 KiB: one result in fp64, four in bf16.
CHUNK = 8 * 2**20

#: More steps than any tested number of rounds takes.
MAX_STEPS = 10_000


@contextmanager
def pipeline_bench(folder: Path) -> Iterator[Workbench]:
    """Provide a context with memory for a few dozen tiny results."""
    with workbench(folder, chunks=14, chunk=CHUNK) as bench:
        yield bench


def unprepared_pipeline(
    bench: Workbench, name: str = "bf16", verify: Verify = "full"
) -> ResultPipeline:
    dtype = DTYPES.get(name, MEMORY)
    (pipeline,) = build(bench.ctx, (dtype,), workload="gemm", size=SIZE, verify=verify)
    return pipeline


def pipeline_of(bench: Workbench, name: str = "bf16", verify: Verify = "full") -> ResultPipeline:
    pipeline = unprepared_pipeline(bench, name, verify)
    pipeline.prepare(seed=1)
    assert bench.findings() == []
    return pipeline


def step_until(pipeline: ResultPipeline, round_: int) -> None:
    """Step until the pipeline was written ``round_`` times."""
    for _ in range(MAX_STEPS):
        if pipeline.rounds >= round_:
            return
        assert pipeline.step()
    raise AssertionError(f"no round {round_}")
