"""The checks of a GPU's links by its counters: PCIe, NVLink and the fabric. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

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
from sentinel.burnin.checks.evidence import GpuEvidence, Growth, GrowthEvidence, both, read
from sentinel.protocol.counters import Counters

TABLE = Table()

#: The links of a board on which each is used, and the least MB/s of each, by what the name of the
#: model has. Other boards have as many as their bridges. NVIDIA's data sheets have 25 and 50 GB/s
#: each way: an A100 reads that, H20 and H800 read 26,562 as the H100, B200 and B300 53,125.
_BOARDS = {
    "A100-SXM": (12, 25_000),
    "A800-SXM": (8, 25_000),
    "H100 80GB HBM3": (18, 26_562),
    "H800": (8, 25_000),
    "H200": (18, 26_562),
    "H20": (18, 25_000),
    "B200": (18, 50_000),
    "B300": (18, 50_000),
}
#: The links of a board without switches, of so many GPUs: in a virtual machine with fewer, those to
#: the others are inactive.
_MESHES = {"V100-SXM2": (6, 8)}
_BRIDGED = re.compile(r"\b(NVL|PCIe|PCIE|GH200)\b")


# --- PCIe ------------------------------------------------------------------------------------


@TABLE.rule("full_link")
def _full(evidence: GpuEvidence, limits: Limits, field: str, own: str | None = None) -> Judgement:
    """Judge a value of the link under load by what the GPU and its slot allow together.

    Args:
        evidence: The GPU.
        limits: Of the difference.
        field: The value.
        own: What the GPU allows by itself, for the explanation.
    """
    most = read(evidence.now, f"{field}_maximum")
    if not most:
        return untested(f"{field}_maximum is 0")
    value = round(min([evidence.under_load(field), *evidence.elsewhere(field), most]))
    text = f"{value} of {most}"
    if own is not None and (getattr(evidence.now, own) or 0) > most:
        text += f"; the GPU allows {getattr(evidence.now, own)}, its slot does not"
    judged = replace(by_limits(most - value, limits, text), value=value)
    of_model = max((getattr(twin, f"{field}_maximum") or 0 for twin in evidence.twins), default=0)
    if judged.status is Status.PASS and most < of_model:
        text += f"; that of another GPU of the model is {of_model}"
        return replace(judged, status=Status.WARN, evidence=text)
    return judged


@TABLE.check("pcie.replay_rate")
def _pcie_replay_rate(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Judge the replays per minute and lane by the link's generation."""
    new, least = evidence.growth("pcie_replays_total"), limits["minimum_s"].value
    if evidence.seconds is None or evidence.seconds < least:
        return untested(f"it needs readings {least:g} s apart")
    generation, lanes = evidence.now.pcie_generation_maximum, evidence.now.pcie_width
    if generation is None or not lanes:
        return untested("the generation or the width of the link is unknown")
    fail = limits.get(f"generation_{generation}")
    if fail is None:
        return untested(f"there is no limit for generation {generation}")
    text = f"{new.least} replays in {evidence.time} on {lanes} lanes of generation {generation}"
    warn = replace(fail, value=fail.value * limits["warn_share"].value)
    sure, possible = (
        evidence.per_second(new.least, beside_others=beside) * 60 / lanes
        for beside in (True, False)
    )
    return new.judged(evidence.judge_rate(sure, possible, {"fail": fail, "warn": warn}, text))


# --- NVLink ----------------------------------------------------------------------------------


def links_of(model: str) -> int:
    """Look up how many NVLinks a model has on its board; 0 if that depends on bridges."""
    return _board(model)[0]


def _board(model: str) -> tuple[int, int]:
    if _BRIDGED.search(model):
        return 0, 0
    return next((board for name, board in _BOARDS.items() if name in model), (0, 0))


def _no_links() -> NoReturn:
    raise Unjudged(not_applicable("no link is listed"))


def _active(counters: Counters) -> int:
    return sum(link.active is True for link in counters.nvlinks or ())


def _named(links: Iterable[int]) -> str:
    names = ", ".join(map(str, links))
    return f"link {names}" if names else ""


