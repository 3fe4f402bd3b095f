"""Move data over the links of a GPU, to the host and to other GPUs, and compare what arrives."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import Finding, FindingPlace, LinkMeasured, LinkPart
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.numa import Place, places_of, take_on
from sentinel.stressor.rehearsal import rehearsed
from sentinel.stressor.transfers import (
    LEAVE_S,
    LinkPatterns,
    Peers,
    StoppedError,
    Transfers,
    Wrong,
    key_of,
    offset_of,
    repeats_of,
)

#: Bytes of a copy from or to the host: long enough for the full rate, and compared by the host in
#: tens of milliseconds.
_HOST_BYTES = 32 * 2**20
#: The duration of a burst of such copies, in seconds, and the most copies of one.
_BURST_S, _MAX_COPIES = 0.03, 64
#: The most bytes of a transfer to another GPU, and how often one is repeated.
_PEER_BYTES, _PEER_REPEATS = 256 * 2**20, 8
#: The most bytes of an all-reduce, and how often one is repeated.
_REDUCE_BYTES, _REDUCE_REPEATS = 2**30, 8
#: The interval of messages, in seconds, and the most at a time: a flood looks like a fault.
_SEND_EVERY_S, _MAX_MESSAGES = 1.0, 16

#: The most pieces with wrong data that are reported of one round; further ones are counted.
_MAX_EXAMINED = 8

_INWARD = {LinkPart.TO_DEVICE, LinkPart.ALL_TO_DEVICE, LinkPart.BOTH, LinkPart.TO_DEVICE_REMOTE}
_OUTWARD = {LinkPart.TO_HOST, LinkPart.ALL_TO_HOST, LinkPart.BOTH, LinkPart.TO_HOST_REMOTE}

_CHUNKS = 3
_WORD = 8


@dataclass(frozen=True, kw_only=True)
class _Connected:
    """What exists before the memory is taken."""

    transfers: Transfers
    #: None without a group of several GPUs.
    peers: Peers | None


def _rehearse_links(ctx: WorkloadContext, *, nvls: bool) -> _Connected | None:
    with contextlib.suppress(StoppedError):
        connected = _connect(ctx, nvls=nvls)
        HostLinks(ctx, connected.transfers).measure_alone(1)
        return connected
    return None


def _connect(ctx: WorkloadContext, *, nvls: bool) -> _Connected:
    """Create the streams, and meet the other ranks.

    Raises:
        StoppedError: The workload is to return.
    """
    group = ctx.group if ctx.group is not None and ctx.group.size > 1 else None
    transfers = Transfers(ctx, LEAVE_S if group is not None else 0.0)
    if group is None:
        return _Connected(transfers=transfers, peers=None)
    ctx.note(f"waiting for the other {group.size - 1} of its group")
    return _Connected(transfers=transfers, peers=Peers(ctx, group, transfers, nvls=nvls))


@rehearsed(_rehearse_links)
def links(ctx: WorkloadContext, *, nvls: bool = False) -> None:
    """Test the links to the host, and in a group of GPUs those between them; compare all data.

    Each GPU of the group copies to and from the host alone, one after another, then all at once.
    Then each sends to every other one, and all sum their data. A GPU without a group tests the
    links to the host.

    Args:
        ctx: The workload's context.
        nvls: Let NCCL sum in the switches of NVLink, by multicast, where the administrator says
            that the host allows it: in some virtual machines it hangs.
    """
    if len(ctx.chunks) < _CHUNKS:
        raise ConfigError("links: three chunks are needed", "Hold more, or take smaller chunks.")
    with contextlib.suppress(StoppedError):
        rehearsed_ = ctx.rehearsal.result if ctx.rehearsal is not None else None
        connected = rehearsed_ or _connect(ctx, nvls=nvls)
        host, peers = HostLinks(ctx, connected.transfers), connected.peers
        if peers is None:
            ctx.note("the links to the host; there is no other GPU to test links with")
            _run_alone(ctx, host)
        else:
            ctx.note(f"the links to the host and to {peers.size - 1} other GPUs")
            _run_together(ctx, host, PeerLinks(ctx, connected.transfers, peers))


def _run_alone(ctx: WorkloadContext, host: HostLinks) -> None:
    if not ctx.become_ready():
        return
    for number in count(1):
        if not ctx.pace():
            return
        host.measure_alone(number)
        host.tally.send(1)


def _run_together(ctx: WorkloadContext, host: HostLinks, links_: PeerLinks) -> None:
    """Run rounds in step with the other ranks, until one of them is stopped."""
    peers = links_.peers
    for number in count(1):
        if not peers.agree(goes_on=ctx.pace()):
            break
        for rank in range(peers.size):
            peers.agree(goes_on=True)
            if rank == peers.rank:
                host.measure_alone(number)
        for part in (LinkPart.ALL_TO_DEVICE, LinkPart.ALL_TO_HOST):
            host.measure(number, part, peers)
        for shift in range(1, peers.size):
            links_.measure_exchange(number, shift)
        links_.measure_all_reduce(number)
        host.tally.send(peers.size)
        links_.tally.send(peers.size)
    while ctx.pace(0.05):  # the supervisor ends all members of a group
        pass


@dataclass
class _Sum:
    """What was measured of one link since the last message."""

    bytes: float = 0.0
    seconds: float = 0.0
    checked: int = 0
    wrong: int = 0
    memory: str | None = None


@dataclass
class Tally:
    """Sums what was measured of each link, and sends that once a second."""

    ctx: WorkloadContext
    #: Whether rates mean anything.
    real: bool
    sums: dict[tuple[LinkPart, int | None], _Sum] = field(default_factory=dict)
    sent_at: float = field(default_factory=time.monotonic)

    def add(
        self,
        part: LinkPart,
        peer: int | None,
        moved: float,
        seconds: float,
        checked: int,
        memory: str | None = None,
    ) -> None:
        """Add one measurement, and report the work; before Ready nothing is warm."""
        self.ctx.report(bytes=moved, checks=1)
        if self.ctx.ready:
            sum_ = self.sums.setdefault((part, peer), _Sum())
            sum_.bytes += moved
            sum_.seconds += seconds
            sum_.checked += checked
            sum_.memory = memory

    def add_wrong(self, part: LinkPart, peer: int | None, wrong: int) -> None:
        """Add bytes that were wrong, at any time."""
        self.sums.setdefault((part, peer), _Sum()).wrong += wrong

    def send(self, size: int) -> None:
        """Send what is due."""
        now = time.monotonic()
        if now - self.sent_at < _SEND_EVERY_S or not self.ctx.ready:
            return
        self.sent_at = now
        for (part, peer), sum_ in list(self.sums.items())[:_MAX_MESSAGES]:
            rate = sum_.bytes / sum_.seconds if self.real and sum_.seconds else None
            message = LinkMeasured(
                part=part,
                peer=peer,
                size=size,
                rate=rate,
                checked=sum_.checked,
                wrong=sum_.wrong,
                memory=sum_.memory,
            )
            self.ctx.send(message)
            del self.sums[part, peer]


class _Links:
    """What the tests of all links share: the tally, and the report of wrong data."""

    def __init__(self, ctx: WorkloadContext, transfers: Transfers) -> None:
        self.ctx = ctx
        self.transfers = transfers
        self.tally = Tally(ctx, transfers.real)
        self._examined = (0, 0)

    def check(
        self,
        number: int,
        part: LinkPart,
        peer: int | None,
        compare: Callable[[], Wrong | None],
        width: int = _WORD,
    ) -> None:
        """Compare what has arrived, and report it if it is wrong.

        Args:
            number: The round.
            part: The transfer.
            peer: The index of the GPU that has sent it, or None.
            compare: Compares one piece.
            width: Bytes of what it counts.
        """
        wrong = self.transfers.compute(compare)
        if wrong is None:
            return
        self.tally.add_wrong(part, peer, wrong.count * width)
        self.ctx.report(iterations=0, errors=1)
        round_, found = self._examined
        found = found + 1 if round_ == number else 1
        self._examined = number, found
        if found > _MAX_EXAMINED:
            return
        again = self.transfers.compute(compare)
        from_ = "" if peer is None else f" from GPU {peer}"
        self.ctx.find(
            Finding(
                place=FindingPlace.LINK,
                workload="links",
                round=number,
                count=wrong.count,
                first=(wrong.first,),
                bits=wrong.bits,
                reread=again is not None,
                detail=f"{part.value}{from_}; the bits are those of the first of the"
                f" {wrong.count} wrong words of {width} bytes in one piece",
            )
        )


class HostMemory:
    """Memory of the host to copy from and to, on the node of a place if there is one.

    Args:
        words: The length of both pieces.
        place: Where to take it; None leaves that to the kernel.
        unknown: Why there is no place.
        pinned: Whether to pin it, as every copy of a GPU needs.
    """

    def __init__(self, words: int, place: Place | None, unknown: str, *, pinned: bool) -> None:
        def take() -> Tensor:
            return torch.empty((2, words), dtype=torch.int64, pin_memory=pinned)

        both, why = take_on(place.node, take) if place is not None else (take(), unknown)
        self.from_host, self.to_host = both
        #: Where it is, for people.
        self.text = str(place) if why is None else f"not bound to {place or 'a NUMA node'}: {why}"


class HostLinks(_Links):
    """Copies between pinned memory of the host and the GPU, from the near node and a far one."""

    def __init__(self, ctx: WorkloadContext, transfers: Transfers) -> None:
        super().__init__(ctx, transfers)
        words = min(_HOST_BYTES, ctx.chunks[0].numel()) // _WORD
        self._inbound, self._outbound = (words_of(chunk, words) for chunk in ctx.chunks[:2])
        local, remote, unknown = places_of(ctx.pci_bus_id)
        self._local = HostMemory(words, local, unknown, pinned=transfers.real)
        self._remote: HostMemory | None = None
        if remote is not None:
            self._remote = HostMemory(words, remote, "", pinned=transfers.real)
        self._memory = self._local
        self._on_host = LinkPatterns(words, torch.device("cpu"))
        self._on_device = _patterns(transfers, words, ctx.device)
        self._bytes = words * _WORD
        self._copies = 1
        if transfers.real:
            seconds = min(transfers.run(self._copy_to_device) for _ in range(3))
            self._copies = max(1, min(_MAX_COPIES, int(_BURST_S / seconds)))

    def measure_alone(self, number: int) -> None:
        """Measure both directions one after the other, then at once; then with far memory."""
        for part in (LinkPart.TO_DEVICE, LinkPart.TO_HOST, LinkPart.BOTH):
            self.measure(number, part)
        if self._remote is not None:
            for part in (LinkPart.TO_DEVICE_REMOTE, LinkPart.TO_HOST_REMOTE):
                self.measure(number, part)

    def measure(self, number: int, part: LinkPart, peers: Peers | None = None) -> None:
        """Run one burst of copies, and compare the last copy of each direction.

        Args:
            number: The round.
            part: What to copy.
            peers: The GPUs that do the same at once, or None.
        """
        inward, outward = part in _INWARD, part in _OUTWARD
        is_remote = part in {LinkPart.TO_DEVICE_REMOTE, LinkPart.TO_HOST_REMOTE}
        self._memory = memory = self._remote if is_remote and self._remote else self._local
        index = list(LinkPart).index(part)
        key_in, key_out = key_of(number, index, 0), key_of(number, index, 1)
        if inward:
            self._on_host.write(memory.from_host, key_in)
        if outward:
            self.transfers.compute(lambda: self._on_device.write(self._outbound, key_out))
        both = inward and outward
        queue = self._copy_to_device if inward else self._copy_to_host
        if peers is not None:
            seconds = peers.run(queue, at_once=True)
        else:
            seconds = self.transfers.run(queue, self._copy_to_host if both else None)
        checked = self._bytes * (2 if both else 1)
        text = memory.text if self.tally.real else None
        self.tally.add(part, None, float(checked * self._copies), seconds, checked, text)
        if inward:
            self.check(number, part, None, lambda: self._on_device.compare(self._inbound, key_in))
        if outward:
            self.check(number, part, None, lambda: self._on_host.compare(memory.to_host, key_out))

    def _copy_to_device(self) -> None:
        for _ in range(self._copies):
            copy(self._inbound, self._memory.from_host)

    def _copy_to_host(self) -> None:
        for _ in range(self._copies):
            copy(self._memory.to_host, self._outbound)


class PeerLinks(_Links):
    """Transfers between the GPUs of a group."""

    def __init__(self, ctx: WorkloadContext, transfers: Transfers, peers: Peers) -> None:
        super().__init__(ctx, transfers)
        self.peers = peers
        piece = min(_HOST_BYTES, ctx.chunks[0].numel()) // _WORD
        pieces = max(1, min(_PEER_BYTES, ctx.chunks[0].numel()) // (piece * _WORD))
        self._sent, self._received = (
            words_of(chunk, piece * pieces) for chunk in ctx.chunks[1:_CHUNKS]
        )
        most = min(_REDUCE_BYTES, ctx.chunks[2].numel()) // (piece * 4)
        self._numbers = ctx.chunks[2][: most * piece * 4].view(torch.float32)
        self._patterns = _patterns(transfers, piece, ctx.device)
        self._repeats = repeats_of(peers.size, _REDUCE_REPEATS) if transfers.real else 1

    def measure_exchange(self, number: int, shift: int) -> None:
        """Send to the GPU some places on in the ring, and compare what has come."""
        peers, patterns = self.peers, self._patterns
        sender = (peers.rank - shift) % peers.size

        def write() -> None:
            for index, piece in enumerate(_pieces(self._sent, patterns.words)):
                patterns.write(piece, key_of(number, shift, peers.rank, index))

        self.transfers.compute(write)
        repeats = _PEER_REPEATS if self.transfers.real else 1
        seconds = peers.exchange(self._sent, self._received, shift, repeats)
        size = self._received.numel() * _WORD
        gpu = peers.gpus[sender]
        self.tally.add(LinkPart.PEER, gpu, float(size * repeats), seconds, size)
        for index, piece in enumerate(_pieces(self._received, patterns.words)):
            key = key_of(number, shift, sender, index)
            self.check(number, LinkPart.PEER, gpu, partial(patterns.compare, piece, key))

    def measure_all_reduce(self, number: int) -> None:
        """Sum small integers over all GPUs, again and again; the sums are exact."""
        size, patterns = self.peers.size, self._patterns
        offset = offset_of(key_of(number))

        def write() -> None:
            for piece in _pieces(self._numbers, patterns.words):
                patterns.write_numbers(piece, offset + self.peers.rank)

        self.transfers.compute(write)
        seconds = self.peers.all_reduce(self._numbers, self._repeats)
        moved = self._numbers.numel() * 4
        self.tally.add(LinkPart.ALL_REDUCE, None, float(moved * self._repeats), seconds, moved)
        factor = size ** (self._repeats - 1)
        total = factor * (size * offset + size * (size - 1) // 2)
        for piece in _pieces(self._numbers, patterns.words):
            self.check(
                number,
                LinkPart.ALL_REDUCE,
                None,
                partial(patterns.compare_sums, piece, factor * size, total),
                width=4,
            )


def _patterns(transfers: Transfers, words: int, device: torch.device) -> LinkPatterns:
    """Compute the patterns on the stream of the transfers, which use them."""
    found: LinkPatterns = transfers.compute(lambda: LinkPatterns(words, device))
    return found


def _pieces(whole: Tensor, length: int) -> list[Tensor]:
    return [whole[begin : begin + length] for begin in range(0, whole.numel(), length)]


def copy(target: Tensor, source: Tensor) -> None:
    """Copy words between the host and the GPU, without waiting."""
    target.copy_(source, non_blocking=True)


def words_of(chunk: Tensor, words: int) -> Tensor:
    """Return the beginning of a chunk as words."""
    return chunk[: words * _WORD].view(torch.int64)
