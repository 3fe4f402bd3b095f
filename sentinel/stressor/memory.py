"""Fill the device: equal chunks until the target is reached or the device gives no more.

Chunks and not one piece: on parts with unified memory one allocation of hundreds of gigabytes can
run into the driver's 30 s limit for scrubbing, and a chunk is one GEMM result.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from sentinel.protocol.stressor import MemoryTarget
from sentinel.stressor.contention import ALLOCATION, Lookout
from sentinel.stressor.device import Device
from sentinel.units import format_size


@dataclass(frozen=True, kw_only=True)
class Filling:
    """What the device gave: ``held`` of the ``asked`` bytes; ``refused`` when it had no more."""

    chunks: tuple[Tensor, ...]
    held: int
    asked: int
    refused: bool


#: What torch and cuBLAS still take when kernels run for the first time, in bytes: 32 MiB of
#: workspace on an H200 and the kernels themselves. It is not to come out of a reserve.
_LIBRARIES = 128 * 2**20


def fill(
    device: Device,
    target: MemoryTarget,
    chunk: int,
    reserve: int = 0,
    lookout: Lookout | None = None,
) -> Filling:
    """Take chunks of ``chunk`` bytes up to ``target``, a share of what is free by now or a size.

    Only whole chunks are taken, but for a target size below one chunk, which is taken as it is.
    Nothing is written to them. At least ``reserve`` bytes of what is free are left.

    Raises:
        torch.cuda.OutOfMemoryError: Not one chunk fits.
        CrowdedError: The ``lookout`` saw somebody else take memory meanwhile.
    """
    free = device.free_memory()
    asked = int(free * target.share) if target.share is not None else target.size or 0
    if reserve:
        asked = max(0, min(asked, free - reserve - _LIBRARIES))
    size = chunk if target.size is None else min(chunk, target.size)
    wanted = asked // size
    chunks: list[Tensor] = []
    while len(chunks) < wanted and (piece := device.new_chunk(size)) is not None:
        chunks.append(piece)
        if lookout is not None:
            lookout.check(ALLOCATION)
    if not chunks:
        message = (
            f"{format_size(free)} are free and {format_size(asked)} of them were asked for; "
            f"not one chunk of {format_size(size)} could be had"
        )
        raise torch.cuda.OutOfMemoryError(message)
    return Filling(
        chunks=tuple(chunks),
        held=len(chunks) * size,
        asked=asked,
        refused=len(chunks) < wanted,
    )


def give_back_to_the_host() -> None:
    """Return what the preparations took of the host's memory and do not need any more.

    The C library keeps what is freed, tens of megabytes here, until it is told.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
