"""The counters of a GPU are those of the moment when it was done."""

from __future__ import annotations

import threading
from dataclasses import replace

from sentinel.burnin.samples import CountersAtEnd, merged
from sentinel.diagnostics.counters import CountersResult
from sentinel.protocol.counters import Counters
from tests.harness.timing import TIMEOUT_S


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
    begun, go_on = threading.Event(), threading.Event()

    def read_one(uuid: str) -> CountersResult:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return result(counters(uuid, at=1.0))

    at_end = CountersAtEnd(read_one)
    at_end.take("burnin.ended", "GPU-0")
    at_end.take("burnin.ended", "GPU-1")
    assert begun.wait(TIMEOUT_S)
    threading.Timer(0.05, go_on.set).start()
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
