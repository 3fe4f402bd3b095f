"""Read and write all of the memory: full bandwidth and most of the power."""

from __future__ import annotations

from itertools import cycle, islice

import torch

from sentinel.stressor.context import WorkloadContext

#: The weight of the noise in one operation. GPU Sentinel's jitter, ``x - x * 1e-4 + x * 1e-4 * r``,
#: has the same weight and needs three temporaries.
_WEIGHT = 1e-4

#: Bytes of one float32, times two for the halves of a single chunk.
_GRAIN = 8


def elementwise(ctx: WorkloadContext) -> None:
    """Mix fixed normal noise into one chunk after another, in place.

    A value between its previous value and its noise stays bounded. Each operation reads a chunk and
    the noise and writes the chunk: three times its size in traffic.
    """
    pieces = ctx.chunks
    if len(pieces) == 1:
        half = pieces[0].numel() // _GRAIN * _GRAIN // 2
        pieces = [pieces[0][:half], pieces[0][half : 2 * half]]
    noise, *held = (piece.view(torch.float32) for piece in pieces)
    for values in (noise, *held):
        values.normal_()
    seconds = ctx.measure(lambda: held[0].lerp_(noise, _WEIGHT))
    repeats = max(1, int(ctx.quantum / max(seconds, 1e-6)))
    endless = cycle(held)
    while ctx.pace():
        for values in islice(endless, repeats):
            values.lerp_(noise, _WEIGHT)
        ctx.report(iterations=repeats, bytes=3.0 * noise.nbytes * repeats)
