"""The checks of a GPU's links to the host and to other GPUs. Pure.

Other traffic only lowers a rate, so the best second of a link counts. Where GPUs of the node were
not in the group, their traffic may explain a low rate, and nothing is judged by it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sentinel.burnin.checks.check import (
    Check,
    Judgement,
    Severity,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_checks import RETEST, LoadEvidence
from sentinel.burnin.checks.peers import MIN_PEERS
from sentinel.burnin.checks.thresholds import Limits, above, below
from sentinel.burnin.records.record import GpuRecord, PhaseRecord
from sentinel.protocol.stressor import FindingPlace, LinkPart

#: Bytes a second of one lane by PCIe generation, without the overhead of packets: 2.5 and 5 GT/s
#: with 8 of 10 bits, 8 to 32 GT/s with 128 of 130, 64 GT/s with 242 of 256 bytes (PCI-SIG).
LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

#: Bytes a second between GPUs, by the name of the model: of NCCL's send and receive in both
#: directions at once, and of an all-reduce as below. Measured by the workload on two H200 with 18
#: NVLinks each, torch 2.11 (docs/benchmarks.md): 298.8 and 302.1, 313.9 and 314.6.
REFERENCES: Mapping[str, Mapping[LinkPart, float]] = {
    "NVIDIA H200": {LinkPart.PEER: 300e9, LinkPart.ALL_REDUCE: 314e9}
}

_GB = 1e9
_NO_PHASE = "the plan has no phase that tests links"


def best(record: GpuRecord, part: LinkPart) -> dict[int | None, float]:
    """Find the best rate of each link of a kind, by the index of the sender; bytes a second."""
    found: dict[int | None, float] = {}
    for sample in record.links:
        values = sample.values
        if values["part"] == part and values["rate"] is not None:
            peer = values["peer"]
            found[peer] = max(found.get(peer, 0.0), float(values["rate"]))
    return found


def _phases(record: GpuRecord) -> list[PhaseRecord]:
    """Select the phases that test links, or that were to."""
    return [one for one in record.phases if one.phase.together or one.links]


def _missing(record: GpuRecord) -> Judgement | None:
    """Explain why there is nothing to judge, or return None."""
    phases = _phases(record)
    if not phases:
        return not_applicable(_NO_PHASE)
    if any(one.links for one in phases):
        return None
    given_up = [str(why) for one in phases if (why := one.work.get("given_up"))]
    return untested(given_up[0] if given_up else "no link was tested")


def _alone(record: GpuRecord) -> Judgement | None:
    """Explain why no other GPU was in the group, or return None."""
    if any(int(one.values["size"]) > 1 for one in record.links):
        return None
    groups = record.named("burnin.grouped")
    busy = groups[-1]["missing"] if groups else []
    if not busy:
        return not_applicable("skipped: the run has one GPU")
    names = ", ".join(map(str, busy))
    return untested(f"skipped: GPU {names} did not get to this phase in time")


def _whole(evidence: LoadEvidence, judged: Judgement) -> Judgement:
    """Judge no low rate of a group that had not all GPUs of the node."""
    size = max((int(one.values["size"]) for one in evidence.record.links), default=0)
    if judged.status not in {Status.FAIL, Status.WARN} or size >= evidence.node_gpus:
        return judged
    why = f"{size} of the node's {evidence.node_gpus} GPUs took part; others may have used the link"
    return replace(untested(f"{judged.evidence}; {why}"), value=judged.value)


def _text(rates: Sequence[tuple[str, float | None]]) -> str:
    known = [f"{name} {rate / _GB:.1f} GB/s" for name, rate in rates if rate is not None]
    return ", ".join(known)


def _data(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    found = [one for one in record.named("stressor.finding") if one["place"] == FindingPlace.LINK]
    missing = _missing(record)
    if missing is not None and not found:
        return missing
    wrong = sum(int(one.values["wrong"]) for one in record.links)
    checked = sum(int(one.values["checked"]) for one in record.links)
    if not checked and not found:
        return untested("no data was compared")
    # What was wrong just before the stressor ended is in the finding alone.
    value = max(wrong, len(found))
    text = f"{checked / _GB:.1f} GB compared"
    text += f"; first: {found[0]['detail']}" if found else ""
    return by_limits(value, limits, text)


def _host(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record, before = evidence.record, evidence.record.before
    missing = _missing(record)
    if missing is not None:
        return missing
    own = {part: best(record, part).get(None) for part in LinkPart}
    inward, outward = own[LinkPart.TO_DEVICE], own[LinkPart.TO_HOST]
    if inward is None or outward is None:
        return not_applicable("a simulated GPU has no link")
    generation = before.pcie_generation_maximum if before is not None else None
    width = before.pcie_width_maximum if before is not None else None
    text = _text(
        [
            ("to the GPU", inward),
            ("to the host", outward),
            ("both at once", own[LinkPart.BOTH]),
            ("all GPUs at once", own[LinkPart.ALL_TO_DEVICE]),
            ("and", own[LinkPart.ALL_TO_HOST]),
        ]
    )
    if generation not in LANE_BYTES or not width:
        return not_applicable(f"{text}; the link's maximum is not reported")
    most = LANE_BYTES[generation] * width
    text += f"; gen {generation} x{width} has {most / _GB:.1f} GB/s"
    return _whole(evidence, by_limits(round(min(inward, outward) / most, 4), limits, text))


def _peer(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    missing = _missing(record) or _alone(record)
    if missing is not None:
        return missing
    own = best(record, LinkPart.PEER)
    if not own:
        return not_applicable("a simulated GPU has no link")
    text = _text([(f"GPU {peer}", rate) for peer, rate in own.items()])
    profiles = [
        sorted(rates.values())
        for one in evidence.peers
        if len(rates := best(one, LinkPart.PEER)) == len(own)
    ]
    if len(profiles) < MIN_PEERS:
        reference = REFERENCES.get(evidence.model, {}).get(LinkPart.PEER)
        return _by_reference(evidence, limits, min(own.values()), reference, text)
    # The slowest link with the slowest ones of the others, and so on: where some GPUs have a
    # shorter way to each other, each has so.
    medians = [statistics.median(rates) for rates in zip(*profiles, strict=True)]
    shares = [rate / most for rate, most in zip(sorted(own.values()), medians, strict=True)]
    text += f"; compared with the links of {len(profiles)} GPUs"
    limits = {name: limits[name] for name in ("fail", "warn")}
    return _whole(evidence, by_limits(round(min(shares), 4), limits, text))


def _all_reduce(evidence: LoadEvidence, limits: Limits) -> Judgement:
    record = evidence.record
    missing = _missing(record) or _alone(record)
    if missing is not None:
        return missing
    rate = best(record, LinkPart.ALL_REDUCE).get(None)
    if rate is None:
        return not_applicable("a simulated GPU has no link")
    size = max(int(one.values["size"]) for one in record.links)
    # What each link carries, as nccl-tests compute it: comparable for any number of GPUs.
    bus = rate * 2 * (size - 1) / size
    text = f"{rate / _GB:.1f} GB/s, {bus / _GB:.1f} on the bus, with {size} GPUs"
    reference = REFERENCES.get(evidence.model, {}).get(LinkPart.ALL_REDUCE)
    return _by_reference(evidence, limits, bus, reference, text)


def _by_reference(
    evidence: LoadEvidence, limits: Limits, rate: float, reference: float | None, text: str
) -> Judgement:
    """Compare a rate with the reference of the model; that is a hint, and never a failure."""
    if reference is None:
        return not_applicable(f"{text}; there is no reference for {evidence.model}")
    text += f"; {reference / _GB:.0f} GB/s were measured"
    limits = {"warn": limits["reference"]}
    return _whole(evidence, by_limits(round(rate / reference, 4), limits, text))


CHECKS: tuple[Check[LoadEvidence], ...] = (
    Check(
        id="links.data",
        limits={"fail": above(0)},
        title="Data arrives over every link as it was sent",
        reads="the reports of the workload links: bytes that were compared",
        unit="wrong bytes",
        source="Sentinel",
        severity=Severity.ISOLATE,
        action=f"TRIAGE: compare the counters of the link and the XIDs. {RETEST}",
        judge=_data,
    ),
    Check(
        id="links.host",
        limits={"fail": below(0.66), "warn": below(0.80)},
        title="The link to the host has the rate of its generation and width",
        reads="the workload links: the best second of copies of pinned memory, GPU by GPU",
        unit="of the maximum",
        source="Azure's floor for the A100, 21 GB/s of gen 4 x16; the warning: IBM Autopilot, 80 %"
        " of the peak. Two H200 had 55.3 GB/s of gen 5 x16, 0.88",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: reseat the card; check the slot, the riser, and the host's IOMMU"
        " and NUMA settings.",
        judge=_host,
    ),
    Check(
        id="links.peer",
        limits={"fail": below(0.80), "warn": below(0.95), "reference": below(0.75)},
        title="The links to the other GPUs are as fast as those of the others",
        reads="the workload links: the best second of each link, against the median of the node",
        rule=f"with fewer than {MIN_PEERS} GPUs, warn by the reference of the model",
        unit="of the median",
        source="IBM Autopilot: 80 %; stas00/ml-engineering: 5 % alone is normal; DCGM's rule: 0.75"
        " of the measured rate",
        severity=Severity.TRIAGE,
        action=f"WORKFLOW_NVLINK_ERR: look for inactive links and their errors. {RETEST}",
        judge=_peer,
    ),
    Check(
        id="links.all_reduce",
        limits={"reference": below(0.75)},
        title="An all-reduce over all GPUs is as fast as on others of the model",
        reads="the workload links: the best second of an all-reduce of NCCL, as bus bandwidth",
        rule="warn by the reference of the model",
        unit="of the reference",
        source="DCGM's rule: 0.75 of the measured rate",
        severity=Severity.TRIAGE,
        action=f"TRIAGE: the slowest link sets the rate: compare links.peer. {RETEST}",
        judge=_all_reduce,
    ),
)
