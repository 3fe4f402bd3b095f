"""The checks of a node, and all checks that need no burn-in. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import ExpectedEvidence, NodeEvidence, ParticipationEvidence
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu_names import device_of
from sentinel.units import format_indices

TABLE = Table()

#: Models with several GPUs on a board (NVIDIA's data sheets).
_SHARED_BOARD = re.compile(r"\b(K80|M10|M60|A16)\b")


@TABLE.check("node.inventory")
def _node_inventory(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """Count the GPUs on the PCI bus that NVML does not list."""
    if any(gpu.is_simulated for gpu in evidence.gpus):
        return not_applicable("simulated GPUs are not on the bus")
    if evidence.pci_devices is None:
        return untested("the PCI bus could not be compared with NVML")
    unnamed = sum(gpu.pci_bus_id is None for gpu in evidence.gpus)
    missing = _unlisted(evidence.pci_devices, evidence.gpus)
    text = f"not listed by NVML: {', '.join(missing)}" if missing else ""
    return by_limits(max(0, len(missing) - unnamed), limits, text)


def _unlisted(devices: Iterable[str], gpus: Iterable[Counters]) -> list[str]:
    """Select the GPUs on the PCI bus that NVML does not list."""
    listed = {device_of(gpu.pci_bus_id) for gpu in gpus if gpu.pci_bus_id is not None}
    return [address for address in devices if device_of(address) not in listed]


@TABLE.check("node.serials")
def _node_serials(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """Count the serial numbers and PCI addresses that several GPUs have."""
    serials = [gpu.serial for gpu in evidence.gpus if not _SHARED_BOARD.search(gpu.name)]
    counts = Counter(filter(None, (*serials, *(gpu.pci_bus_id for gpu in evidence.gpus))))
    if not counts:
        return not_applicable("no GPU has a serial number or an address of its own")
    shared = sorted(value for value, count in counts.items() if count > 1)
    return by_limits(len(shared), limits, ", ".join(shared))


@TABLE.check("node.gpus")
def _node_gpus(evidence: ExpectedEvidence, _: Limits) -> Judgement:
    """Compare the number of GPUs with the expected one."""
    wanted = evidence.expectation.gpus
    if wanted is None:
        return not_applicable("the number of GPUs was not checked: no expected number was given")
    if evidence.driver_error is not None:
        return untested(evidence.driver_error)
    there = {gpu.uuid for gpu in evidence.listed if gpu.lost is None}
    difference = abs(wanted - len(there))
    if not difference and evidence.selected:
        if evidence.tested is None:
            return not_applicable("the number of GPUs was not checked: GPUs were selected")
        left_out = [gpu.index for gpu in evidence.listed if gpu.uuid not in evidence.tested]
        if left_out:
            missed = f"{len(left_out)} of {wanted} GPUs not tested: GPU {format_indices(left_out)}"
            return untested(f"{missed}. Leave out --gpus, or unset CUDA_VISIBLE_DEVICES")
    texts = [f"{len(there)} of {wanted} are there"]
    if len(there) < wanted:
        unlisted = _unlisted(evidence.pci_devices or (), evidence.listed)
        texts += [
            f"GPU {gpu.index} {'cannot be read' if gpu.unanswered else 'is lost'}: {gpu.lost}"
            for gpu in evidence.listed
            if gpu.lost
        ]
        texts += [
            f"known from before: {evidence.known[uuid]}"
            for uuid in evidence.known
            if uuid not in there
        ]
        texts += [f"on the PCI bus, but not listed by NVML: {address}" for address in unlisted]
    unread = sum(gpu.lost is not None and bool(gpu.unanswered) for gpu in evidence.listed)
    if len(there) < wanted <= len(there) + unread:  # a call that did not return is no loss
        return untested("; ".join(texts))
    status = Status.FAIL if difference else Status.PASS
    return Judgement(status=status, value=difference, evidence="; ".join(texts))


@TABLE.check("node.known")
def _node_known(evidence: ExpectedEvidence, limits: Limits) -> Judgement:
    """Count the GPUs of earlier runs that are gone."""
    if evidence.driver_error is not None:
        return untested(evidence.driver_error)
    there = {gpu.uuid for gpu in evidence.listed}
    lost = {
        uuid: f"{evidence.known.get(uuid, uuid)}: {'; '.join(found.faults)}"
        for uuid, found in evidence.findings.items()
        if found.faults and uuid not in there and not evidence.selected
    }
    gone = {uuid: text for uuid, text in evidence.known.items() if uuid not in there} | lost
    if lost:
        return Judgement(status=Status.FAIL, value=len(gone), evidence="; ".join(gone.values()))
    if evidence.expectation.gpus is not None and len(there) >= evidence.expectation.gpus:
        limits = {}
    return by_limits(len(gone), limits, "; ".join(gone.values()))


@TABLE.check("node.tested")
def _node_tested(evidence: ParticipationEvidence, limits: Limits) -> Judgement:
    """Count the GPUs of the node that took no part in the run."""
    if evidence.selected is None:
        return untested("it is not recorded whether GPUs were selected")
    absent = [gpu for gpu in evidence.listed if gpu.uuid not in evidence.tested]
    held = [gpu for gpu in absent if gpu.uuid in evidence.held]
    if evidence.selected and not evidence.ignored:
        absent = held
    if evidence.selected and not absent:
        return not_applicable("GPUs were selected")
    text = "; ".join(_absences(evidence, absent))
    gone = sum(gpu.lost is not None and not gpu.unanswered for gpu in absent)
    lost = by_limits(gone, {"fail": limits["fail"]}, text)
    if lost.status is Status.FAIL:
        return lost
    if held:  # the user wanted them tested, so no limit excuses it
        action = "Free the GPU and run it again, or name the GPUs to test by --gpus."
        return Judgement(status=Status.NOT_TESTED, value=len(held), evidence=text, action=action)
    return by_limits(len(absent), {"warn": limits["warn"]}, text)


def _absences(evidence: ParticipationEvidence, absent: Sequence[Counters]) -> Iterator[str]:
    """Explain why GPUs took no part; those with a reason of their own come first."""
    others = []
    for gpu in absent:
        holder = evidence.held.get(gpu.uuid or "")
        why = gpu.lost or (holder and f"it is held by {holder}")
        if why:
            yield f"GPU {gpu.index} has no verdict: {why}"
        if not holder and (evidence.selected or not why):
            others.append(gpu.index)
    if others and evidence.selected:
        yield f"GPU {format_indices(others)} not tested: {evidence.ignored}"
    elif others:
        yield from (f"GPU {index} has no verdict: it was not used" for index in others)
