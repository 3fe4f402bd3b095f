"""Take device memory: equal chunks and a rest, until the target or the device is exhausted.

On parts with unified memory a single allocation of hundreds of gigabytes can exceed the driver's
30 s limit for scrubbing, so memory is taken in chunks. A chunk is the size of one GEMM result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import MemoryTarget
from sentinel.stressor.contention import ALLOCATION_SLACK_BYTES, ContentionMonitor
from sentinel.stressor.device import Device
from sentinel.units import format_size


@dataclass(frozen=True, kw_only=True)
class Filling:
    """The memory that the device provided."""

    chunks: tuple[Tensor, ...]
    #: What is held beside the chunks and not worked on, smaller than a chunk; None if nothing is.
    rest: Tensor | None
    #: Bytes of all chunks, and with the rest.
    worked_on: int
    held: int
    #: Bytes of the target.
    asked: int
    #: Whether the device ran out of memory before the target.
    refused: bool


#: More than torch and cuBLAS allocate when kernels run for the first time, which a reserve must not
#: pay for. On an H200 with torch 2.11 that was 192 MiB for `gemm` of any dtype and `pulse`, 94 MiB
#: for `memtest`, 92 MiB for `elementwise` and nothing for `hold`.
_LIBRARY_BYTES = 256 * 2**20


#: torch rounds an allocation of at least 10 MiB up to a multiple of 2 MiB, and takes 20 MiB for a
#: smaller one (kMinLargeAlloc, kRoundLarge and kLargeBuffer of c10/cuda/CUDACachingAllocator).
_LEAST_REST_BYTES = 10 * 2**20
_ROUNDED_TO_BYTES = 2 * 2**20

#: The most chunks. On an H200 the teardown of 62,976 chunks of 2 MiB took 2.2 s, and no newcomer
#: got its memory; with 246 of 512 MiB every one did. The bound is computed from the 35 microseconds
#: of each chunk, 36 ms in all, and not measured.
MAX_CHUNKS = 1024


def fill(
    device: Device,
    target: MemoryTarget,
    chunk: int,
    reserve: int = 0,
    monitor: ContentionMonitor | None = None,
) -> Filling:
    """Take chunks of ``chunk`` bytes up to ``target``, a size or a share of the free memory.

    A target below one chunk is one chunk of that size. What is left over is taken as a rest, so
    that the sum is exact to 2 MiB; less than 10 MiB is not taken. The content is undefined. At
    least ``reserve`` bytes of the free memory are left.

    Raises:
        ConfigError: There would be more chunks than a newcomer could wait for.
        torch.cuda.OutOfMemoryError: Not one chunk fits.
        MemoryContentionError: The ``monitor`` saw another process take memory.
    """
    free = device.free_bytes()
    asked = int(free * target.share) if target.share is not None else target.size or 0
    if reserve:
        asked = max(0, min(asked, free - reserve - _LIBRARY_BYTES))
    size = chunk if target.size is None else min(chunk, target.size)
    wanted = asked // size
    taken = min(asked, free)
    if taken // size > MAX_CHUNKS:
        what = (
            f"{format_size(taken)} in chunks of {format_size(size)} are {taken // size} chunks,"
            f" which take too long to free for a newcomer; at most {MAX_CHUNKS} are allowed"
        )
        raise ConfigError(what, f"Use --chunk {format_size(_least_chunk(taken)).replace(' ', '')}.")
    chunks: list[Tensor] = []
    # More memory may become free meanwhile.
    most = min(wanted, MAX_CHUNKS)
    while len(chunks) < most and (piece := device.new_chunk(size)) is not None:
        chunks.append(piece)
        if monitor is not None:
            monitor.check(ALLOCATION_SLACK_BYTES)
    if not chunks:
        message = (
            f"{format_size(free)} are free"
            f"{f' ({format_size(reserve)} are to be kept free)' if reserve else ''}"
            f" and {format_size(asked)} were requested; "
            f"not one chunk of {format_size(size)} is available"
        )
        raise torch.cuda.OutOfMemoryError(message)
    worked_on = len(chunks) * size
    rest = _take_rest(device, asked - worked_on) if len(chunks) == wanted else None
    if monitor is not None:
        monitor.check(ALLOCATION_SLACK_BYTES)
    return Filling(
        chunks=tuple(chunks),
        rest=rest[0] if rest is not None else None,
        worked_on=worked_on,
        held=worked_on + (rest[1] if rest is not None else 0),
        asked=asked,
        refused=len(chunks) < wanted,
    )


def _take_rest(device: Device, left: int) -> tuple[Tensor, int] | None:
    """Take what whole chunks leave of the target, and return it with its size, or None."""
    size = left - left % _ROUNDED_TO_BYTES
    piece = device.new_chunk(size) if size >= _LEAST_REST_BYTES else None
    return None if piece is None else (piece, size)


def _least_chunk(asked: int) -> int:
    """Return the smallest power of two that divides the memory into few enough chunks."""
    return 1 << (asked // MAX_CHUNKS).bit_length()
