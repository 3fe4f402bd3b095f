"""Run transfers on a stream of their own, wait for them for a limited time, check their data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sentinel.errors import ConfigError, PeersError
from sentinel.protocol.stressor import StressorGroup
from sentinel.stressor.context import WorkloadContext

#: The longest time of a transfer, in seconds: below ``--hang-after``, which is for the GPU's own
#: faults. The largest takes milliseconds.
TIMEOUT_S = 20.0
#: How long a stopped stressor goes on with a transfer that others take part in, in seconds: they
#: end in step.
LEAVE_S = 1.0
#: The intervals of two looks at a transfer, and of two signs of life, in seconds.
_POLL_S, _ALIVE_S = 0.0005, 0.02

#: torch declares no types for these.
_Event: Any = torch.cuda.Event
_Stream: Any = torch.cuda.Stream

#: How long to wait for the other ranks, in seconds: a cold start of torch may take half of it. It
#: is below ``--start-timeout``.
RENDEZVOUS_TIMEOUT_S = 90.0
#: How long a rank without its peers waits for the supervisor to end it, in seconds.
_STOP_WAIT_S = 10.0
_POLL_S_PEERS = 0.05

#: Sockets listen on the loopback device alone, and network cards are left alone. NVLink multicast
#: is off: a process that is killed while it is used may leave the switches in a bad state. torch's
#: own threads must not end a process that waits for a rank: that would look like a crash.
#: An administrator may allow multicast: NCCL then uses it where the GPUs support it.
NVLS = "NCCL_NVLS_ENABLE"
NVLS_WHERE_SUPPORTED = "2"
ENVIRONMENT = {
    NVLS: "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}

#: What NCCL may take for its buffers and kernels, in bytes, for each other rank: its buffers are
#: 4 MiB each, several for each of up to 32 channels.
_BUFFER_BYTES = 512 * 2**20

#: torch declares no types for these.
_dist: Any = dist

#: An odd number with well mixed bits, 2^64 divided by the golden ratio, as a signed word.
_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
_SHIFT = 29
_BITS = 64
#: Keys are positive words.
_KEYS = 2**62
#: Numbers of an all-reduce are below this, each before an offset below it is added.
_NUMBERS = 256
#: A float32 represents every integer up to here exactly.
_EXACT = 2**24


class StoppedError(Exception):
    """The workload is to return."""


class TransferTimeoutError(Exception):
    """A transfer has not ended in time."""


class Transfers:
    """Transfers of one GPU.

    The context's own stream stays free, so that its :meth:`~WorkloadContext.drain` returns although
    a transfer waits for a GPU that is gone.

    Args:
        ctx: The workload's context.
        patience: How long to go on after a stop, in seconds.
    """

    def __init__(self, ctx: WorkloadContext, patience: float) -> None:
        self._ctx = ctx
        self._patience = patience
        self.real = ctx.device.type == "cuda"
        self._streams: list[Any] = []
        if self.real:
            self._streams = [_Stream(ctx.device) for _ in range(2)]

    def run(
        self,
        queue: Callable[[], object],
        beside: Callable[[], object] | None = None,
        before: Callable[[], object] | None = None,
    ) -> float:
        """Run transfers, and wait for them.

        Args:
            queue: Queues transfers on the current stream.
            beside: Queues more of them, which run at the same time.
            before: Queues what comes first, and is not measured.

        Returns:
            The seconds from the beginning of the first to the end of the last.

        Raises:
            StoppedError: The workload is to return.
            TransferTimeoutError: It has not ended in time.
        """
        if not self.real:
            if before is not None:
                before()
            began = time.monotonic()
            queue()
            if beside is not None:
                beside()
            self._check_stop()
            return max(time.monotonic() - began, 1e-9)
        main, other = self._streams
        begin, end = _Event(enable_timing=True), _Event(enable_timing=True)
        with torch.cuda.stream(main):
            if before is not None:
                before()
            begin.record()
            if beside is not None:
                other.wait_stream(main)
                with torch.cuda.stream(other):
                    beside()
            queue()
            if beside is not None:
                main.wait_stream(other)
            end.record()
        self._wait(end.query)
        seconds: float = begin.elapsed_time(end) / 1000
        return max(seconds, 1e-9)

    def compute(self, work: Callable[[], Any]) -> Any:
        """Compute something after the last transfer, and wait for it; return its result."""
        if not self.real:
            return work()
        with torch.cuda.stream(self._streams[0]):
            return work()

    def _check_stop(self) -> None:
        if not self._ctx.drain(rests=False) and not self._patience:
            raise StoppedError

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait, and keep on sending progress."""
        began = alive = time.monotonic()
        stopped: float | None = None
        while not is_done():
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now - began >= TIMEOUT_S:
                raise TransferTimeoutError(f"a transfer did not end within {TIMEOUT_S:g} s")
            if now - alive < _ALIVE_S:
                continue
            alive = now
            if not self._ctx.drain(rests=False):
                stopped = now if stopped is None else stopped
                if now - stopped >= self._patience:
                    raise StoppedError


