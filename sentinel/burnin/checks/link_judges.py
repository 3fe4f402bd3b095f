"""Functions that judge the links of a GPU: PCIe, NVLink and the fabric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.burnin.checks.check import (
    Evidence,
    Judgement,
    NodeEvidence,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.counter_judges import Judge, first_missing, growth, read
from sentinel.burnin.checks.thresholds import Limits
from sentinel.protocol.counters import Counters, NvLink

_MINUTE_S = 60.0


# --- PCIe ------------------------------------------------------------------------------------


def under_load(field: str, maximum: str, own: str | None = None) -> Judge:
    """Judge a value of the link against its maximum, but never on an idle GPU.

    Args:
        field: The present value.
        maximum: What the GPU and its slot allow together.
        own: What the GPU allows by itself, for the explanation.
    """

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        now = evidence.now
        value, most, reasons = read(now, field), read(now, maximum), read(now, "reasons")
        missing = first_missing((value, most))
        if missing is not None:
            return missing
        if isinstance(reasons, Judgement):
            return untested("it is unknown whether the GPU is idle")
        if "gpu_idle" in reasons or _is_slow(now):
            return untested("the GPU is idle, and the link may be slower then")
        text = f"{value} of {most}"
        if own is not None and (getattr(now, own) or 0) > most:
            text += f"; the GPU allows {getattr(now, own)}, its slot does not"
        found = by_limits(most - value, limits, text)
        return Judgement(status=found.status, value=value, evidence=text)

    return judge


def _is_slow(counters: Counters) -> bool:
    """Check whether the clock is that of an idle GPU, whatever the reasons are."""
    clock, maximum = counters.sm_clock_mhz, counters.sm_clock_maximum_mhz
    return clock is not None and maximum is not None and clock * 2 < maximum


def replay_rate(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge the replays per minute and lane by the limit of the link's generation."""
    new = growth(evidence, "pcie_replays_total")
    if isinstance(new, Judgement):
        return new
    if evidence.seconds is None or evidence.seconds < limits["minimum_s"].value:
        return untested(f"it needs readings {limits['minimum_s'].value:g} s apart")
    now = evidence.now
    generation = read(now, "pcie_generation_maximum")
    lanes = read(now, "pcie_width")
    if isinstance(generation, Judgement) or isinstance(lanes, Judgement) or not lanes:
        return untested("the generation or the width of the link is unknown")
    limit = limits.get(f"generation_{generation}")
    if limit is None:
        return untested(f"there is no limit for generation {generation}")
    rate = new * _MINUTE_S / evidence.seconds / lanes
    text = f"{new} replays in {evidence.seconds:g} s on {lanes} lanes of generation {generation}"
    status = Status.PASS
    if rate > limit.value * limits["warn_share"].value:
        status = Status.WARN
    if limit.broken_by(rate):
        status = Status.FAIL
    return Judgement(status=status, value=rate, evidence=text)


# --- NVLink ----------------------------------------------------------------------------------


