"""Name the known faults of a GPU, each with its remedy, and report their changes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.gpu_state import GpuState
from sentinel.core.observation import Observation
from sentinel.core.step import Event, Step, gpu_event
from sentinel.protocol.gpu import Reading, Telemetry
from sentinel.protocol.views import ROW_IN_USE, UNCORRECTABLE, FaultKind, GpuFault, KnownFaults
from sentinel.protocol.xids import XIDS, XidMeaning

#: What to do about an XID, by NVIDIA's bucket of immediate actions; the first that applies counts.
_REMEDIES = {
    "RESTART_BM": "reboot the node; if it comes back, have the GPU replaced",
    "CONTACT_SUPPORT": "have the GPU replaced",
    "CHECK_MECHANICALS": "check the power cables and the seat of the card",
    "WORKFLOW_NVLINK_ERR": "reset the GPUs of the link; if it comes back, have the link checked",
    "WORKFLOW_XID_48": "reset the GPU; if it comes back, have the GPU replaced",
    "RESET_GPU": "reset the GPU; if it comes back, have the GPU replaced",
    "RESTART_APP": "reset the GPU when its jobs have ended",
}
#: What the driver calls a lost GPU that is still on the bus, with the bucket of its remedy.
_UNUSABLE = {"(reset_required)": "RESET_GPU", "(irq_issue)": "CHECK_MECHANICALS"}
#: Errors that could be counted before, and could not be for so many seconds, are a fault.
UNREAD_S = 3.0


def with_xid(gpu_state: GpuState, number: int) -> GpuState:
    """Remember an XID that means a hardware fault."""
    xid = XIDS.get(number)
    if xid is None or xid.meaning is not XidMeaning.FAIL:
        return gpu_state
    energy_j = None if gpu_state.telemetry is None else gpu_state.telemetry.energy_j
    xids = gpu_state.fault_xids | {number}
    return replace(gpu_state, fault_xids=xids, fault_energy_j=energy_j)


def known(gpu_state: GpuState) -> KnownFaults | None:
    """Return what the next daemon must know of a GPU's faults, or None if there is nothing."""
    kinds = {fault.kind for fault in gpu_state.faults}
    energy_j = gpu_state.fault_energy_j
    if FaultKind.LOST in kinds and energy_j is None and gpu_state.telemetry is not None:
        energy_j = gpu_state.telemetry.energy_j
    before = KnownFaults(
        gpu=gpu_state.gpu,
        lost=FaultKind.LOST in kinds,
        xids=tuple(sorted(gpu_state.fault_xids)),
        energy_j=energy_j,
        unread=FaultKind.UNREAD in kinds,
    )
    return before if before.lost or before.xids or before.unread else None


def describe(before: KnownFaults) -> tuple[GpuFault, ...]:
    """Describe the faults of a GPU that no daemon reads now."""
    state = GpuState(gpu=before.gpu)
    return tuple(_faults(restored(state, before, listed=not before.lost), None, None))


def restored(gpu_state: GpuState, before: KnownFaults, *, listed: bool) -> GpuState:
    """Take over the faults that an earlier daemon of this boot knew.

    Args:
        gpu_state: The first state of the GPU.
        before: Its faults.
        listed: Whether the driver lists the GPU; if not, it is lost.
    """
    faults = gpu_state.faults
    if not listed:
        faults = (_lost("the driver lists it no more"),)
    return replace(
        gpu_state,
        faults=faults,
        fault_xids=frozenset(before.xids),
        fault_energy_j=before.energy_j,
        counted_at=-math.inf if before.unread else None,
    )


def acknowledged(gpu_state: GpuState) -> GpuState:
    """Take the XIDs and the uncorrectable errors of a GPU as known: they are no fault any more."""
    telemetry = gpu_state.telemetry
    count = 0 if telemetry is None else telemetry.ecc_uncorrected_total or 0
    return _without_xids(gpu_state, count)


def _without_xids(gpu_state: GpuState, known_uncorrectable: int) -> GpuState:
    return replace(
        gpu_state,
        fault_xids=frozenset(),
        fault_energy_j=None,
        known_uncorrectable=known_uncorrectable,
    )