class Peers:
    """The group of this stressor, once all ranks are there.

    Args:
        ctx: The workload's context; its group has two members or more.
        group: The place of this stressor.
        transfers: Runs what the ranks do together.
        nvls: Whether NCCL may use NVLink multicast.

    Raises:
        ConfigError: This torch cannot do it.
        PeersError: The other ranks did not come in time.
        StoppedError: The workload is to return.
    """

    def __init__(
        self,
        ctx: WorkloadContext,
        group: StressorGroup,
        transfers: Transfers,
        *,
        nvls: bool = False,
    ) -> None:
        self.rank, self.size, self.gpus = group.rank, group.size, group.gpus
        self._ctx = ctx
        self._transfers = transfers
        backend = "nccl" if transfers.real else "gloo"
        if not dist.is_available() or not getattr(_dist, f"is_{backend}_available")():
            raise ConfigError(f"this torch has no torch.distributed with {backend}")
        if ctx.rendezvous is None:
            raise ConfigError("a group of stressors needs a folder to find each other in")
        os.environ.update(ENVIRONMENT | ({NVLS: NVLS_WHERE_SUPPORTED} if nvls else {}))
        ctx.allow_growth(_BUFFER_BYTES * (self.size - 1))
        with self._errors():
            store = self._rendezvous(ctx.rendezvous, group.number)
            _dist.init_process_group(
                backend,
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=TIMEOUT_S),
            )
        self._flag: Tensor = transfers.compute(
            lambda: torch.zeros(1, dtype=torch.int32, device=ctx.device)
        )

    def agree(self, *, goes_on: bool) -> bool:
        """Wait for all ranks, and check that every one of them goes on."""
        self.run(lambda: self._meet(goes_on=goes_on))
        return bool(self._transfers.compute(lambda: int(self._flag.item())))

    def exchange(self, sent: Tensor, received: Tensor, shift: int, repeats: int) -> float:
        """Send to the rank ``shift`` places on, and receive from the one as far back.

        Returns:
            The seconds of all repetitions.
        """
        to, from_ = (self.rank + shift) % self.size, (self.rank - shift) % self.size

        def queue() -> None:
            for _ in range(repeats):
                both = [
                    _dist.P2POp(_dist.isend, sent, to),
                    _dist.P2POp(_dist.irecv, received, from_),
                ]
                self._finish(_dist.batch_isend_irecv(both))

        return self.run(queue, at_once=True)

    def all_reduce(self, numbers: Tensor, repeats: int) -> float:
        """Replace the numbers by their sums over all ranks; return the seconds of all repeats."""

        def queue() -> None:
            for _ in range(repeats):
                self._finish([_dist.all_reduce(numbers, async_op=True)])

        return self.run(queue, at_once=True)

    def run(self, queue: Callable[[], object], *, at_once: bool = False) -> float:
        """Run transfers as :meth:`Transfers.run` does, if ``at_once`` on all ranks at once."""
        with self._errors():
            return self._transfers.run(queue, before=self._meet if at_once else None)

    def _meet(self, *, goes_on: bool = True) -> None:
        """Queue a wait for all ranks."""
        self._flag.fill_(int(goes_on))
        self._finish([_dist.all_reduce(self._flag, op=_dist.ReduceOp.MIN, async_op=True)])

    def _rendezvous(self, folder: Path, number: int) -> Any:
        """Wait until all ranks are there; a file per group, so that none meets an earlier one."""
        store = _dist.FileStore(str(folder / f"group-{number}"), self.size)
        store.set_timeout(timedelta(seconds=TIMEOUT_S))
        store.set(f"here-{self.rank}", "1")
        deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
        while missing := [
            gpu for rank, gpu in enumerate(self.gpus) if not store.check([f"here-{rank}"])
        ]:
            if not self._ctx.drain(rests=False):
                raise StoppedError
            if time.monotonic() >= deadline:
                names = ", ".join(map(str, missing))
                what = f"the stressors of GPU {names} did not come in {RENDEZVOUS_TIMEOUT_S:g} s"
                raise PeersError(what)
            time.sleep(_POLL_S_PEERS)
        return _dist.PrefixStore("links", store)

    def _finish(self, works: list[Any]) -> None:
        """Make the stream wait for works; on a simulated GPU, this thread waits."""
        for work in works:
            work.wait()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the errors of a missing rank into one that proves nothing about this GPU."""
        kind = _dist.DistError if self._transfers.real else RuntimeError
        try:
            yield
        except (TransferTimeoutError, kind) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            self._wait_for_stop()
            text = " ".join(str(error).split())
            raise PeersError(f"a transfer with the other GPUs failed: {text}") from error

    def _wait_for_stop(self) -> None:
        """Wait for the stop that follows when another rank is gone.

        Raises:
            StoppedError: It has come.
        """
        deadline = time.monotonic() + _STOP_WAIT_S
        while time.monotonic() < deadline:
            if not self._ctx.drain(rests=False):
                raise StoppedError
            time.sleep(_POLL_S_PEERS)


# --- the data of transfers ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Words that are not what they should be."""

    count: int
    #: The position of the first one, and which of its bits differ, from the lowest.
    first: int
    bits: tuple[int, ...]


