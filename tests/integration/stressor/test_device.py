"""A stressor's memory on a simulated GPU: newcomers while it is taken, and all of its tensors."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel.errors import ChildExitCode, MemoryContentionError
from sentinel.host.simulation import Membership, Registry, Timing
from sentinel.protocol.stressor import (
    GROWTH_SLACK_BYTES,
    Announcement,
    Failed,
    FailureKind,
    MemoryTarget,
    Progress,
    Ready,
    StartStage,
)
from sentinel.stressor.simulated_device import SimulatedDevice, TensorAccount
from sentinel.stressor.start_watch import PREPARATION_BYTES, StartWatch
from tests.harness.narrowing import not_none
from tests.harness.programs import started_program
from tests.harness.sentinel_process import eventually
from tests.harness.stressor_harness import Child
from tests.harness.workload_harness import RecordingLeaseKeeper, filled, spec_on

GIB = 2**30


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.create(tmp_path, 1)


@pytest.fixture
def device(registry: Registry) -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(registry, registry.gpus()[0].uuid)
    yield device
    device.membership.close()


@pytest.fixture
def keeper() -> Iterator[RecordingLeaseKeeper]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield RecordingLeaseKeeper(ours)
    ours.close()
    theirs.close()


@pytest.fixture
def watch(registry: Registry, device: SimulatedDevice, keeper: RecordingLeaseKeeper) -> StartWatch:
    return StartWatch(spec_on(registry), keeper, device)


def test_memory_that_the_stressor_takes_is_no_contention(
    device: SimulatedDevice, watch: StartWatch, keeper: RecordingLeaseKeeper
) -> None:
    watch.keep_still()
    before = device.reserved_bytes()
    filling = filled(device, MemoryTarget(share=0.5), GIB, watch=watch)
    watch.check()
    assert filling.held > GIB
    assert keeper.start_limit == before + filling.held + GROWTH_SLACK_BYTES


def test_each_stage_is_announced_with_what_is_used_and_what_comes(
    device: SimulatedDevice, watch: StartWatch, keeper: RecordingLeaseKeeper
) -> None:
    watch.announce(StartStage.REHEARSING)
    watch.keep_still()
    used = device.reserved_bytes()
    watch.announce(StartStage.TAKING, GIB)
    with watch.taking(GIB):
        device.membership.allocate(GIB)
    watch.expect_preparation(0)
    assert keeper.sent == [
        Announcement(stage=StartStage.REHEARSING),
        Announcement(stage=StartStage.TAKING, used=used, more=GIB),
        Announcement(stage=StartStage.PREPARING, used=used + GIB),
    ]
    watch.expect_preparation(PREPARATION_BYTES)
    assert keeper.sent[3:] == [Announcement(stage=StartStage.PREPARING, more=PREPARATION_BYTES)]


def test_growth_before_the_first_chunk_is_detected(
    registry: Registry, watch: StartWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation of the stressor's context hides the start of a newcomer."""
    other = registry.attach(registry.gpus()[0].uuid)
    read, reads = not_none(watch._read), count()

    def read_and_grow() -> int:
        """Read the memory, of which the newcomer takes some after the first look."""
        used = read()
        if next(reads) == 0:
            assert other.allocate(GROWTH_SLACK_BYTES + 1)
        return used

    monkeypatch.setattr(watch, "_read", read_and_grow)
    with pytest.raises(MemoryContentionError, match=str(GROWTH_SLACK_BYTES + 1)):
        watch.keep_still()
    other.close()


def test_growth_while_chunks_are_taken_is_detected(
    registry: Registry, device: SimulatedDevice, watch: StartWatch
) -> None:
    watch.keep_still()
    other = registry.attach(registry.gpus()[0].uuid)
    other.allocate(GROWTH_SLACK_BYTES + 1)
    with pytest.raises(MemoryContentionError):
        filled(device, MemoryTarget(share=0.5), GIB, watch=watch)
    assert device.reserved_bytes() < 2 * GIB, "the filling stopped at the first chunk"
    other.close()


def test_libraries_may_take_what_was_announced_before_ready(
    registry: Registry, watch: StartWatch
) -> None:
    watch.keep_still()
    watch.expect_preparation(PREPARATION_BYTES)
    libraries = registry.attach(registry.gpus()[0].uuid)
    libraries.allocate(PREPARATION_BYTES + GROWTH_SLACK_BYTES)
    watch.check()
    libraries.allocate(1)
    with pytest.raises(MemoryContentionError):
        watch.check()
    libraries.close()


