"""The context that a workload works with, on a simulated GPU in this process."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel.protocol import codec
from sentinel.protocol.stressor import (
    ChildMessage,
    Finding,
    FindingPlace,
    MemoryTarget,
    Note,
    Progress,
    Ready,
)
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.device import is_out_of_memory
from sentinel.stressor.memory import fill
from sentinel.stressor.options import start
from sentinel.stressor.workloads.elementwise import elementwise
from tests.harness.context_harness import CHUNK, GIB, Bench

FLIP = Finding(
    number=0,
    place=FindingPlace.RESULT,
    workload="gemm",
    dtype="bf16",
    round=1,
    seed=1,
    count=1,
    first=(0, 0),
    bits=(1,),
    reread=True,
    repeated=0,
    repeats=3,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.device.membership.close()
    bench.channel.close()
    bench.theirs.close()


def test_ready_is_said_on_the_second_pace_and_no_memory_is_given_after_it(bench: Bench) -> None:
    assert bench.ctx.pace()
    piece = bench.device.new_chunk(CHUNK)
    assert piece is not None, "the first pass may still allocate"
    before = bench.registry.memory(bench.uuid).used
    assert bench.ctx.pace()
    assert bench.ctx.ready
    assert bench.device.new_chunk(CHUNK) is None
    assert bench.registry.memory(bench.uuid).used == before


def test_the_last_note_is_told_once_with_the_next_progress(bench: Bench) -> None:
    bench.become_ready()
    bench.ctx.note("pass 1")
    bench.ctx.note("pass\n2 " + 300 * "x")
    heard: list[ChildMessage] = []
    while sum(isinstance(message, Progress) for message in heard) < 2:
        assert bench.ctx.pace(rest=0.5)
        heard += bench.heard()
    (note,) = (message for message in heard if isinstance(message, Note))
    assert note.text.startswith("pass 2 xxx")
    assert len(note.text) == 200


def test_work_is_counted_when_it_is_done_and_told_once_a_second(bench: Bench) -> None:
    bench.become_ready()
    began = time.monotonic()
    told: list[ChildMessage] = []
    rounds = 0
    while time.monotonic() - began < 1.5:
        bench.ctx.report(flops=10, bytes=4, checks=2, errors=1)
        rounds += 1
        assert bench.ctx.pace()
        told += bench.heard()
    assert len(told) == 1
    assert isinstance(told[0], Progress)
    assert 1.0 <= told[0].seconds < 1.4
    bench.ctx.finish()
    (last,) = bench.heard()
    assert isinstance(last, Progress)
    assert told[0].iterations + last.iterations == bench.ctx.iterations == rounds
    for name, each in (("flops", 10), ("bytes", 4), ("checks", 2), ("errors", 1)):
        assert getattr(told[0], name) + getattr(last, name) == each * rounds


def test_the_longest_quantum_is_told_and_a_rest_is_none(bench: Bench) -> None:
    bench.become_ready()

    def longest(work: float, rest: float) -> float:
        time.sleep(work)
        for _ in range(2):  # the second waits for the first, and so counts it
            bench.ctx.report()
            assert bench.ctx.pace(rest)
        bench.ctx.finish()
        return max(said.max_quantum_s for said in bench.heard() if isinstance(said, Progress))

    assert longest(work=0.12, rest=0.0) >= 0.12
    assert longest(work=0.0, rest=0.8) < 0.8


def test_at_most_two_quanta_are_in_flight(bench: Bench) -> None:
    bench.become_ready()
    began = time.monotonic()
    for _ in range(20):
        assert bench.ctx.pace()
    # twenty quanta of 20 ms, of which the last may still be in flight
    assert time.monotonic() - began >= 0.37


def test_a_stop_ends_a_rest_at_once(bench: Bench) -> None:
    bench.become_ready()
    threading.Timer(0.1, bench.lease_keeper.stopped.set).start()
    began = time.monotonic()
    assert not bench.ctx.pace(rest=60.0)
    assert time.monotonic() - began < 1.0
    assert not bench.ctx.pace()


def test_a_long_rest_does_not_pass_for_a_hang(bench: Bench) -> None:
    bench.become_ready()
    assert bench.ctx.pace(rest=1.3)
    assert len(bench.heard()) == 1


def test_a_progress_that_the_channel_refuses_is_told_with_the_next(bench: Bench) -> None:
    bench.become_ready()
    while bench.lease_keeper.say(
        Progress(seconds=0, iterations=0, flops=0, bytes=0, checks=0, errors=0)
    ):
        pass
    bench.ctx.report(errors=1)
    assert bench.ctx.pace(rest=1.1), "a full channel holds nobody up"
    bench.heard()
    bench.ctx.report()
    bench.ctx.finish()
    (last,) = bench.heard()
    assert isinstance(last, Progress)
    assert (last.iterations, last.errors) == (2, 1)
    assert last.seconds > 1.1


def test_what_must_arrive_is_tried_for_a_second(bench: Bench) -> None:
    while bench.lease_keeper.say(
        Progress(seconds=0, iterations=0, flops=0, bytes=0, checks=0, errors=0)
    ):
        pass
    heard: list[ChildMessage] = []
    late = threading.Timer(0.2, lambda: heard.extend(bench.heard()))
    late.start()
    ready = Ready(held=1, asked=1, chunks=1, refused=False)
    assert bench.lease_keeper.say(ready)
    late.join()  # it may have heard that one, too
    heard += bench.heard()
    assert heard[-1] == ready


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_nonsense_is_not_reported(bench: Bench, value: float) -> None:
    with pytest.raises(ValueError, match="flops"):
        bench.ctx.report(flops=value)
    with pytest.raises(ValueError, match="rest"):
        bench.ctx.pace(rest=value)


def test_only_whole_chunks_are_taken_of_a_size(bench: Bench) -> None:
    filling = fill(bench.device, MemoryTarget(size=CHUNK * 5 // 2), CHUNK)
    assert (len(filling.chunks), filling.held, filling.refused) == (2, 2 * CHUNK, False)
    assert filling.asked == CHUNK * 5 // 2


def test_a_size_below_one_chunk_is_held_as_it_is_and_enough_to_work_on(bench: Bench) -> None:
    filling = fill(bench.device, MemoryTarget(size=100 * 2**20), CHUNK)
    assert (len(filling.chunks), filling.held, filling.refused) == (1, 100 * 2**20, False)
    ctx = WorkloadContext(device=bench.device, filling=filling, lease_keeper=bench.lease_keeper)
    threading.Timer(0.2, bench.lease_keeper.stopped.set).start()
    elementwise(ctx)
    assert ctx.iterations > 0


def test_what_fits_into_no_chunk_is_out_of_memory(bench: Bench) -> None:
    bench.device.membership.allocate(bench.device.free_memory() - CHUNK // 2)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"256 MiB are free and 8\.0 GiB"):
        fill(bench.device, MemoryTarget(size=8 * GIB), CHUNK)


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
def test_a_reserve_is_left_whatever_was_asked_for(bench: Bench, target: MemoryTarget) -> None:
    filling = fill(bench.device, target, CHUNK, reserve=2 * GIB)
    assert not filling.refused
    assert 2 * GIB < bench.device.free_memory() < 3 * GIB
    ample = fill(bench.device, MemoryTarget(size=CHUNK), CHUNK, reserve=GIB)
    assert ample.held == CHUNK, "a reserve that is left anyway takes nothing away"


@pytest.mark.parametrize("name", ["retention", "Traffic"])
def test_the_examples_of_the_documents_work(bench: Bench, name: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "writing-workloads.md").read_text()
    examples: dict[str, Any] = {"__name__": "example"}
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(code, "document", "exec"), examples)  # noqa: S102 - our own documents

    def stop_once_it_works() -> None:
        until = time.monotonic() + 20
        while bench.ctx.iterations < 3 and time.monotonic() < until:
            time.sleep(0.01)
        bench.lease_keeper.stopped.set()

    watcher = threading.Thread(target=stop_once_it_works)
    watcher.start()
    start(examples[name], bench.ctx, {})
    watcher.join()
    bench.ctx.finish()
    told = [said for said in bench.heard() if isinstance(said, Progress)]
    assert sum(said.bytes for said in told) > 0
    assert sum(said.errors for said in told) == 0


@pytest.mark.parametrize("trait", [{"count": 1.0}, {"first": (torch.tensor(1), 2)}, {"seed": "1"}])
def test_evidence_that_is_no_number_is_refused_where_it_is_given(
    bench: Bench, trait: dict[str, Any]
) -> None:
    """The supervisor would take it for garbage, and the GPU would be blamed."""
    with pytest.raises(TypeError, match="no whole number"):
        bench.ctx.find(replace(FLIP, **trait))


def test_of_evidence_that_is_long_the_beginning_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Finding] = []
    monkeypatch.setattr(bench.lease_keeper, "report", told.append)
    bench.ctx.find(replace(FLIP, detail="x" * 70_000))
    assert [(finding.number, len(finding.detail)) for finding in told] == [(1, 1000)]
    codec.encode(told[0])
