"""The checks of what the workload links measured: the data and the rates of a GPU's links. Pure.

Other traffic only lowers a rate, so the best second of a link counts. Where GPUs of the node were
not in the group, their traffic may explain a low rate, and nothing is judged by it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    Unjudged,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.history_checks import against_runs, comparable_runs, must_be_enough
from sentinel.burnin.checks.load_checks import findings
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.peers import MIN_PEERS, peers_of
from sentinel.burnin.record import GpuRecord
from sentinel.config.options import BUILT_IN, convert_options
from sentinel.config.specs import parse_workload
from sentinel.protocol.stressor import FindingPlace, LinkPart
from sentinel.units import format_scaled

TABLE = Table()

#: Bytes a second of one lane by PCIe generation, without the overhead of packets: 2.5 and 5 GT/s
#: with 8 of 10 bits, 8 to 32 GT/s with 128 of 130, 64 GT/s with 242 of 256 bytes (PCI-SIG).
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

#: Bytes a second between GPUs, by the name of the model: of NCCL's send and receive in both
#: directions at once, and of an all-reduce as below. Measured by the workload on two H200 with 18
#: NVLinks each, torch 2.11 (docs/internals/benchmarks.md): 298.8 and 302.1, 313.9 and 314.6. The
#: H100 has the same links.
_LINK_REFERENCES: Mapping[str, Mapping[LinkPart, float]] = {
    "NVIDIA H200": {LinkPart.PEER: 300e9, LinkPart.ALL_REDUCE: 314e9},
    "NVIDIA H100 80GB HBM3": {LinkPart.PEER: 300e9},
}

#: The least bytes a second on the bus of an all-reduce over eight GPUs with NVLink multicast, by
#: the name of the model. H200: Azure's floor, at 16 GB. H100: 0.9 of the 479.7 GB/s that Voltage
#: Park measured at 8 GiB; Azure's floor there is 460, at 16 GB. The workload sums one chunk.
_NVLS_GPUS = 8
_NVLS_FLOORS: Mapping[str, float] = {"NVIDIA H100 80GB HBM3": 431e9, "NVIDIA H200": 431e9}
#: Links of one length differ by less.
_ALIKE = 0.8


def _not_measured(evidence: LoadEvidence) -> Judgement:
    if evidence.now.is_simulated:
        return not_applicable("a simulated GPU has no link")
    return untested("its rate was not measured")


def _rate(value: float) -> str:
    return format_measure("bytes_per_s", value)


def _best(record: GpuRecord, part: LinkPart) -> dict[int | None, float]:
    """Find the best rate of each link of a kind, by the index of the sender; bytes a second."""
    found: dict[int | None, float] = {}
    for sample in record.links:
        values = sample.values
        if values["part"] == part and values["rate"] is not None:
            peer = values["peer"]
            found[peer] = max(found.get(peer, 0.0), float(values["rate"]))
    return found


def _at_times(
    evidence: LoadEvidence, found: Judgement, limits: Limits, *parts: LinkPart
) -> Judgement:
    """Warn of a link that is slow in most measurements, where no other GPU used it."""
    rates: dict[tuple[str, int | None], list[float]] = {}
    for sample in evidence.record.links:
        part, peer, rate = (sample.values[name] for name in ("part", "peer", "rate"))
        if part in parts and rate is not None:
            rates.setdefault((part, peer), []).append(float(rate))
    shares = [statistics.median(one) / max(one) for one in rates.values() if max(one)]
    least = min(shares, default=1.0)
    reverse = _of_reverse(evidence) if LinkPart.PEER in parts else 1.0
    if reverse < least:
        text, rule = f"{reverse:.2f} of the other direction", "a link, of its other direction"
        least = reverse
    else:
        text = f"in half of the measurements at most {least:.2f} of the best"
        rule = "the median of a link, of its best"
    is_whole = _group_size(evidence.record) >= len(evidence.node)
    is_good = found.status in {Status.PASS, Status.NOT_APPLICABLE}
    if not is_good or not is_whole or not limits["usual"].broken_by(least):
        return found
    return replace(
        found,
        status=Status.WARN,
        value=round(least, 4),
        evidence=f"{text}; {found.evidence}",
        threshold=f"{rule}: warn {limits['usual']}",
    )


def _of_reverse(evidence: LoadEvidence) -> float:
    """Compute the least share that a link from a GPU has of the link to it."""
    index, own = evidence.record.index, _best(evidence.record, LinkPart.PEER)
    others = {peer.index: _best(peer, LinkPart.PEER).get(index) for peer in evidence.peers}
    shares = (
        rate / other
        for peer, rate in own.items()
        if peer is not None and (other := others.get(peer))
    )
    return min(shares, default=1.0)


def _all_reduce(record: GpuRecord) -> tuple[int, float]:
    """Find the largest group that has summed, and its best rate; 0 and 0.0 if none has.

    Fewer GPUs sum faster, so the rates of a group that began again without some are others.
    """
    values = (sample.values for sample in record.links)
    rates = (
        (int(value["size"]), float(value["rate"]))
        for value in values
        if value["part"] == LinkPart.ALL_REDUCE and value["rate"] is not None
    )
    return max(rates, default=(0, 0.0))


def _memory(record: GpuRecord, part: LinkPart) -> str | None:
    """Find where the host's memory was that a part copied; None if nothing was said of it."""
    found = [s.values.get("memory") for s in record.links if s.values["part"] == part]
    return next((str(text) for text in reversed(found) if text is not None), None)


