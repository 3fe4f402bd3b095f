"""The pace, from the channel to the device and from the flag to the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import pytest

from sentinel.probe.simulated_driver import SimulatedDriver
from sentinel.protocol import codec
from sentinel.protocol.stressor import Finding, Pace, Progress, Ready, Stop
from sentinel.stressor.memtest import memtest
from sentinel.stressor.workloads import gemm
from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.sentinel_process import SentinelProcess, eventually
from tests.harness.stressor_harness import Child, stressors
from tests.harness.timing import MACHINE_SLOWNESS, TIMEOUT_S
from tests.harness.workload_harness import Bench

Start = Callable[..., Child]


# --- the context, in this process ------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


def order(bench: Bench, message: object) -> None:
    """Pass a message to the lease keeper, as its thread does."""
    bench.channel.send(codec.encode(message))
    bench.lease_keeper._drain()


def later(bench: Bench, message: object) -> threading.Timer:
    timer = threading.Timer(0.15, order, (bench, message))
    timer.start()
    return timer


def worked(on: Bench | Child) -> float:
    """Return the busy time of the device, in seconds."""
    (seconds,) = on.registry.work(on.uuid).values()
    assert seconds is not None
    return seconds


def test_the_device_is_busy_for_the_configured_share(bench: Bench) -> None:
    bench.become_ready()
    order(bench, Pace(share=0.3))
    assert bench.ctx.pace()
    share, deadline = 0.0, time.monotonic() + TIMEOUT_S
    while share < 0.25 / MACHINE_SLOWNESS and time.monotonic() < deadline:
        began, before = time.monotonic(), worked(bench)
        while time.monotonic() < began + 1.5:
            bench.ctx.report()
            assert bench.ctx.pace()
        share = (worked(bench) - before) / (time.monotonic() - began)
        assert share <= 0.35, "a busy host makes rests longer, never shorter"
    assert share >= 0.25 / MACHINE_SLOWNESS


def test_an_endless_rest_sends_progress_and_ends_with_the_next_pace(bench: Bench) -> None:
    bench.become_ready()
    order(bench, Pace(share=0.0))
    timer = threading.Timer(1.2, order, (bench, Pace(share=1.0)))
    timer.start()
    bench.ctx.report()
    assert bench.ctx.pace()
    timer.join()
    messages = bench.received()
    assert messages
    assert all(isinstance(message, Progress) for message in messages)
    at = worked(bench)
    assert bench.ctx.pace()
    assert bench.ctx.pace()
    assert worked(bench) > at


def test_a_wait_for_the_device_includes_the_rest(bench: Bench) -> None:
    bench.lease_keeper._armed = True
    bench.become_ready()
    assert bench.ctx.drain()
    order(bench, Pace(share=0.0))
    timer = later(bench, Pace(share=0.5))
    bench.ctx.report(checks=3)
    assert bench.ctx.drain()
    assert bench.lease_keeper.share == 0.5, "it did not rest"
    timer.join()
    order(bench, Pace(share=0.0))
    timer = later(bench, Stop())
    assert not bench.ctx.drain()
    timer.join()
    bench.ctx.finish()
    assert sum(m.checks for m in bench.received() if isinstance(m, Progress)) == 3


def test_the_hook_for_results_is_called_only_before_a_rest(bench: Bench) -> None:
    """A stressor may be killed during a long rest."""
    bench.become_ready()
    looks: list[tuple[float, int]] = []

    def look() -> None:
        looks.append((bench.lease_keeper.share, len(bench.ctx._in_flight)))
        order(bench, Pace(share=1.0))  # which ends the rest

    for _ in range(3):
        assert bench.ctx.pace(before_rest=look)
    assert bench.ctx.pace(rest=0.01, before_rest=look), "a rest of its own is the workload's affair"
    assert looks == []
    order(bench, Pace(share=0.0))
    assert bench.ctx.pace(before_rest=look)
    assert looks == [(0.0, 0)]


@pytest.mark.parametrize("workload", [pytest.param(gemm, marks=pytest.mark.long), memtest])
def test_a_fault_is_reported_before_a_rest(
    bench: Bench, workload: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each quantum is followed by a rest; the first quantum with a fault is examined before it."""
    bench.lease_keeper._armed = True
    bench.ctx.quantum = 1e-9  # of the smallest amount of work
    places: list[str] = []
    place = "elsewhere"
    pace = bench.ctx.pace

    def find(_: Finding) -> None:
        places.append(place)
        bench.lease_keeper.stopped.set()

    def fault_and_rest(before_rest: Callable[[], object] = lambda: None) -> bool:
        def look() -> None:
            nonlocal place
            place = "before a rest"
            before_rest()
            place = "elsewhere"
            order(bench, Pace(share=1.0))

        if not bench.ctx.ready:
            return pace()
        for chunk in bench.ctx.chunks:
            chunk[0].bitwise_xor_(1)
        order(bench, Pace(share=0.0))
        return pace(before_rest=look)

    monkeypatch.setattr(bench.ctx, "find", find)
    monkeypatch.setattr(bench.ctx, "pace", fault_and_rest)
    workload(bench.ctx)
    assert places[0] == "before a rest"


