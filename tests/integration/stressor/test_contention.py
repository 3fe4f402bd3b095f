"""A stressor that looks out for others while it takes its memory, on a simulated GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.host.simulation import Registry
from sentinel.protocol.stressor import MemoryTarget
from sentinel.stressor.contention import ALLOCATION, PREPARATION, CrowdedError, Lookout
from sentinel.stressor.device import SimulatedDevice
from sentinel.stressor.memory import fill

GIB = 2**30


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.create(tmp_path, 1)


@pytest.fixture
def device(registry: Registry) -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(registry, registry.gpus()[0].uuid)
    yield device
    device.membership.close()


def test_what_the_child_takes_itself_is_nobody(device: SimulatedDevice) -> None:
    lookout = Lookout(device)
    lookout.wait_for_calm()
    filling = fill(device, MemoryTarget(share=0.5), GIB, 0, lookout)
    lookout.check(0)
    assert filling.held > GIB


def test_somebody_who_grows_before_anything_is_taken_is_seen(
    registry: Registry, device: SimulatedDevice
) -> None:
    """Their context was begun beside ours, which hid its first part."""
    lookout = Lookout(device)
    other = registry.attach(registry.gpus()[0].uuid)
    timer = threading.Timer(0.05, other.allocate, (ALLOCATION + 2**20,))
    timer.start()
    with pytest.raises(CrowdedError, match=str(ALLOCATION + 2**20)):
        lookout.wait_for_calm()
    timer.join()
    other.close()


def test_somebody_who_comes_while_chunks_are_taken_stops_it(
    registry: Registry, device: SimulatedDevice
) -> None:
    lookout = Lookout(device)
    other = registry.attach(registry.gpus()[0].uuid)
    other.allocate(ALLOCATION + 2**20)
    with pytest.raises(CrowdedError):
        fill(device, MemoryTarget(share=0.5), GIB, 0, lookout)
    assert device.taken_memory() < 2 * GIB, "it stopped at the first chunk"
    other.close()


def test_libraries_may_take_more_once_kernels_run(
    registry: Registry, device: SimulatedDevice
) -> None:
    lookout = Lookout(device)
    libraries = registry.attach(registry.gpus()[0].uuid)
    libraries.allocate(PREPARATION)
    lookout.check(PREPARATION)
    libraries.allocate(2**20)
    with pytest.raises(CrowdedError):
        lookout.check(PREPARATION)
    libraries.close()