def _read_link(number: int, counters: Counters, field: str) -> int:
    """Look up a counter of a link.

    Raises:
        Unjudged: It is not known.
    """
    links = (link for link in read(counters, "nvlinks") if link.link == number)
    value = getattr(next(links, None), field, None)
    if value is None:
        raise Unjudged(not_applicable())
    return int(value)


def _link_growth(evidence: GrowthEvidence, field: str) -> Growth:
    """Add up the growth of one counter of all links, and name those on which it grew."""
    listed = [link for reading in evidence.readings for link in reading.nvlinks or ()]
    active = {link.link for link in listed if link.active}
    new: dict[int, Growth] = {}
    unread: dict[int, Judgement] = {}
    for number in sorted({link.link for link in listed}) or [0]:
        try:
            new[number] = evidence.growth(field, partial(_read_link, number))
        except Unjudged as unjudged:
            unread[number] = unjudged.judgement
    if not new:
        raise Unjudged(next(iter(unread.values())))
    unknown = [grown.unknown for grown in new.values() if grown.unknown]
    unknown += [
        untested(f"{field} of link {number} was not read") for number in unread.keys() & active
    ]
    return Growth(
        least=float(sum(grown.least for grown in new.values())),
        text=_named(number for number, grown in new.items() if grown.least),
        unknown=next(iter(unknown), None),
    )


