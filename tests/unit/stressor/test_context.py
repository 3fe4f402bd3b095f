"""A workload's context, on a simulated GPU in this process."""

from __future__ import annotations

import math
import runpy
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sentinel.errors import ConfigError
from sentinel.protocol import codec
from sentinel.protocol.stressor import (
    ChildMessage,
    Finding,
    MemoryTarget,
    Note,
    Progress,
    Ready,
)
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.device import MAX_CHUNKS
from sentinel.stressor.loader import bind, is_out_of_memory
from sentinel.stressor.workloads import elementwise
from tests.harness.example_finding import FLIP
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S
from tests.harness.workload_harness import CHUNK, GIB, Bench, filled


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


class Clock:
    """A clock that advances only during rests."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def rest(self, timeout: float) -> bool:
        self.now += timeout
        return False


@pytest.fixture
def clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("sentinel.stressor.context.time", clock)
    monkeypatch.setattr(bench.lease_keeper.stopped, "wait", clock.rest)
    return clock


def test_ready_is_sent_by_the_second_pace_and_ends_all_allocation(bench: Bench) -> None:
    assert bench.ctx.pace()
    piece = bench.device.new_chunk(CHUNK)
    assert piece is not None, "the first pass may allocate"
    before = bench.registry.memory(bench.uuid).used
    assert bench.ctx.pace()
    assert bench.ctx.ready
    assert bench.device.new_chunk(CHUNK) is None
    assert bench.registry.memory(bench.uuid).used == before


@pytest.mark.long
def test_the_last_note_is_sent_once_with_the_next_progress(bench: Bench) -> None:
    bench.become_ready()
    bench.ctx.note("pass 1")
    bench.ctx.note("pass\n2 " + 300 * "x")
    received: list[ChildMessage] = []
    while sum(isinstance(message, Progress) for message in received) < 2:
        assert bench.ctx.pace(rest=0.5)
        received += bench.received()
    (note,) = (message for message in received if isinstance(message, Note))
    assert note.text.startswith("pass 2 xxx")
    assert len(note.text) == 200


def test_work_is_counted_when_it_is_done_and_sent_once_a_second(bench: Bench, clock: Clock) -> None:
    bench.become_ready()
    received: list[ChildMessage] = []
    rounds = 15
    for _ in range(rounds):
        bench.ctx.report(flops=10, bytes=4, checks=2, errors=1)
        assert bench.ctx.pace()
        received += bench.received()
        clock.now += 0.1
    (first,) = received
    assert isinstance(first, Progress)
    assert first.seconds == pytest.approx(1.0, abs=0.11)
    bench.ctx.finish()
    (last,) = bench.received()
    assert isinstance(last, Progress)
    assert first.iterations + last.iterations == bench.ctx.iterations == rounds
    for name, each in (("flops", 10), ("bytes", 4), ("checks", 2), ("errors", 1)):
        assert getattr(first, name) + getattr(last, name) == each * rounds


def test_the_max_quantum_s_is_sent_and_a_rest_is_not_counted(bench: Bench, clock: Clock) -> None:
    bench.become_ready()

    def longest(work: float, rest: float) -> float:
        clock.now += work
        for _ in range(2):  # the second call waits for the first quantum and counts it
            bench.ctx.report()
            assert bench.ctx.pace(rest)
        bench.ctx.finish()
        progress = [message for message in bench.received() if isinstance(message, Progress)]
        return max(message.max_quantum_s for message in progress)

    assert longest(work=0.12, rest=0.0) == pytest.approx(0.12)
    assert longest(work=0.0, rest=60.0) == 0.0


def test_at_most_two_quanta_are_in_flight(bench: Bench) -> None:
    bench.become_ready()
    began = time.monotonic()
    for _ in range(20):
        assert bench.ctx.pace()
    # twenty quanta of 20 ms; the last may be in flight
    assert time.monotonic() - began >= 0.37


def test_a_stop_ends_a_rest_at_once(bench: Bench) -> None:
    bench.become_ready()
    threading.Timer(0.1, bench.lease_keeper.stopped.set).start()
    assert not bench.ctx.pace(rest=3600.0)
    assert not bench.ctx.pace()


def test_progress_is_sent_during_a_long_rest(bench: Bench, clock: Clock) -> None:
    bench.become_ready()
    assert bench.ctx.pace(rest=1.3)
    assert len(bench.received()) == 1


def test_a_progress_that_the_channel_refuses_is_added_to_the_next(bench: Bench) -> None:
    bench.become_ready()
    while bench.lease_keeper.send(
        Progress(seconds=0, iterations=0, flops=0, bytes=0, checks=0, errors=0)
    ):
        pass
    bench.ctx.report(errors=1)
    assert bench.ctx.pace(rest=1.1), "a full channel does not block"
    bench.received()
    bench.ctx.report()
    bench.ctx.finish()
    (last,) = bench.received()
    assert isinstance(last, Progress)
    assert (last.iterations, last.errors) == (2, 1)
    assert last.seconds > 1.1


def test_a_message_that_must_arrive_is_retried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.stressor.lease._SEND_TIMEOUT_S", TIMEOUT_S)
    while bench.lease_keeper.send(
        Progress(seconds=0, iterations=0, flops=0, bytes=0, checks=0, errors=0)
    ):
        pass
    received: list[ChildMessage] = []
    late = threading.Timer(0.2, lambda: received.extend(bench.received()))
    late.start()
    ready = Ready(held=1, asked=1, chunks=1, refused=False)
    assert bench.lease_keeper.send(ready)
    late.join()  # the receiver may have this message, too
    received += bench.received()
    assert received[-1] == ready


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_invalid_numbers_are_refused(bench: Bench, value: float) -> None:
    with pytest.raises(ValueError, match="flops"):
        bench.ctx.report(flops=value)
    with pytest.raises(ValueError, match="rest"):
        bench.ctx.pace(rest=value)


def test_so_many_chunks_that_a_newcomer_could_not_wait_are_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="1025 chunks, which take too long") as refused:
        filled(bench.device, MemoryTarget(size=1025 * 2**21), 2**21)
    assert refused.value.remedy == "Use --chunk 4MiB."
    assert len(filled(bench.device, MemoryTarget(size=1024 * 2**20), 2**20).chunks) == 1024


def test_a_target_above_the_free_memory_is_not_refused_for_its_chunks(bench: Bench) -> None:
    filling = filled(bench.device, MemoryTarget(size=2**50), CHUNK)
    assert filling.refused
    assert len(filling.chunks) < MAX_CHUNKS


@pytest.mark.long
def test_memory_that_becomes_free_meanwhile_adds_no_more_chunks_than_allowed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.device, "free_bytes", lambda: 2**20)
    assert len(filled(bench.device, MemoryTarget(size=2000 * 2**20), 2**20).chunks) == MAX_CHUNKS


class LargeDevice:
    """A device with free memory; its pieces have no bytes."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    def free_bytes(self) -> int:
        return 100 * GIB

    def new_chunk(self, size: int) -> torch.Tensor:
        self.pieces.append(size)
        return torch.empty(0)


