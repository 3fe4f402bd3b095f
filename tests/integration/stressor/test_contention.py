"""The detection of newcomers while a stressor takes its memory, on a simulated GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.errors import MemoryContentionError
from sentinel.host.simulation import Registry
from sentinel.protocol.stressor import MemoryTarget
from sentinel.stressor.device import (
    ALLOCATION_SLACK_BYTES,
    PREPARATION_SLACK_BYTES,
    ContentionMonitor,
    fill,
)
from sentinel.stressor.simulated_device import SimulatedDevice

GIB = 2**30


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.create(tmp_path, 1)


@pytest.fixture
def device(registry: Registry) -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(registry, registry.gpus()[0].uuid)
    yield device
    device.membership.close()


def test_memory_that_the_stressor_takes_is_no_contention(device: SimulatedDevice) -> None:
    monitor = ContentionMonitor(device)
    monitor.wait_until_quiet()
    filling = fill(device, MemoryTarget(share=0.5), GIB, 0, monitor)
    monitor.check(0)
    assert filling.held > GIB


def test_growth_before_the_first_chunk_is_detected(
    registry: Registry, device: SimulatedDevice
) -> None:
    """The creation of the stressor's context hides the start of a newcomer."""
    monitor = ContentionMonitor(device)
    other = registry.attach(registry.gpus()[0].uuid)
    timer = threading.Timer(0.05, other.allocate, (ALLOCATION_SLACK_BYTES + 2**20,))
    timer.start()
    with pytest.raises(MemoryContentionError, match=str(ALLOCATION_SLACK_BYTES + 2**20)):
        monitor.wait_until_quiet()
    timer.join()
    other.close()


def test_growth_while_chunks_are_taken_is_detected(
    registry: Registry, device: SimulatedDevice
) -> None:
    monitor = ContentionMonitor(device)
    other = registry.attach(registry.gpus()[0].uuid)
    other.allocate(ALLOCATION_SLACK_BYTES + 2**20)
    with pytest.raises(MemoryContentionError):
        fill(device, MemoryTarget(share=0.5), GIB, 0, monitor)
    assert device.reserved_bytes() < 2 * GIB, "the filling stopped at the first chunk"
    other.close()


def test_libraries_may_take_more_when_kernels_first_run(
    registry: Registry, device: SimulatedDevice
) -> None:
    monitor = ContentionMonitor(device)
    libraries = registry.attach(registry.gpus()[0].uuid)
    libraries.allocate(PREPARATION_SLACK_BYTES)
    monitor.check(PREPARATION_SLACK_BYTES)
    libraries.allocate(2**20)
    with pytest.raises(MemoryContentionError):
        monitor.check(PREPARATION_SLACK_BYTES)
    libraries.close()
