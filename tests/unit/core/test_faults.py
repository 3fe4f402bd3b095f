"""Each known fault is one, with a remedy, until its cause has gone or it is acknowledged."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from sentinel.config.model import Config
from sentinel.core.faults import acknowledged, describe, known, restored, update, with_xid
from sentinel.core.gpu_state import GpuState
from sentinel.core.observation import Observation
from sentinel.core.step import Step
from sentinel.protocol.gpu import Gpu, Reading, Telemetry
from sentinel.protocol.views import FaultKind, KnownFaults
from sentinel.protocol.xids import XIDS, XidMeaning
from tests.harness.narrowing import not_none

GPU = Gpu(uuid="GPU-0", index=0, name="H200", pci_bus_id="0000:00:06.0", memory_total=2**37)
LOST, XID, RECOVERY, UNCORRECTABLE, UNREAD = FaultKind


def read(
    gpu_state: GpuState, *, lost: bool | str = False, at: float = 1.0, **telemetry: Any
) -> Step[GpuState]:
    """Apply a reading, and keep its telemetry as the assessment of the health does."""
    found = None if lost else Telemetry(at=at, **telemetry)
    why = "GPU is lost" if lost is True else lost or None
    reading = Reading(uuid="GPU-0", at=at, lost=bool(lost), fault=why, telemetry=found)
    step = update(gpu_state, Observation(now=at, readings={"GPU-0": reading}), Config())
    return step._replace(state=replace(step.state, telemetry=found or gpu_state.telemetry))


def kinds(gpu_state: GpuState) -> tuple[FaultKind, ...]:
    return tuple(fault.kind for fault in gpu_state.faults)


def events(step: Step[GpuState]) -> list[tuple[str, object]]:
    return [(event.name, event.fields["fault"]) for event in step.events]


@pytest.mark.parametrize(
    ("xids", "telemetry", "expected", "text", "remedy"),
    [
        ((), {"lost": True}, (LOST,), "GPU is lost", "reboot"),
        ((48,), {}, (XID,), "XID 48: double bit ECC error", "reset"),
        ((95, 48), {}, (XID,), "XID 48: .*; XID 95: uncontained memory error", "reset"),
        ((79, 94), {}, (XID,), "XID 79: GPU has fallen off the bus", "reboot"),
        ((), {"recovery_action": "node_reboot"}, (RECOVERY,), "node reboot", "what it demands"),
        ((), {"remap_pending": True}, (RECOVERY,), "until a reset", "reset the GPU"),
        (
            (),
            {"recovery_action": "node_reboot", "remap_pending": True},
            (RECOVERY,),
            "node reboot",
            "what it demands",
        ),
        ((), {"ecc_uncorrected_total": 3}, (UNCORRECTABLE,), "3 uncorrectable", "reset"),
        ((), {"remap_failed": True}, (UNCORRECTABLE,), "could not be replaced", "replaced"),
        ((79,), {"lost": True}, (LOST, XID), "GPU is lost", "reboot"),
        ((13, 31, 43, 45), {"recovery_action": "none", "remap_failed": False}, (), "", ""),
        ((63, 92, 154, 999), {"ecc_uncorrected_total": 0}, (), "", ""),
    ],
)
def test_a_fault_has_its_words_and_a_remedy(
    xids: tuple[int, ...],
    telemetry: dict[str, Any],
    expected: tuple[FaultKind, ...],
    text: str,
    remedy: str,
) -> None:
    state = GpuState(gpu=GPU)
    for number in xids:
        state = with_xid(state, number)
    step = read(state, **telemetry)
    assert kinds(step.state) == expected
    assert events(step) == [("gpu.fault", kind.value) for kind in expected]
    for fault in step.state.faults[:1]:
        assert re.search(text, fault.text)
        assert remedy in fault.remedy


def test_each_xid_that_means_a_hardware_fault_has_a_remedy() -> None:
    for xid in XIDS.values():
        step = read(with_xid(GpuState(gpu=GPU), xid.number))
        assert bool(step.state.faults) == (xid.meaning is XidMeaning.FAIL), xid
        assert all(fault.remedy for fault in step.state.faults)


def test_a_fault_is_reported_once_and_when_it_is_over() -> None:
    step = read(GpuState(gpu=GPU), lost=True)
    again = read(step.state, lost=True)
    assert events(again) == []
    assert kinds(update(again.state, Observation(now=2.0), Config()).state) == (LOST,), "released"
    assert events(read(again.state)) == [("gpu.fault_over", "lost")]


@pytest.mark.parametrize(
    ("why", "text", "remedy"),
    [
        ("the GPU needs a reset (reset_required)", "cannot use it", "reset the GPU"),
        ("no interrupts (irq_issue)", "cannot use it", "cables"),
        ("fell off the bus (gpu_is_lost)", "has lost it", "reboot"),
        ("the GPU is gone (not_found)", "has lost it", "reboot"),
    ],
)
def test_a_lost_gpu_has_the_remedy_of_its_error(why: str, text: str, remedy: str) -> None:
    (fault,) = read(GpuState(gpu=GPU), lost=why).state.faults
    assert fault.text == f"the driver {text}: {why}"
    assert remedy in fault.remedy


def test_errors_that_could_be_counted_and_cannot_any_more_are_a_fault() -> None:
    never = read(read(GpuState(gpu=GPU), at=1.0, temperature_c=40).state, at=99.0)
    assert kinds(never.state) == (), "a model without these counters"
    state = read(GpuState(gpu=GPU), at=1.0, ecc_uncorrected_total=0, remap_failed=False).state
    state = read(state, at=2.0, temperature_c=40).state
    assert kinds(state) == (), "one reading may fail"
    assert kinds(read(state, at=4.0, remap_failed=False).state) == (), "another counter answers"
    step = read(state, at=4.0, temperature_c=40)
    assert events(step) == [("gpu.fault", "unread")]
    assert kinds(update(step.state, Observation(now=5.0), Config()).state) == (UNREAD,)
    assert kinds(acknowledged(step.state)) == (UNREAD,)
    again = read(step.state, at=6.0, ecc_uncorrected_total=0)
    assert events(again) == [("gpu.fault_over", "unread")]


def test_a_restart_takes_over_that_errors_can_no_longer_be_counted() -> None:
    state = read(GpuState(gpu=GPU), at=1.0, ecc_uncorrected_total=0).state
    before = not_none(known(read(state, at=9.0).state))
    assert before.unread
    assert kinds(replace(GpuState(gpu=GPU), faults=describe(before))) == (UNREAD,)
    again = restored(GpuState(gpu=GPU), before, listed=True)
    assert kinds(read(again, at=10.0).state) == (UNREAD,)
    assert kinds(read(again, at=10.0, remap_failed=False).state) == ()


def test_a_reset_may_end_the_counting_of_errors() -> None:
    state = read(GpuState(gpu=GPU), at=1.0, ecc_uncorrected_total=0, energy_j=1000.0).state
    assert kinds(read(state, at=60.0, energy_j=1.0).state) == ()


def test_a_reset_ends_that_errors_could_not_be_counted_also_after_the_daemon() -> None:
    state = read(GpuState(gpu=GPU), at=1.0, ecc_uncorrected_total=0, energy_j=900.0).state
    unread = read(state, at=9.0, energy_j=1000.0).state
    later = known(read(unread, at=10.0, energy_j=1100.0).state)
    assert later is not None
    assert later.energy_j == 1000.0, "not at each reading, with which the file would be written"
    again = restored(GpuState(gpu=GPU), later, listed=True)
    assert kinds(read(again, at=11.0, energy_j=1200.0).state) == (UNREAD,)
    assert kinds(read(again, at=11.0, energy_j=5.0).state) == ()


def test_an_acknowledgement_ends_what_was_known_and_no_more() -> None:
    state = read(with_xid(GpuState(gpu=GPU), 48), ecc_uncorrected_total=2).state
    assert kinds(state) == (XID, UNCORRECTABLE)
    step = read(acknowledged(state), ecc_uncorrected_total=2)
    assert events(step) == [("gpu.fault_over", "xid"), ("gpu.fault_over", "uncorrectable")]
    assert kinds(read(step.state, ecc_uncorrected_total=3).state) == (UNCORRECTABLE,)
    demanded = acknowledged(read(state, recovery_action="gpu_reset", remap_failed=True).state)
    assert kinds(read(demanded, recovery_action="gpu_reset", remap_failed=True).state) == (
        RECOVERY,
        UNCORRECTABLE,
    )


def test_an_xid_stands_until_the_gpu_was_reset() -> None:
    state = read(with_xid(GpuState(gpu=GPU), 95), energy_j=1000.0).state
    state = read(state, energy_j=2000.0).state
    assert kinds(read(state).state) == (XID,), "an energy that is not read proves nothing"
    assert kinds(read(state, energy_j=5.0).state) == ()


def test_a_restart_takes_over_xids_until_the_gpu_was_reset() -> None:
    state = read(GpuState(gpu=GPU), energy_j=1000.0).state
    before = not_none(known(read(with_xid(state, 79), energy_j=1100.0).state))
    assert (before.xids, before.energy_j, before.lost) == ((79,), 1000.0, False)
    again = restored(GpuState(gpu=GPU), before, listed=True)
    assert kinds(read(again).state) == (XID,), "an energy that is not read proves nothing"
    assert kinds(read(again, energy_j=1200.0).state) == (XID,)
    reset = read(again, energy_j=3.0).state
    assert kinds(reset) == ()
    assert known(reset) is None
    assert known(acknowledged(again)) is None


def test_a_gpu_that_is_missing_after_a_restart_is_lost_until_it_can_be_read() -> None:
    before = not_none(known(read(GpuState(gpu=GPU), lost=True).state))
    again = restored(GpuState(gpu=GPU), before, listed=False)
    unread = update(again, Observation(now=2.0), Config()).state
    assert kinds(unread) == (LOST,)
    assert known(unread) == before
    assert events(read(unread)) == [("gpu.fault_over", "lost")]
    assert kinds(restored(GpuState(gpu=GPU), before, listed=True)) == (), "it is read again"


def test_the_energy_of_a_lost_gpu_is_kept_which_shows_a_later_reset() -> None:
    state = read(GpuState(gpu=GPU), energy_j=1000.0).state
    before = not_none(known(read(state, lost=True).state))
    assert (before.lost, before.energy_j) == (True, 1000.0)


def test_an_xid_that_another_version_knew_is_named() -> None:
    """The file of a newer or older version may have it."""
    before = KnownFaults(gpu=GPU, xids=(48, 5000))
    (fault,) = describe(before)
    assert fault.text == "XID 48: double bit ECC error; XID 5000"
    (fault,) = describe(replace(before, xids=(5000,)))
    assert fault.text == "XID 5000"
    assert fault.remedy == "reset the GPU; if it comes back, have the GPU replaced"