def _named_rates(rates: Mapping[LinkPart, float], names: Mapping[LinkPart, str]) -> str:
    found = (f"{names[part]} {_rate(rates[part])}" for part in names if part in rates)
    return ", ".join(found)


def _group_size(record: GpuRecord) -> int:
    return max((int(sample.values["size"]) for sample in record.links), default=0)


def _allows_nvls(record: GpuRecord) -> bool:
    """Check whether the phase that tested links let NCCL use NVLink multicast."""
    phases = [phase for phase in record.phases if phase.links]
    given = [parse_workload(phase.phase.workload)[1].get("nvls") for phase in phases]
    option = {"nvls": BUILT_IN["links"]["nvls"]}
    return any(text and convert_options("links", option, {"nvls": text})["nvls"] for text in given)


def _must_be_tested(record: GpuRecord) -> None:
    """Check that links were tested.

    Raises:
        Unjudged: They were not.
    """
    phases = [phase for phase in record.phases if phase.phase.together or phase.links]
    if not phases:
        raise Unjudged(not_applicable("the plan has no phase that tests links"))
    if not record.links:
        why = next((why for phase in phases if (why := phase.work.given_up)), None)
        raise Unjudged(untested(why or "no link was tested"))


def _must_be_grouped(record: GpuRecord) -> None:
    """Check that another GPU was in the group.

    Raises:
        Unjudged: The GPU was alone.
    """
    _must_be_tested(record)
    if _group_size(record) > 1:
        return
    groups = record.named("burnin.grouped")
    busy = ", ".join(map(str, groups[-1]["missing"])) if groups else ""
    if not busy:
        raise Unjudged(not_applicable("skipped: the run has one GPU"))
    raise Unjudged(untested(f"skipped: GPU {busy} did not get to this phase in time"))


def _whole(evidence: LoadEvidence, share: float, limits: Limits, text: str) -> Judgement:
    """Judge no low rate of a group that had not all GPUs of the node."""
    judged = by_limits(round(share, 4), limits, text)
    size, gpus = _group_size(evidence.record), len(evidence.node)
    if judged.status not in {Status.FAIL, Status.WARN} or size >= gpus:
        return judged
    why = f"{size} of the node's {gpus} GPUs took part; others may have used the link"
    return replace(untested(f"{judged.evidence}; {why}"), value=judged.value)


def _by_reference(
    evidence: LoadEvidence, limits: Limits, part: LinkPart, rate: float, text: str
) -> Judgement:
    """Compare a rate with the reference of the model; that is a hint, and never a failure."""
    reference = _LINK_REFERENCES.get(evidence.model, {}).get(part)
    if reference is None:
        return not_applicable(f"{text}; there is no reference for {evidence.model}")
    text += f"; {_rate(reference)} were measured"
    return _whole(evidence, rate / reference, {"warn": limits["reference"]}, text)


