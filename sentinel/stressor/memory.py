"""Take device memory: equal chunks until the target is reached or the device has no more.

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
    """The chunks that the device provided."""

    chunks: tuple[Tensor, ...]
    #: Bytes of all chunks.
    held: int
    #: Bytes of the target.
    asked: int
    #: Whether the device ran out of memory before the target.
    refused: bool


#: What torch and cuBLAS allocate when kernels run for the first time: 32 MiB of workspace on an
#: H200, and the kernels. A reserve must not pay for it.
_LIBRARY_BYTES = 128 * 2**20


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

    Only whole chunks are taken, except for a target below one chunk, which is taken as it is. Their
    content is undefined. At least ``reserve`` bytes of the free memory are left.

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
            f"{format_size(free)} are free and {format_size(asked)} were requested; "
            f"not one chunk of {format_size(size)} is available"
        )
        raise torch.cuda.OutOfMemoryError(message)
    return Filling(
        chunks=tuple(chunks),
        held=len(chunks) * size,
        asked=asked,
        refused=len(chunks) < wanted,
    )


def _least_chunk(asked: int) -> int:
    """Return the smallest power of two that divides the memory into few enough chunks."""
    return 1 << (asked // MAX_CHUNKS).bit_length()
