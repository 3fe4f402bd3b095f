"""The pulse workload: on a device with simulated time, and once in a real stressor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import MemoryTarget, Progress, Ready
from sentinel.stressor.device import Fence
from sentinel.stressor.verification.pipeline import ResultPipeline
from sentinel.stressor.workloads import pulse as module
from sentinel.stressor.workloads.pulse import pulse
from tests.harness.stressor_harness import stressors
from tests.harness.workload_harness import InstantDevice, Workbench, workbench

#: The duration of a product on the simulated device: that of an H200 with 16384 rows.
PRODUCT_S = 0.013
BEGIN = 1000.0
PERIODS = 6

#: Products before the first period, until Ready.
BEFORE = 2


class Clock:
    """A clock that advances only during waits, and the event that stops the workload."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.end = BEGIN + 1e9

    def is_set(self) -> bool:
        return self.now >= self.end

    def wait(self, timeout: float) -> bool:
        self.now = min(self.now + timeout, max(self.now, self.end))
        return self.is_set()


class Queue:
    """A device that computes products in order; ``busy`` has its busy intervals."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = 0.0
        self.busy: list[tuple[float, float]] = []
        self.pipelines: list[ResultPipeline] = []

    def work(self) -> None:
        begin = max(self._clock.now, self._until)
        self._until = begin + PRODUCT_S
        if self.busy and self.busy[-1][1] == begin:
            begin = self.busy.pop()[0]
        self.busy.append((begin, self._until))

    def fence(self) -> Fence:
        return self._until

    def wait(self, fence: Fence) -> float:
        self._clock.now = max(self._clock.now, fence)
        return 0.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=12, chunk=2**25, quantum=0.02) as bench:
        yield bench


@pytest.fixture
def clock(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    time = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr("sentinel.stressor.context.time", time)
    monkeypatch.setattr(bench.lease_keeper, "stopped", clock)
    return clock


@pytest.fixture
def queue(bench: Workbench, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Replace the device by a queue; products of small matrices are computed for real."""
    queue = Queue(clock)
    step = ResultPipeline.step

    def step_in_queue(pipeline: ResultPipeline, *, at_most: int) -> bool:
        queue.pipelines = [pipeline]
        for _ in range(at_most):
            queue.work()
        return step(pipeline, at_most=at_most)

    monkeypatch.setattr(ResultPipeline, "step", step_in_queue)
    monkeypatch.setattr(InstantDevice, "fence", lambda _: queue.fence())
    monkeypatch.setattr(InstantDevice, "wait", lambda _, fence: queue.wait(fence))
    monkeypatch.setattr(InstantDevice, "drain", lambda _: queue.wait(queue.fence()))
    # A product and its check are measured separately.
    monkeypatch.setattr(InstantDevice, "measure_s", lambda _, __: PRODUCT_S / 2)
    return queue


@pytest.mark.parametrize("duty", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("hz", [0.5, 1.0, 3.0, 10.0])
def test_each_period_has_one_phase_of_load_and_one_of_rest(
    bench: Workbench, clock: Clock, queue: Queue, hz: float, duty: float
) -> None:
    began = BEGIN + BEFORE * PRODUCT_S
    clock.end = began + PERIODS / hz - 1e-6
    pulse(bench.ctx, hz=hz, duty=duty, size=64)
    assert queue.busy[0][0] == BEGIN
    phases = [(began, queue.busy[0][1]), *queue.busy[1:]]
    assert len(phases) == PERIODS, "the device rested within a phase, or never"
    for number, (begin, end) in enumerate(phases):
        assert begin == pytest.approx(began + number / hz)
        expected_s = max(duty / hz, PRODUCT_S)
        assert end - begin == pytest.approx(expected_s, abs=PRODUCT_S / 2 + 1e-6)


def test_every_product_is_checked_once_the_pipeline_is_full(
    bench: Workbench, clock: Clock, queue: Queue
) -> None:
    clock.end = BEGIN + 3.0
    pulse(bench.ctx, hz=2.0, size=64)
    (pipeline,) = queue.pipelines
    done = bench.done()
    assert done.iterations > len(pipeline.slots)
    assert (done.checks, done.errors) == (done.iterations - pipeline.unchecked, 0)
    assert pipeline.unchecked == len(pipeline.slots) - 2 * pipeline.per_quantum
    assert done.flops == done.iterations * 2.0 * 64**3


def test_a_wrong_product_is_counted(
    bench: Workbench, clock: Clock, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.end = BEGIN + 3.0
    corrupted: list[int] = []
    step = ResultPipeline.step

    def step_and_corrupt(pipeline: ResultPipeline, *, at_most: int) -> bool:
        running = step(pipeline, at_most=at_most)
        if pipeline.rounds and not corrupted:
            corrupted.append(pipeline.written)
            pipeline.slots[(pipeline.written - 1) % len(pipeline.slots)][3, 4] += 1
        return running

    monkeypatch.setattr(ResultPipeline, "step", step_and_corrupt)
    pulse(bench.ctx, hz=2.0, size=64)
    assert bench.done().errors == 1
    assert [finding.first for finding in bench.findings()] == [(3, 4)]


@pytest.mark.parametrize(
    ("options", "message_part"),
    [
        ({"hz": 0.4}, "hz=0.4 is out of range; allowed is from 0.5 to 10"),
        ({"hz": 11.0}, "hz=11 is out of range"),
        ({"duty": 0.0}, "duty=0 is out of range; allowed is from 0.1 to 0.9"),
        ({"duty": 1.0}, "duty=1 is out of range"),
        ({"size": 65}, "size=65 is not a positive multiple"),
    ],
)
def test_an_option_out_of_range_is_refused(
    bench: Workbench, options: dict[str, float], message_part: str
) -> None:
    with pytest.raises(ConfigError, match=message_part):
        pulse(bench.ctx, **options)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_pulse_stressor_ends_on_request(tmp_path: Path) -> None:
    with stressors(tmp_path) as start:
        child = start("pulse:hz=10", memory=MemoryTarget(share=0.2))
        child.wait_for(Ready)
        used = child.used()
        progress = [child.wait_for(Progress) for _ in range(2)][-1]
        assert progress.iterations > 0
        assert progress.errors == 0
        assert child.used() == used
        assert child.stop() == 0