def update(gpu_state: GpuState, seen: Observation, _: Config) -> Step[GpuState]:
    """Name the faults by what is known now, and report those that are new or over."""
    reading = seen.readings.get(gpu_state.gpu.uuid)
    telemetry = reading.telemetry if reading is not None else None
    if _has_restarted(gpu_state, telemetry):
        gpu_state = replace(_without_xids(gpu_state, 0), counted_at=None)
    if telemetry is not None and _counts_errors(telemetry):
        gpu_state = replace(gpu_state, counted_at=telemetry.at)
    before = {fault.kind: fault for fault in gpu_state.faults}
    after = {
        fault.kind: fault for fault in _faults(gpu_state, reading, telemetry or gpu_state.telemetry)
    }
    if FaultKind.UNREAD in after and gpu_state.fault_energy_j is None and telemetry is not None:
        gpu_state = replace(gpu_state, fault_energy_j=telemetry.energy_j)  # a reset shows by it
    if before == after:
        return Step(gpu_state)
    events: list[Event] = []
    for kind in FaultKind:
        if kind in after and before.get(kind) != after[kind]:
            fault = after[kind]
            fields = {"fault": kind.value, "reason": fault.text, "remedy": fault.remedy}
            events.append(gpu_event("gpu.fault", gpu_state, seen.now, **fields))
        if kind in before and kind not in after:
            fields = {"fault": kind.value, "reason": before[kind].text}
            events.append(gpu_event("gpu.fault_over", gpu_state, seen.now, **fields))
    return Step(replace(gpu_state, faults=tuple(after.values())), events=tuple(events))


def _has_restarted(gpu_state: GpuState, after: Telemetry | None) -> bool:
    """Check whether the GPU was reset or its driver loaded again: its energy counts from zero."""
    if after is None or after.energy_j is None:
        return False
    before = None if gpu_state.telemetry is None else gpu_state.telemetry.energy_j
    counted = (before, gpu_state.fault_energy_j)
    return any(energy_j is not None and after.energy_j < energy_j for energy_j in counted)


def _counts_errors(telemetry: Telemetry) -> bool:
    """Check whether any counter of memory errors could be read."""
    return telemetry.ecc_uncorrected_total is not None or telemetry.remap_failed is not None


def _lost(why: str) -> GpuFault:
    bucket = next((one for code, one in _UNUSABLE.items() if why.endswith(code)), None)
    text = f"the driver {'cannot use' if bucket else 'has lost'} it: {why}"
    return GpuFault(kind=FaultKind.LOST, text=text, remedy=_REMEDIES[bucket or "RESTART_BM"])


def _faults(
    gpu_state: GpuState, reading: Reading | None, telemetry: Telemetry | None
) -> Iterator[GpuFault]:
    """Yield at most one fault of each kind, worst first."""
    lost = [fault for fault in gpu_state.faults if fault.kind is FaultKind.LOST]
    if reading is None:  # its driver is released, or the probe was just replaced
        yield from lost
    elif reading.lost:
        yield _lost(reading.fault or "")
    if gpu_state.fault_xids:
        numbers = sorted(gpu_state.fault_xids)
        xids = {number: XIDS[number] for number in numbers if number in XIDS}
        names = {number: f": {xid.name}" for number, xid in xids.items()}
        text = "; ".join(f"XID {number}{names.get(number, '')}" for number in numbers)
        buckets = {xid.bucket for xid in xids.values()}
        found = (do for bucket, do in _REMEDIES.items() if bucket in buckets)
        remedy = next(found, _REMEDIES["RESET_GPU"])
        yield GpuFault(kind=FaultKind.XID, text=text, remedy=remedy)
    if telemetry is not None:
        yield from _shown(gpu_state, telemetry)
    counted_at, now = gpu_state.counted_at, 0.0 if telemetry is None else telemetry.at
    if counted_at is not None and now - counted_at >= UNREAD_S:
        text, remedy = "its memory errors can no longer be counted", _REMEDIES["RESET_GPU"]
        yield GpuFault(kind=FaultKind.UNREAD, text=text, remedy=remedy)


def _shown(gpu_state: GpuState, telemetry: Telemetry) -> Iterator[GpuFault]:
    """Yield the faults that counters show."""
    if telemetry.recovery_action not in {None, "none"}:
        action = (telemetry.recovery_action or "").replace("_", " ")
        text = f"the driver demands a recovery: {action}"
        yield GpuFault(kind=FaultKind.RECOVERY, text=text, remedy="do what it demands")
    elif telemetry.remap_pending:
        remedy = _REMEDIES["RESTART_APP"]
        yield GpuFault(kind=FaultKind.RECOVERY, text=ROW_IN_USE, remedy=remedy)
    if telemetry.remap_failed:
        text, remedy = "a faulty row of its memory could not be replaced", "have the GPU replaced"
        yield GpuFault(kind=FaultKind.UNCORRECTABLE, text=text, remedy=remedy)
    elif (count := telemetry.ecc_uncorrected_total or 0) > gpu_state.known_uncorrectable:
        text = UNCORRECTABLE.format(count)
        remedy = _REMEDIES["WORKFLOW_XID_48"]
        yield GpuFault(kind=FaultKind.UNCORRECTABLE, text=text, remedy=remedy)