def links_active(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge the inactive links by the GPUs of the same model on the node.

    A link has two ends, so a GPU with fewer active links than its peers has lost some. A GPU
    without any is one without a bridge, unless most of its peers have links.
    """
    now = evidence.now
    links = _links(now)
    if isinstance(links, Judgement):
        return links
    if now.mig:
        return not_applicable("MIG turns NVLink off")
    active = _active(links)
    peers = [
        _active(peer.nvlinks)
        for peer in evidence.node
        if peer.nvlinks is not None and peer.name == now.name and peer.index != now.index
    ]
    if not peers:
        return not_applicable("there is no other GPU of this model to compare with")
    expected = max(peers)
    if active == 0 and Counter(bool(peer) for peer in peers)[True] * 2 <= len(peers):
        return not_applicable("most GPUs of this model have no active link here")
    text = f"{active} active links; {expected} on a GPU of the same model"
    return by_limits(max(0, expected - active), limits, text)


def bit_error_rate(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge the highest bit error rate of the active links."""
    links = _links(evidence.now)
    if isinstance(links, Judgement):
        return links
    rates = {one.link: one.effective_ber for one in links if one.effective_ber is not None}
    if not rates:
        return not_applicable()
    worst = max(rates, key=lambda link: rates[link])
    return by_limits(rates[worst], limits, f"link {worst}")


def links_lost(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge how many links became inactive between the readings."""
    pairs = _pairs(evidence)
    if isinstance(pairs, Judgement):
        return pairs
    lost = [after.link for before, after in pairs if before.active and after.active is False]
    return by_limits(len(lost), limits, _named(lost))


def link_growth(field: str, *, per_second: bool = False) -> Judge:
    """Judge by the limits the growth of one counter of all links together."""

    def judge(evidence: Evidence, limits: Limits) -> Judgement:
        pairs = _pairs(evidence)
        if isinstance(pairs, Judgement):
            return pairs
        new: dict[int, Any] = {}
        for before, after in pairs:
            values = getattr(before, field), getattr(after, field)
            if None not in values:
                new[after.link] = values[1] - values[0]
        if not new:
            return not_applicable()
        if min(new.values()) < 0:
            return untested(f"{field} went backwards: the driver was reloaded or the GPU was reset")
        value = float(sum(new.values()))
        if per_second:
            if not evidence.seconds or evidence.seconds <= 0:
                return untested("the time between the readings is unknown")
            value /= evidence.seconds
        return by_limits(value, limits, _named([link for link, count in new.items() if count]))

    return judge


def _pairs(evidence: Evidence) -> list[tuple[NvLink, NvLink]] | Judgement:
    """Pair the links of both readings."""
    if evidence.after is None:
        return untested("it needs two readings")
    before, after = _links(evidence.before), _links(evidence.after)
    missing = first_missing((before, after))
    if missing is not None:
        return missing
    earlier = {one.link: one for one in before}
    return [(earlier[one.link], one) for one in after if one.link in earlier]


def _links(counters: Counters) -> Any:
    """Look up the links, or build the judgement of a check that lacks them."""
    return read(counters, "nvlinks")


def _active(links: Sequence[NvLink]) -> int:
    return sum(one.active is True for one in links)


def _named(links: Sequence[int]) -> str:
    return f"link {', '.join(map(str, links))}" if links else ""


# --- the fabric and the node -----------------------------------------------------------------


def fabric_state(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge the registration with the NVLink fabric."""
    del limits
    statuses = {"completed": Status.PASS, "in_progress": Status.WARN}
    return _fabric(evidence, "fabric_state", statuses, "this GPU has no NVLink fabric")


def fabric_health(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge the health of the NVLink fabric as this GPU sees it."""
    del limits
    statuses = {"healthy": Status.PASS, "limited_capacity": Status.WARN}
    without = "this GPU has no NVLink fabric, or its driver does not judge it"
    return _fabric(evidence, "fabric_health", statuses, without)


def _fabric(
    evidence: Evidence, field: str, statuses: Mapping[str, Status], without: str
) -> Judgement:
    """Judge a word about the fabric; one that is not in ``statuses`` is a failure."""
    word = read(evidence.now, field)
    if isinstance(word, Judgement):
        return word
    if word == "not_supported":
        return not_applicable(without)
    return Judgement(status=statuses.get(word, Status.FAIL), value=word)


def inventory(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """Judge how many GPUs on the PCI bus NVML does not list."""
    if any(one.driver == "simulated" for one in evidence.gpus):
        return not_applicable("simulated GPUs are not on the bus")
    if evidence.pci_devices is None:
        return untested("the PCI bus could not be compared with NVML")
    listed = {one.pci_bus_id.upper() for one in evidence.gpus if one.pci_bus_id is not None}
    unnamed = sum(one.pci_bus_id is None for one in evidence.gpus)
    missing = [one for one in evidence.pci_devices if one.upper() not in listed]
    text = f"not listed by NVML: {', '.join(missing)}" if missing else ""
    return by_limits(max(0, len(missing) - unnamed), limits, text)
