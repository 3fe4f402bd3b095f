"""The pulse workload: on a device with simulated time, and in real stressors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.options import Sync
from sentinel.protocol.stressor import FindingPlace, MemoryTarget, Note, Ready
from sentinel.stressor import sizing
from sentinel.stressor import workloads as module
from sentinel.stressor.comparison import flip
from sentinel.stressor.device import Fence
from sentinel.stressor.matmul import DTYPES, Shape
from sentinel.stressor.pipeline import ResultPipeline
from sentinel.stressor.sizing import cube, size_for
from sentinel.stressor.workloads import next_begin, pulse, shift_s
from tests.harness.parameters import mostly_long
from tests.harness.stressor_harness import Child, stressors
from tests.harness.workload_harness import InstantDevice, Workbench, workbench

#: The duration of a product on the simulated device: that of an H200 with 16384 rows.
PRODUCT_S = 0.013
BEGIN = 1000.0
PERIODS = 6

#: Phases of a real stressor of which one begins on time, also on a busy host.
PHASES = 30


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
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workbench]:
    chunk = getattr(request, "param", 2**25)
    with workbench(tmp_path, chunks=12, chunk=chunk, quantum=0.02) as bench:
        yield bench


@pytest.fixture
def clock(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    time = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr("sentinel.stressor.context.time", time)
    monkeypatch.setattr("sentinel.stressor.pipeline.time", time)
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


@mostly_long("duty", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("hz", [0.5, 1.0, 3.0, 10.0])
def test_each_period_has_one_phase_of_load_and_one_of_rest(
    bench: Workbench, clock: Clock, queue: Queue, hz: float, duty: float
) -> None:
    began = BEGIN
    clock.end = began + PERIODS / hz - 1e-6
    pulse(bench.ctx, hz=hz, duty=duty, size=64)
    phases = queue.busy
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


@pytest.mark.parametrize(
    ("call", "burst"),
    [("step", {}), ("check_written", {"burst": 5.0})],
    ids=["within a phase", "of a burst, before the next one"],
)
def test_a_wrong_product_is_found(
    bench: Workbench,
    clock: Clock,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    burst: dict[str, Any],
) -> None:
    clock.end = BEGIN + 3.0
    corrupted: list[int] = []
    usual = getattr(ResultPipeline, call)

    def corrupt(pipeline: ResultPipeline) -> None:
        if pipeline.rounds and not corrupted:
            corrupted.append(pipeline.written)
            pipeline.newest()[3, 4] += 1

    def corrupting(pipeline: ResultPipeline, **given: int) -> bool:
        if burst:  # it checks what was written
            corrupt(pipeline)
        done: bool = usual(pipeline, **given)
        if not burst:
            corrupt(pipeline)
        return done

    monkeypatch.setattr(ResultPipeline, call, corrupting)
    pulse(bench.ctx, hz=2.0, size=64, **burst)
    assert bench.done().errors == 1
    assert [finding.first for finding in bench.findings()] == [(3, 4)]


def test_a_wrong_input_makes_no_phase_longer(
    bench: Workbench, clock: Clock, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It empties the ring, whose cursors start again; here in the last step of a phase."""
    clock.end = BEGIN + PERIODS / 2.0
    steps = iter(range(10**9))
    step = ResultPipeline.step

    def corrupt_and_step(pipeline: ResultPipeline, *, at_most: int) -> bool:
        if next(steps) == 29:
            flip(pipeline.product.left, 0, 14)
        return step(pipeline, at_most=at_most)

    monkeypatch.setattr(ResultPipeline, "step", corrupt_and_step)
    pulse(bench.ctx, hz=2.0, size=64)
    assert [finding.place for finding in bench.findings()] == [FindingPlace.INPUT]
    for begin, end in queue.busy[1:-1]:
        assert end - begin == pytest.approx(0.25, abs=PRODUCT_S / 2 + 1e-6)


# --- bursts ----------------------------------------------------------------------------------

#: The duration of a product of a burst.
SHORT_S = 0.0002

#: Memory for hundreds of small results.
MANY = pytest.mark.parametrize("bench", [2**30], indirect=True)