def test_what_the_supervisor_alone_can_tell_is_not_judged_here(
    registry: Registry, device: SimulatedDevice, keeper: RecordingLeaseKeeper
) -> None:
    """Other processes may grow beside this stressor, and it cannot tell them from newcomers."""
    watch = StartWatch(spec_on(registry, exact_start=False), keeper, device)
    watch.keep_still()
    other = registry.attach(registry.gpus()[0].uuid)
    other.allocate(GIB)
    filled(device, MemoryTarget(size=GIB), GIB, watch=watch)
    watch.check()
    watch.announce(StartStage.TAKING, GIB)
    assert keeper.start_limit is None
    assert keeper.sent == [Announcement(stage=StartStage.TAKING, more=GIB)]
    other.close()


MIB = 2**20
#: What a context takes on a simulated GPU.
CONTEXT = 300 * MIB
Start = Callable[..., Child]


class Gpu:
    """A GPU with so much memory."""

    def __init__(self, size: int) -> None:
        self.left = size

    def free(self) -> int:
        return self.left

    def allocate(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


@pytest.mark.long
def test_memory_is_taken_in_segments_and_used_again() -> None:
    gpu = Gpu(100 * MIB)
    with TensorAccount(gpu.allocate, gpu.free) as account:
        with account.suspended():
            chunk = torch.empty(MIB, dtype=torch.uint8)
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
    gpu = Gpu(10 * MIB)
    with (
        TensorAccount(gpu.allocate, gpu.free),
        pytest.raises(torch.cuda.OutOfMemoryError, match=r"a tensor of 2 MiB does not fit"),
    ):
        torch.empty(2 * MIB, dtype=torch.uint8)


@pytest.mark.long
@pytest.mark.parametrize(
    "operation",
    [
        lambda: torch.ones(2**31),
        lambda: torch.randn(2**31, generator=torch.Generator()),
        lambda: torch.outer(torch.ones(2**15), torch.ones(2**15)),
        lambda: torch.ones(2**10).repeat(2**20),
    ],
)
def test_a_result_that_cannot_fit_is_refused_without_memory_of_the_host(
    operation: Callable[[], torch.Tensor],
) -> None:
    gpu = Gpu(100 * MIB)
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        TensorAccount(gpu.allocate, gpu.free),
        pytest.raises(torch.cuda.OutOfMemoryError, match=r"a tensor of [48].0 GiB does not fit"),
    ):
        operation()
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 2**20, "a GiB, in KiB"


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
    child.wait_for_work("iterations")
    assert child.stop() == ChildExitCode.DONE


#: Takes a chunk, and prints a line when it loads the module of its first operation, for ever.
LOADING = """
import sys, time
from pathlib import Path
from sentinel.host.simulation import Registry
from sentinel.stressor.simulated_device import SimulatedDevice
device = SimulatedDevice(Registry(Path(sys.argv[1])), sys.argv[2])
device.follow()
chunk = device.new_chunk(2**30)
time.sleep = lambda seconds: (print("loads for", seconds, flush=True), sys.stdin.read())
chunk.bitwise_not_()
"""


@pytest.mark.long
def test_a_process_that_is_killed_while_it_loads_a_module_keeps_its_memory_for_a_moment(
    registry: Registry,
) -> None:
    (gpu,) = registry.gpus()
    registry.set_timing(gpu.uuid, Timing(module_load_s=0.5, release_s=3600.0))
    words = (sys.executable, "-c", LOADING, str(registry.folder), gpu.uuid)
    with started_program(*words, stdin=subprocess.PIPE) as loading:
        assert not_none(loading.stdout).readline() == "loads for 0.5\n"
    assert registry.memory(gpu.uuid).used == CONTEXT + GIB
    registry.set_timing(gpu.uuid, Timing(release_s=0.0))
    assert registry.memory(gpu.uuid).used == 0


def test_context_chunks_and_the_first_use_of_an_operation_are_calls_of_the_driver(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def driver_call(membership: Membership) -> AbstractContextManager[None]:
        calls.append(membership.held)
        return nullcontext()

    monkeypatch.setattr(Membership, "driver_call", driver_call)
    device = SimulatedDevice(registry, registry.gpus()[0].uuid)
    assert calls == [0]
    account: Any = device._account
    device.follow()
    try:
        chunk = not_none(device.new_chunk(GIB))
        assert calls == [0, CONTEXT]
        for _ in range(3):  # it is loaded once
            chunk.bitwise_not_()
    finally:
        account.__exit__(None, None, None)
    assert calls == [0, CONTEXT, CONTEXT + GIB]
    device.membership.close()


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
