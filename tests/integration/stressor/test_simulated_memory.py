"""Simulated GPUs account for the tensors of a workload, and for whether it works at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sentinel.errors import ChildExitCode
from sentinel.host.simulation import Registry
from sentinel.protocol.stressor import Failed, FailureKind, Progress, Ready
from sentinel.stressor.simulated_device import TensorAccount
from tests.harness.sentinel_process import eventually
from tests.harness.stressor_harness import Child, stressors

MIB = 2**20
#: What a context takes on a simulated GPU.
CONTEXT = 300 * MIB
Start = Callable[..., Child]


class Gpu:
    """A GPU with so much memory."""

    def __init__(self, size: int) -> None:
        self.left = size

    def allocate(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with stressors(tmp_path) as start:
        yield start


@pytest.mark.long
def test_memory_is_taken_in_segments_and_used_again() -> None:
    gpu = Gpu(100 * MIB)
    chunk = torch.empty(MIB, dtype=torch.uint8)
    with TensorAccount(gpu.allocate, [chunk]) as account:
        chunk.bitwise_not_()
        views = [chunk.view(2, -1), chunk[10:]]
        assert gpu.left == 100 * MIB, "a view of a chunk is no memory"
        small = torch.empty(1000)
        assert gpu.left == 98 * MIB
        large = torch.empty(3 * MIB, dtype=torch.uint8)
        assert gpu.left == 78 * MIB
        account.forbid_growth()
        del large
        for _ in range(100):
            torch.empty(20 * MIB, dtype=torch.uint8)
        more = [torch.zeros(100) for _ in range(100)]
        assert gpu.left == 78 * MIB
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"a tensor of 21 MiB does not fit"):
            torch.empty(21 * MIB, dtype=torch.uint8)
    assert views
    assert more
    assert small.numel() == 1000


@pytest.mark.long
def test_memory_that_is_not_free_is_refused() -> None:
    with TensorAccount(Gpu(10 * MIB).allocate, []), pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2 * MIB, dtype=torch.uint8)


@pytest.mark.long
def test_a_workload_that_allocates_in_every_round_fails_as_on_a_gpu(start: Start) -> None:
    child = start("bad_workloads.allocating:keeps_a_mebibyte")
    child.wait_for(Ready)
    failed = child.wait_for(Failed)
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert "the workload allocated after Ready" in failed.reason


@pytest.mark.long
def test_what_a_workload_allocates_before_it_is_ready_is_used_memory(start: Start) -> None:
    child = start("bad_workloads.allocating:takes_a_gibibyte")
    ready = child.wait_for(Ready)
    assert child.used() == ready.held + CONTEXT + 1040 * MIB, "52 segments of 20 MiB"
    assert child.wait_for(Progress).iterations
    assert child.stop() == ChildExitCode.DONE


@pytest.mark.long
@pytest.mark.parametrize(("workload", "works"), [("hold", False), ("elementwise", True)])
def test_a_hold_counts_as_idle(workload: str, works: bool, start: Start, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    child = start(workload)
    child.wait_for(Ready)
    for _ in range(2):
        child.wait_for(Progress)
    (registry,) = [Registry(path.parents[1]) for path in tmp_path.rglob("gpu.json")][:1]

    def seconds() -> float | None:
        return next(iter(registry.work(child.uuid).values()))

    if works:
        eventually(lambda: (seconds() or 0.0) > 1.0)
    else:
        assert seconds() == 0.0
