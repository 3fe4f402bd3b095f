"""The samples of a burn-in, made from the status and the events of the daemon."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.burnin.samples import TELEMETRY, Samples, sample, samples_of
from sentinel.core.step import Event
from sentinel.diagnostics.kernel_log import KernelLog
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


def test_a_gpu_without_a_stressor_says_nothing() -> None:
    idle = replace(GPU, pid=None)
    assert names(idle, idle) == []


def test_samples_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    written: list[Event] = []
    full = [True, True, False, False]

    def write(event: Event) -> None:
        if full.pop(0):
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(event)

    samples = Samples(write, KernelLog(str(tmp_path / "missing")))
    for at in (1.0, 2.0, 3.0):
        samples.write(sample(TELEMETRY, at))
    assert [(one.name, one.at) for one in written] == [("log.dropped", 3.0), (TELEMETRY, 3.0)]
    assert written[0].fields["events"] == 2


def test_an_xid_of_the_kernel_is_written_before_the_next_sample(tmp_path: Path) -> None:
    written: list[Event] = []
    log = tmp_path / "kmsg"
    log.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off\n")
    with KernelLog(str(log), past=True) as kernel:
        Samples(written.append, kernel).write(sample(TELEMETRY, 1.0))
    assert [one.name for one in written] == ["xid", TELEMETRY]
    assert written[0].fields["number"] == 79


def test_an_xid_that_cannot_be_written_makes_the_kernels_log_incomplete(tmp_path: Path) -> None:
    def write(_: Event) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = tmp_path / "kmsg"
    log.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off\n")
    with KernelLog(str(log), past=True) as kernel:
        Samples(write, kernel).write(sample(TELEMETRY, 1.0))
        assert kernel.error == "an XID could not be recorded"