@MANY
@mostly_long("burst", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("hz", [0.2, 3.0, 100.0])
def test_each_period_has_one_burst_of_the_length_that_was_asked_for(
    bench: Workbench,
    clock: Clock,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    hz: float,
    burst: float,
) -> None:
    monkeypatch.setitem(globals(), "PRODUCT_S", SHORT_S)
    # Eight products in a row are measured; before, one and its check.
    measured = iter(range(10**9))
    monkeypatch.setattr(
        InstantDevice,
        "measure_s",
        lambda _, __: SHORT_S / 2 if next(measured) < 6 else 8 * SHORT_S,
    )
    began = BEGIN
    clock.end = began + PERIODS / hz - 1e-6
    pulse(bench.ctx, hz=hz, burst=burst, size=64)
    phases = queue.busy
    assert len(phases) == PERIODS
    for number, (begin, end) in enumerate(phases):
        assert begin == pytest.approx(began + number / hz)
        assert end - begin == pytest.approx(max(burst / 1000, SHORT_S), abs=SHORT_S / 2 + 1e-9)
    # Also those of the last burst are checked before the rest: the memory is never full.
    done = bench.done()
    assert (done.checks, done.errors) == (done.iterations, 0)
    (pipeline,) = queue.pipelines
    assert not pipeline.unchecked
    assert pipeline.rounds < 10


@MANY
@pytest.mark.parametrize(
    ("seconds", "rows"), [(1e-9, 64), (64e-6, 64), (128e-6, 128), (200e-6, 128), (1.0, 256)]
)
def test_a_short_load_has_products_that_fit_into_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, seconds: float, rows: int
) -> None:
    sizes: list[int] = []

    def seconds_of(ctx: object, dtype: object, shape: Shape, layout: object) -> float:
        sizes.append(shape.rows)
        return shape.rows * 1e-6

    monkeypatch.setattr(sizing, "_seconds", seconds_of)
    largest = replace(DTYPES["bf16"], shape=cube(256))
    assert size_for(bench.ctx, largest, seconds) == rows
    assert sizes == sorted(sizes), "larger ones are tried only after smaller ones"


# --- in phase and out of phase ---------------------------------------------------------------


@given(
    hz=st.floats(0.5, 10.0),
    index=st.integers(0, 63),
    sync=st.sampled_from(["in-phase", "out-of-phase"]),
    nows=st.tuples(*[st.floats(0.0, 1e8)] * 2),  # three years of uptime
)
def test_when_a_period_begins_depends_on_the_clock_alone(
    hz: float, index: int, sync: Sync, nows: tuple[float, float]
) -> None:
    origin = shift_s(sync, index, hz)
    late = 0.5 if sync == "out-of-phase" and index % 2 else 0.0
    for now in nows:
        begin = next_begin(origin, hz, now)
        assert 0.0 < begin - now < 1.01 / hz
        periods = begin * hz - late
        assert periods == pytest.approx(round(periods), abs=1e-5)
        assert next_begin(origin, hz, begin) == pytest.approx(begin + 1 / hz, abs=1e-6)
        for early in (math.nextafter(begin, 0.0), begin - 1e-5):
            assert next_begin(origin, hz, early) > begin + 0.9 / hz, "a period was done twice"


@pytest.mark.parametrize("sync", ["in-phase", "out-of-phase"])
@mostly_long("index", [0, 1, 2], quick=2)
@pytest.mark.parametrize("waited", [0.0, 0.123])
@mostly_long("hz", [3.0, 10.0])
def test_periods_begin_at_the_same_times_whenever_a_stressor_was_started(
    bench: Workbench,
    clock: Clock,
    queue: Queue,
    hz: float,
    waited: float,
    index: int,
    sync: Sync,
) -> None:
    late = 0.5 if sync == "out-of-phase" and index % 2 else 0.0
    clock.now += waited
    clock.end = clock.now + PERIODS / hz
    bench.ctx.index = index
    pulse(bench.ctx, hz=hz, size=64, sync=sync)
    assert len(queue.busy) >= PERIODS - 1
    for begin, _ in queue.busy:
        periods = begin * hz - late
        assert periods == pytest.approx(round(periods), abs=1e-6)


def test_a_stop_before_the_first_period_ends_the_workload(
    bench: Workbench, clock: Clock, queue: Queue
) -> None:
    clock.end = BEGIN + 0.01
    pulse(bench.ctx, hz=0.5, size=64, sync="in-phase")
    assert clock.now < BEGIN + 1.0
    assert bench.done().errors == 0


def begins_on_time(child: Child, late: float) -> bool:
    """Wait for a phase of load that begins ``late`` seconds into its period, at most 30 ms later.

    A phase begins late if the host is busy, and never early.
    """
    for _ in range(PHASES):
        after = (float(child.wait_for(Note).text) - late) % 1.0
        if after < 0.03:
            return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(("sync", "late"), [("in-phase", 0.0), ("out-of-phase", 0.5)])
def test_two_stressors_pulse_together_or_in_opposition(
    tmp_path: Path, sync: str, late: float
) -> None:
    with stressors(tmp_path, gpus=2) as start:
        children = []
        for gpu in (0, 1):
            workload = f"bad_workloads:pulses_and_notes_when:sync={sync}"
            memory = MemoryTarget(share=0.2)
            children.append(start(workload, memory=memory, gpu=gpu))
            children[-1].wait_for(Ready)  # so the second one starts seconds later
        first, second = children
        assert begins_on_time(first, 0.0)
        assert begins_on_time(second, late)
        assert [child.stop() for child in children] == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize("options", ["hz=10", "hz=20,burst=2", "hz=100,duty=0.1"])
def test_a_pulse_stressor_ends_on_request(start: Callable[..., Child], options: str) -> None:
    child = start(f"pulse:{options}", memory=MemoryTarget(share=0.2))
    child.wait_for(Ready)
    used = child.used()
    for _ in range(2):
        assert child.wait_for_work("iterations").errors == 0
    assert child.used() == used
    assert child.stop() == 0
