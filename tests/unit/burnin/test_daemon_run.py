"""The record of a burn-in that a daemon runs, made from its status."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Self, cast

import pytest

from sentinel.burnin.daemon_run import Samples, samples_of, until_end
from sentinel.burnin.records.recorder import TELEMETRY, sample
from sentinel.client.client import Client
from sentinel.client.event_stream import EventStream
from sentinel.client.types import EventInfo
from sentinel.core.actions import Event
from sentinel.protocol.api_types import BurninProgress, GpuStatus, GpuTelemetry

PROGRESS = BurninProgress(
    plan="standard",
    phase="steady",
    number=2,
    phases=12,
    done_s=3.0,
    quota_s=180.0,
    passes=0,
    quota_passes=0,
    left_s=300.0,
    seconds=10.0,
    iterations=100,
    flops=5e12,
    bytes=1e9,
    checks=50,
    errors=1,
)
GPU = GpuStatus(
    uuid="GPU-0",
    index=0,
    name="NVIDIA H200",
    pci_bus_id="0000:00:06.0",
    memory_total=2**37,
    occupancy="IDLE",
    stressor="RUNNING",
    admin="ENABLED",
    rule="running",
    reason="running",
    pid=77,
    read_s=0.25,
    temperature_c=60,
    power_w=690.0,
    sm_clock_mhz=1700,
    telemetry=GpuTelemetry(pcie_width=16),
    burnin=PROGRESS,
)


def names(before: GpuStatus | None, gpu: GpuStatus) -> list[str]:
    return [one.name for one in samples_of(before, gpu, 100.0)]


def test_a_status_has_the_readings_of_their_time() -> None:
    (one,) = samples_of(None, GPU, 100.0)
    assert (one.name, one.at, one.gpu) == ("telemetry", 99.75, "GPU-0")
    assert one.fields["power_w"] == 690.0
    assert one.fields["pcie_width"] == 16


def test_work_is_the_difference_of_two_states() -> None:
    later = replace(PROGRESS, seconds=11.0, iterations=110, flops=6e12, checks=55, errors=1)
    work = list(samples_of(GPU, replace(GPU, burnin=later), 100.0))[1]
    assert work.name == "work"
    assert work.fields == {
        "seconds": 1.0,
        "iterations": 10,
        "flops": 1e12,
        "bytes": 0.0,
        "checks": 5,
        "errors": 0,
    }


@pytest.mark.parametrize(
    "after", [None, replace(PROGRESS, number=3, seconds=11.0), replace(PROGRESS, done_s=4.0)]
)
def test_work_of_two_phases_belongs_to_neither(after: BurninProgress | None) -> None:
    assert names(GPU, replace(GPU, burnin=after)) == ["telemetry"]


@pytest.mark.parametrize("pid", [None, 78])
def test_the_end_of_a_stressor_is_recorded_with_its_pid(pid: int | None) -> None:
    (*_, end) = samples_of(GPU, replace(GPU, pid=pid), 100.0)
    assert end.name == "end"
    assert end.fields["pid"] == 77


def test_a_gpu_without_a_stressor_says_nothing() -> None:
    idle = replace(GPU, pid=None)
    assert names(idle, idle) == []


def test_samples_that_cannot_be_written_are_counted() -> None:
    written: list[Event] = []
    full = [True, True, False, False]

    def write(event: Event) -> None:
        if full.pop(0):
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(event)

    samples = Samples(write)
    for at in (1.0, 2.0, 3.0):
        samples.write(sample(TELEMETRY, at))
    assert [(one.name, one.at) for one in written] == [("log.dropped", 3.0), (TELEMETRY, 3.0)]
    assert written[0].fields["events"] == 2


class IdleDaemon:
    """The client of a daemon in which no burn-in runs any more."""

    def __init__(self) -> None:
        self.daemon = self
        self.pid = 1
        self.burnin = None

    def status(self) -> IdleDaemon:
        return self


class Stream(list[EventInfo]):
    """The stream of a daemon."""

    daemon, newest = "one", 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def test_a_record_ends_if_the_end_of_the_run_is_lost() -> None:
    lost = EventInfo(id=None, name="lost", fields={"count": 5})
    events = [EventInfo(id=2, name="gpu.idle", fields={}), lost]
    stream = Stream([*events, EventInfo(id=9, name="gpu.idle", fields={})])
    found = until_end(cast("Client", IdleDaemon()), cast("EventStream", stream), "run")
    assert [next(found), next(found)] == events
    with pytest.raises(StopIteration):
        next(found)