@given(size=st.integers(2**21, 6 * CHUNK))
def test_a_size_is_held_to_two_mebibytes_but_for_a_small_rest(size: int) -> None:
    device = LargeDevice()
    filling = filled(device, MemoryTarget(size=size), CHUNK)  # type: ignore[arg-type]
    assert not filling.refused
    assert sum(device.pieces) == filling.held <= size
    assert len(set(device.pieces[: len(filling.chunks)])) == 1
    assert filling.worked_on == sum(device.pieces[: len(filling.chunks)])
    assert size - filling.held < 2**20 * (2 if filling.rest is not None else 10)


def test_a_rest_is_held_and_not_worked_on(bench: Bench) -> None:
    filling = filled(bench.device, MemoryTarget(size=CHUNK * 5 // 2), CHUNK)
    assert (len(filling.chunks), filling.worked_on) == (2, 2 * CHUNK)
    assert (filling.held, filling.asked) == (CHUNK * 5 // 2, CHUNK * 5 // 2)
    assert not filling.refused


def test_a_size_below_one_chunk_is_held_as_it_is_and_suffices_for_work(bench: Bench) -> None:
    filling = filled(bench.device, MemoryTarget(size=100 * 2**20), CHUNK)
    assert (len(filling.chunks), filling.held, filling.refused) == (1, 100 * 2**20, False)
    ctx = WorkloadContext(device=bench.device, filling=filling, lease_keeper=bench.lease_keeper)

    def stop_after_work() -> None:
        eventually(lambda: ctx.iterations > 0)
        bench.lease_keeper.stopped.set()

    threading.Thread(target=stop_after_work, daemon=True).start()
    elementwise(ctx)
    assert ctx.iterations > 0


def test_less_free_memory_than_a_chunk_is_out_of_memory(bench: Bench) -> None:
    bench.device.membership.allocate(bench.device.free_bytes() - CHUNK // 2)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"256 MiB are free and 8\.0 GiB"):
        filled(bench.device, MemoryTarget(size=8 * GIB), CHUNK)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (MemoryError("out of memory"), False),
    ],
)
def test_only_a_device_without_memory_is_out_of_memory(error: Exception, *, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize("target", [MemoryTarget(share=1.0), MemoryTarget(size=16 * GIB)])
def test_a_reserve_is_left_free_for_any_target(bench: Bench, target: MemoryTarget) -> None:
    filling = filled(bench.device, target, CHUNK, reserve=2 * GIB)
    assert not filling.refused
    assert 2 * GIB < bench.device.free_bytes() < 3 * GIB
    ample = filled(bench.device, MemoryTarget(size=CHUNK), CHUNK, reserve=GIB)
    assert ample.held == CHUNK, "a reserve that is free anyway changes nothing"


@pytest.mark.parametrize("name", ["retention", "Traffic"])
def test_the_examples_of_the_documents_work(bench: Bench, name: str) -> None:
    examples = runpy.run_path(
        str(Path(__file__).parents[3] / f"examples/workloads/{name.lower()}.py")
    )

    def stop_after_three_iterations() -> None:
        until = time.monotonic() + 60
        while bench.ctx.iterations < 3 and time.monotonic() < until:
            time.sleep(0.01)
        bench.lease_keeper.stopped.set()

    watcher = threading.Thread(target=stop_after_three_iterations)
    watcher.start()
    bind(examples[name], {}).run(bench.ctx)
    watcher.join()
    bench.ctx.finish()
    progress = [message for message in bench.received() if isinstance(message, Progress)]
    assert sum(message.bytes for message in progress) > 0
    assert sum(message.errors for message in progress) == 0


@pytest.mark.parametrize("trait", [{"count": 1.0}, {"first": (torch.tensor(1), 2)}, {"seed": "1"}])
def test_a_finding_with_other_numbers_than_ints_is_refused(
    bench: Bench, trait: dict[str, Any]
) -> None:
    """The supervisor could not decode such a finding."""
    with pytest.raises(TypeError, match="is not an int"):
        bench.ctx.find(replace(FLIP, **trait))


def test_a_long_detail_of_a_finding_is_truncated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Finding] = []
    monkeypatch.setattr(bench.lease_keeper, "report_finding", sent.append)
    bench.ctx.find(replace(FLIP, detail="x" * 70_000))
    assert [(finding.number, len(finding.detail)) for finding in sent] == [(1, 1000)]
    codec.encode(sent[0])