def test_a_stop_ends_the_rest_within_a_window(bench: Bench) -> None:
    bench.lease_keeper._armed = True
    bench.become_ready()
    order(bench, Pace(share=0.01))
    timer = later(bench, Stop())
    while bench.ctx.pace():
        pass
    timer.join()
    assert bench.lease_keeper.stopped.is_set()


def test_a_stop_wakes_a_resting_workload(bench: Bench) -> None:
    bench.lease_keeper._armed = True
    order(bench, Stop())
    assert bench.lease_keeper.pace_changed.is_set()


def test_a_workload_does_not_rest_before_its_memory_has_settled(bench: Bench) -> None:
    order(bench, Pace(share=0.0))
    assert bench.ctx.pace()
    assert not bench.ctx.ready
    later(bench, Pace(share=1.0)).join()
    assert bench.ctx.pace()
    assert bench.received() == [Ready(held=2 * 2**30, asked=2 * 2**30, chunks=4, refused=False)]


def test_an_invalid_share_is_clamped(bench: Bench) -> None:
    for share, kept in ((7.0, 1.0), (-1.0, 0.0)):
        order(bench, Pace(share=share))
        assert bench.lease_keeper.share == kept


# --- a real child ----------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with stressors(tmp_path) as start:
        yield start


@pytest.mark.long
def test_a_child_stops_and_continues_when_its_pace_changes(start: Start) -> None:
    child = start("elementwise")
    child.wait_for(Ready)
    child.wait_for(Progress)
    for _ in range(3):
        child.send(Pace(share=0.0))
        eventually(lambda: stands_still(child))
        child.send(Pace(share=1.0))
        eventually(lambda: not stands_still(child))
    assert child.stop() == 0


def stands_still(child: Child) -> bool:
    """Check whether the device is idle for longer than a quantum."""
    before = worked(child)
    time.sleep(0.1)
    return worked(child) == before


@pytest.mark.long
def test_an_endlessly_resting_child_sends_progress_and_stops_on_request(start: Start) -> None:
    child = start("elementwise")
    child.wait_for(Ready)
    child.send(Pace(share=0.0))
    while child.wait_for(Progress).iterations:
        pass
    assert child.stop() == 0


# --- the whole way ---------------------------------------------------------------------------


@pytest.mark.long
def test_the_target_utilization_is_reached_on_every_gpu(host: GpuHost) -> None:
    flags = ["--poll", "500ms", "--util-every", "500ms", "--util-samples", "3"]
    flags += ["--status-every", "1s", "--workload", "elementwise", "--util", "30%"]
    with host.sentinel(1, *flags) as running:
        assert running.wait_for("stressor.pace", gpu=0)["share"] == 0.3
        eventually(lambda: abs(mean_of_last(running, "utilization", 4) - 0.3) < 0.06)
        (pace,) = [e for e in running.events if e["event"] == "stressor.pace"]
        assert pace["util_target"] == 0.3
        assert running.stop() == 0


def mean_of_last(running: SentinelProcess, field: str, count: int) -> float:
    """Compute the mean of the last figures in the status of the GPU, or an impossible value."""
    values = [e[field] for e in running.events if e["event"] == "gpu.status" and e.get("share")]
    known = [value for value in values[1:] if value is not None]
    return fmean(known[-count:]) if len(known) >= count else -1.0


@pytest.mark.long
def test_the_target_power_is_measured_by_an_independent_reader(simulated: SimulatedHost) -> None:
    """On a simulated GPU, 242 W are 30 % of the time, which the controller must find."""
    flags = ["--poll", "200ms", "--util-every", "200ms", "--util-samples", "2"]
    flags += ["--workload", "elementwise", "--power", "242W"]
    with simulated.sentinel(1, *flags) as running:
        running.wait_for("stressor.ready")
        driver = SimulatedDriver(simulated.registry)

        def mean_power() -> float:
            driver.power(simulated.uuid())
            time.sleep(1.0)
            return driver.power(simulated.uuid()) or 0.0

        eventually(lambda: abs(mean_power() - 242) < 30)
        assert running.stop() == 0


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_resting_duty_cycle_holds_its_memory_and_is_no_hang(simulated: SimulatedHost) -> None:
    flags = ("--duty", "1s/4s", "--hang-after", "3s", "--workload", "hold")
    with simulated.sentinel(1, *flags) as running:
        running.wait_for("stressor.ready")
        assert running.wait_for("stressor.pace", count=1)["rests"] is True
        held = simulated.held()
        assert running.wait_for("stressor.pace", count=2)["rests"] is False
        assert simulated.held() == held
        assert "stressor.failed" not in running.names()
        assert running.stop() == 0
