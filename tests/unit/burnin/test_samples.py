"""What is recorded while a burn-in runs: samples of the daemon, and counters at each GPU's end."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.burnin.record import TELEMETRY
from sentinel.burnin.samples import CountersAtEnd, Samples, merged, sample, samples_of
from sentinel.diagnostics.counters import CountersResult
from sentinel.diagnostics.kernel_log import KernelLog, KernelRecord
from sentinel.protocol.api_types import BurninProgress, GpuStatus, GpuTelemetry
from sentinel.protocol.counters import Counters
from sentinel.protocol.events import Event
from tests.harness.gpu_views import gpu_status
from tests.harness.timing import TIMEOUT_S

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
GPU = gpu_status(
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
    with KernelLog(str(log), since=0.0) as kernel:
        Samples(written.append, kernel).write(sample(TELEMETRY, 1.0))
    assert [one.name for one in written] == ["xid", TELEMETRY]
    assert written[0].fields["number"] == 79


def test_a_storm_of_equal_faults_is_written_once_in_five_seconds(tmp_path: Path) -> None:
    written: list[Event] = []
    line = "pcieport 0000:3a:01.0: AER: Corrected error received: 0000:3b:00.0"
    with KernelLog(str(tmp_path / "missing")) as kernel:
        records = [KernelRecord(at=at / 100, text=line) for at in range(1200)]
        kernel.read = lambda: tuple(records)  # type: ignore[method-assign]
        Samples(written.append, kernel).write(sample(TELEMETRY, 1.0))
    assert [(one.name, one.at) for one in written[:-1]] == [
        ("kernel_fault", 0.0),
        ("kernel_fault", 5.01),
        ("kernel_fault", 10.02),
    ]
    assert written[0].fields["device"] == "0000:3b:00.0"


def test_an_xid_that_cannot_be_written_makes_the_kernels_log_incomplete(tmp_path: Path) -> None:
    def write(_: Event) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = tmp_path / "kmsg"
    log.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off\n")
    with KernelLog(str(log), since=0.0) as kernel:
        Samples(write, kernel).write(sample(TELEMETRY, 1.0))
        assert kernel.error == "an XID could not be recorded"


def counters(uuid: str, at: float, lost: str | None = None) -> Counters:
    return Counters(uuid=uuid, index=int(uuid[-1]), name="NVIDIA H200", at=at, lost=lost)


def result(*found: Counters) -> CountersResult:
    return CountersResult(counters=found, driver_error=None, stuck=False, pci_devices=("a",))


def test_a_gpu_that_is_done_is_read_at_once_and_the_others_at_the_end() -> None:
    read = threading.Event()

    def read_one(uuid: str) -> CountersResult:
        read.set()
        return result(counters(uuid, at=1.0))

    at_end = CountersAtEnd(read_one)
    at_end.take("burnin.phase_ended", "GPU-1")
    at_end.take("burnin.ended", "GPU-0")
    assert read.wait(TIMEOUT_S)
    after = at_end.close(lambda: result(counters("GPU-0", at=9.0), counters("GPU-1", at=9.0)))
    assert [counter.at for counter in after.counters] == [1.0, 9.0]
    assert after.pci_devices == ("a",)


def test_what_is_not_read_by_the_end_is_read_with_the_rest() -> None:
    begun = threading.Event()

    def read_one(uuid: str) -> CountersResult:
        begun.set()
        assert at_end._closing.wait(TIMEOUT_S)
        return result(counters(uuid, at=1.0))

    at_end = CountersAtEnd(read_one)
    at_end.take("burnin.ended", "GPU-0")
    at_end.take("burnin.ended", "GPU-1")
    assert begun.wait(TIMEOUT_S)
    after = at_end.close(lambda: result(counters("GPU-0", at=9.0), counters("GPU-1", at=9.0)))
    assert [counter.at for counter in after.counters] == [1.0, 9.0]


def test_a_gpu_that_is_lost_or_could_not_be_read_has_its_last_counters() -> None:
    early = {"GPU-0": counters("GPU-0", at=1.0)}
    lost = counters("GPU-0", at=9.0, lost="it fell off the bus")
    assert merged(result(lost), early).counters == (lost,)

    def fail(uuid: str) -> CountersResult:
        return replace(result(counters(uuid, at=1.0, lost="a call hung")), stuck=True)

    at_end = CountersAtEnd(fail)
    at_end.take("burnin.ended", "GPU-0")
    after = at_end.close(lambda: result(counters("GPU-0", at=9.0)))
    assert [counter.at for counter in after.counters] == [9.0]