def key_of(*numbers: int) -> int:
    """Mix some numbers into the key of a transfer."""
    key = 1
    for number in numbers:
        key = ((key ^ number) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        key ^= key >> _SHIFT
    return key % _KEYS


class LinkPatterns:
    """Words for one piece of memory, and their comparison.

    All memory is taken here, so that no comparison allocates.

    Args:
        words: The length of a piece, in words of 8 bytes.
        device: Where they are computed and compared.
    """

    def __init__(self, words: int, device: torch.device) -> None:
        self.words = words
        self._base = torch.arange(words, dtype=torch.int64, device=device)
        self._base.mul_(_MULTIPLIER)
        self._base.bitwise_xor_(self._base >> _SHIFT)
        self._scratch = torch.empty_like(self._base)
        self._differs = torch.empty(words, dtype=torch.bool, device=device)
        self._numbers = (self._base & (_NUMBERS - 1)).to(torch.float32)
        self._sums = torch.empty_like(self._numbers)

    def write(self, piece: Tensor, key: int) -> None:
        """Write the words of a key."""
        torch.bitwise_xor(self._base, key, out=piece)

    def compare(self, piece: Tensor, key: int) -> Wrong | None:
        """Compare a piece with the words of a key; waits for the current stream.

        Returns:
            The words that differ, or None.
        """
        torch.bitwise_xor(piece, self._base, out=self._scratch)
        torch.ne(self._scratch, key, out=self._differs)
        return self._found(lambda first: int(self._scratch[first].item()) ^ key)

    def write_numbers(self, piece: Tensor, offset: int) -> None:
        """Write the numbers that one GPU adds: small integers, as float32."""
        torch.add(self._numbers, offset, out=piece)

    def compare_sums(self, piece: Tensor, factor: int, offset: int) -> Wrong | None:
        """Compare sums with ``factor`` times each number, plus an offset; all must be exact."""
        torch.mul(self._numbers, factor, out=self._sums)
        self._sums.add_(offset)
        torch.ne(piece, self._sums, out=self._differs)

        def bits(first: int) -> int:
            got, expected = (
                words[first : first + 1].view(torch.int32) for words in (piece, self._sums)
            )
            return (int(got.item()) ^ int(expected.item())) % 2**32

        return self._found(bits)

    def _found(self, differing: Callable[[int], int]) -> Wrong | None:
        count = int(self._differs.sum().item())
        # Always computed: no kernel may be loaded for the first time when there is a fault.
        first = int(self._differs.view(torch.uint8).argmax().item())
        word = differing(first) % 2**_BITS
        if not count:
            return None
        return Wrong(count=count, first=first, bits=tuple(word >> bit & 1 for bit in range(_BITS)))


def offset_of(key: int) -> int:
    """Choose the offset of the numbers of an all-reduce."""
    return key % _NUMBERS


def repeats_of(size: int, most: int) -> int:
    """Compute how often sums over so many GPUs can be summed again and still be exact."""
    largest = size * (2 * _NUMBERS + size)
    repeats = 1
    while repeats < most and largest * size < _EXACT:
        largest *= size
        repeats += 1
    return repeats