@TABLE.check("links.data")
def _links_data(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Count the bytes that arrived wrong."""
    record = evidence.record
    found = findings(record, FindingPlace.LINK)
    if not found:
        _must_be_tested(record)
    wrong, checked = (
        sum(int(link.values[name]) for link in record.links) for name in ("wrong", "checked")
    )
    if not checked and not found:
        return untested("no data was compared")
    text = f"{format_scaled(checked, 'B', 4)} compared"
    text += f"; first: {found[0]['detail']}" if found else ""
    # What was wrong just before the stressor ended is in the finding alone.
    return by_limits(max(wrong, len(found)), limits, text)


@TABLE.check("links.host")
def _links_host(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the rate to the host with the link's maximum."""
    record = evidence.record
    _must_be_tested(record)
    names = {
        LinkPart.TO_DEVICE: "to the GPU",
        LinkPart.TO_HOST: "to the host",
        LinkPart.BOTH: "both ways at once",
        LinkPart.ALL_TO_DEVICE: "to each GPU while all copy",
        LinkPart.ALL_TO_HOST: "from each",
    }
    own = {part: rate for part in names if (rate := _best(record, part).get(None)) is not None}
    if not own.keys() >= {LinkPart.TO_DEVICE, LinkPart.TO_HOST}:
        return _not_measured(evidence)
    text = _named_rates(own, names)
    local, remote = (
        _memory(record, part) for part in (LinkPart.TO_DEVICE, LinkPart.TO_DEVICE_REMOTE)
    )
    text += f"; host memory: {local}" if local is not None else ""
    if remote is not None:
        far = {LinkPart.TO_DEVICE_REMOTE: "to the GPU", LinkPart.TO_HOST_REMOTE: "to the host"}
        rates = {part: _best(record, part).get(None, 0.0) for part in far}
        text += f"; with far memory, {remote}: {_named_rates(rates, far)}"
    generation, width = evidence.now.pcie_generation_maximum, evidence.now.pcie_width_maximum
    if generation not in _LANE_BYTES or not width:
        return not_applicable(f"{text}; the link's maximum is not reported")
    most = _LANE_BYTES[generation] * width
    text += f"; gen {generation} x{width} has {_rate(most)}"
    slower = min(own[LinkPart.TO_DEVICE], own[LinkPart.TO_HOST])
    found = _whole(evidence, slower / most, limits, text)
    return _at_times(evidence, found, limits, LinkPart.TO_DEVICE, LinkPart.TO_HOST)


@TABLE.check("links.peer")
def _links_peer(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the rates to other GPUs with those of the node, or a reference."""
    _must_be_grouped(evidence.record)
    own = _best(evidence.record, LinkPart.PEER)
    if not own:
        return _not_measured(evidence)
    text = ", ".join(f"GPU {peer} {_rate(rate)}" for peer, rate in own.items())
    if not min(own.values()):
        return by_limits(0.0, {"fail": limits["fail"]}, text)  # other traffic lowers a rate only
    profiles = [sorted(_best(peer, LinkPart.PEER).values()) for peer in evidence.peers]
    profiles = [rates for rates in profiles if len(rates) == len(own)]
    if len(profiles) < MIN_PEERS:
        found = _by_reference(evidence, limits, LinkPart.PEER, min(own.values()), text)
        return _at_times(evidence, found, limits, LinkPart.PEER)
    # The slowest link with the slowest ones of the others, and so on: where some GPUs have a
    # shorter way to each other, each has so.
    medians = [statistics.median(rates) for rates in zip(*profiles, strict=True)]
    pairs = zip(sorted(own.values()), medians, strict=True)
    shares = [rate / most if most else 1.0 for rate, most in pairs]
    text += f"; compared with the links of {len(profiles)} GPUs"
    found = _whole(evidence, min(shares), limits, text)
    # All may be slow; links of several lengths have no reference.
    if found.status is Status.PASS and min(own.values()) >= _ALIKE * max(own.values()):
        hint = _by_reference(evidence, limits, LinkPart.PEER, min(own.values()), text)
        found = hint if hint.status is Status.WARN else found
    return _at_times(evidence, found, limits, LinkPart.PEER)


@TABLE.check("links.all_reduce")
def _links_all_reduce(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the all-reduce with a floor, a reference or the peers."""
    _must_be_grouped(evidence.record)
    record = evidence.record
    size, rate = _all_reduce(record)
    if not size:
        return _not_measured(evidence)
    nvls = _allows_nvls(record)
    # What each link carries, as nccl-tests compute it: comparable for any number of GPUs.
    bus = rate * 2 * (size - 1) / size
    text = f"{_rate(rate)}, {_rate(bus)} on the bus, with {size} GPUs"
    text += ", NVLS allowed" if nvls else ", without NVLS"
    floor = _NVLS_FLOORS.get(evidence.model) if nvls and size == _NVLS_GPUS else None
    if floor is not None:
        text += f"; the floor is {_rate(floor)}"
        return _whole(evidence, bus / floor, {"warn": limits["floor"]}, text)
    if LinkPart.ALL_REDUCE not in _LINK_REFERENCES.get(evidence.model, {}):
        groups = map(_all_reduce, evidence.peers)
        peers = peers_of(best for number, best in groups if number == size)
        if peers is not None:
            text += f"; the median of {peers.count:,} GPUs is {_rate(peers.median)}"
            return _whole(evidence, rate / peers.median, {"warn": limits["peers"]}, text)
    return _by_reference(evidence, limits, LinkPart.ALL_REDUCE, bus, text)


@TABLE.check("links.all_reduce_history")
def _links_all_reduce_history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the all-reduce with earlier runs over as many GPUs."""
    _must_be_grouped(evidence.record)
    size, rate = _all_reduce(evidence.record)
    if not size:
        return _not_measured(evidence)
    runs = (run for run in comparable_runs(evidence) if run.gpus == size)
    rates = [run.all_reduce for run in runs if run.all_reduce is not None]
    must_be_enough(rates, f" with {size} GPUs")
    share, text = against_runs("bytes_per_s", rate, rates)
    return _whole(evidence, share, limits, text)