@TABLE.check("nvlink.inactive")
def _nvlink_inactive(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Compare the number of active links with the model and the peers."""
    # A link has two ends: a dead one is missing on both, so peers alone do not show it. A GPU
    # without any is one without a bridge, unless most of its peers have links, or it and another
    # list all of a board on which each is used.
    now = evidence.now
    if not read(now, "nvlinks"):
        _no_links()
    found = _judge_active(evidence, now, limits)
    links = [link for reading in evidence.readings for link in reading.nvlinks or ()]
    unread = [link.link for link in links if link.active is None]
    if unread and found.status is not Status.FAIL:
        return untested(f"the state of link {unread[0]} was not read")
    return found


def _judge_active(evidence: GpuEvidence, now: Counters, limits: Limits) -> Judgement:
    """Judge the active links; one whose state was not read may be active."""
    known = [reading.nvlinks for reading in evidence.readings if reading.nvlinks is not None]
    listed = max(map(len, known))
    if now.mig:
        return not_applicable("MIG turns NVLink off")
    active = min(sum(link.active is not False for link in links) for links in known)
    others = [
        peer for peer in evidence.twins if peer.nvlinks is not None and peer.index != now.index
    ]
    peers = [_active(peer) for peer in others]
    board = links_of(now.name)
    own = min(board, listed)
    links, gpus = next((mesh for name, mesh in _MESHES.items() if name in now.name), (0, 0))
    if peers and active == max(peers) < min(links, listed):
        text = f"{active} of {links} links active, as on all GPUs of this model"
        found = by_limits(links - active, limits, text)
        text += f": {len(peers) + 1} of the {gpus} GPUs of a board, or dead links"
        is_part = len(peers) + 1 < gpus
        return replace(found, status=Status.WARN, evidence=text) if is_part else found
    if not any([active, *peers]):
        return _judge_none(board, listed, others, limits)
    if active == 0 and Counter(bool(peer) for peer in peers)[True] * 2 <= len(peers):
        return not_applicable(
            f"0 of {listed} links active, as on most GPUs of this model: no bridge"
        )
    expected = max([own, *peers])
    is_bridged = _BRIDGED.search(now.name) is not None
    missing = 0 if is_bridged else (board or listed) - active
    if active >= expected and missing > 0:
        # A virtual machine may have been given fewer, so this is no failure.
        text = f"{active} of {board or listed} links active, {listed} listed"
        text += ", as on all GPUs of this model" if peers else ""
        return by_limits(missing, {"warn": limits["fail"]}, text)
    if not expected:
        return not_applicable(
            f"{active} active links, and no other GPU of this model to compare with"
        )
    of = "this model has" if own == expected else "on a GPU of the same model"
    text = f"{active} active links; {expected} {of}"
    if active == 0 and is_bridged:
        limits, text = {"warn": limits["fail"]}, f"{text}: no bridge, or it is dead"
    return by_limits(max(0, expected - active), limits, text)


def _judge_none(board: int, listed: int, others: Sequence[Counters], limits: Limits) -> Judgement:
    """Judge a GPU without active links, as all others of its model are."""
    own = min(board, listed)
    text = f"0 of {listed} links active, as on all GPUs of this model: "
    most = max((len(peer.nvlinks or ()) for peer in others if not peer.mig), default=0)
    if own and min(listed, most) >= board:
        return by_limits(own, limits, f"{text}all are down")
    text += "no bridge, or all are down"
    if own and others:
        return Judgement(status=Status.WARN, value=own, evidence=text)
    return not_applicable(text)


@TABLE.check("nvlink.speed")
def _nvlink_speed(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Compare the speed of each link with the fastest."""
    now = evidence.now
    read(now, "nvlinks")
    counted = (*evidence.readings, *evidence.twins)
    speeds = [speed for one in counted for _, speed in _running(one)]
    if not speeds:
        return not_applicable()
    fastest = max(*speeds, _board(now.name)[1])
    slow = {
        link: f"link {link} has {speed:,} of {fastest:,} MB/s"
        for reading in evidence.readings
        for link, speed in _running(reading)
        if speed < fastest
    }
    active = [link for one in evidence.readings for link in one.nvlinks or () if link.active]
    unread = [link.link for link in active if not link.speed_mbps]
    if unread and not slow:
        return untested(f"the speed of link {unread[0]} was not read")
    return by_limits(len(slow), limits, next(iter(slow.values()), f"{fastest:,} MB/s"))


def _running(counters: Counters) -> list[tuple[int, int]]:
    """Select the active links whose speed is known: their numbers and speeds."""
    links = counters.nvlinks or ()
    return [(link.link, link.speed_mbps) for link in links if link.active and link.speed_mbps]


@TABLE.check("nvlink.bit_error_rate")
def _nvlink_bit_error_rate(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Judge the highest bit error rate of all links."""

    def judge(one: Counters) -> Judgement:
        links = read(one, "nvlinks")
        rates = {link.effective_ber: link for link in links if link.effective_ber is not None}
        if not rates:
            return not_applicable()
        worst = max(rates)
        return by_limits(worst, limits, f"link {rates[worst].link}")

    return evidence.worst(judge, "effective_ber")


@TABLE.check("nvlink.lost")
def _nvlink_lost(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Count the links that were active before and are not any more."""
    pair = both(*evidence.pair(), "nvlinks", read)
    if not any(pair):
        _no_links()
    before, after = ({link.link: link.active for link in links} for links in pair)
    # One that is not listed any more is lost; one whose state was not read is not known.
    lost = [link for link, active in before.items() if active and after.get(link, False) is False]
    return by_limits(len(lost), limits, _named(lost))


@TABLE.rule("links_grown")
def _links_grown(evidence: GrowthEvidence, limits: Limits, field: str) -> Judgement:
    """Judge the growth of one counter of all links."""
    new = _link_growth(evidence, field)
    return new.judged(by_limits(new.least, limits, new.text))


@TABLE.check("nvlink.crc_rate")
def _nvlink_crc_rate(evidence: GrowthEvidence, limits: Limits) -> Judgement:
    """Judge the CRC errors per second of all links."""
    new = _link_growth(evidence, "crc_errors_total")
    sure, possible = (
        evidence.per_second(new.least, beside_others=beside) for beside in (True, False)
    )
    text = f"{new.least:g} errors in {evidence.time}" + (f": {new.text}" if new.text else "")
    return new.judged(evidence.judge_rate(sure, possible, limits, text))


# --- the fabric ------------------------------------------------------------------------------


@TABLE.rule("fabric")
def _fabric(
    evidence: GpuEvidence, _: Limits, field: str, good: str, fair: str, without: str = ""
) -> Judgement:
    """Judge a word about the fabric; one that is neither good nor fair is a failure."""

    def judge(one: Counters) -> Judgement:
        word = read(one, field)
        if word == "not_supported":
            return not_applicable(f"this GPU has no NVLink fabric{without}")
        status = {good: Status.PASS, fair: Status.WARN}.get(word, Status.FAIL)
        if word == "in_progress" and one is not evidence.now:
            status = Status.PASS  # after a boot, registration takes its time
        return Judgement(status=status, value=word)

    return evidence.worst(judge, field)
