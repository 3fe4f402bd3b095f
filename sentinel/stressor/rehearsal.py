"""Rehearse a workload on a small part of the memory, before all of it is taken.

Modules are loaded, every kernel is launched once, and inputs are drawn while the process holds next
to nothing. What follows once the memory is taken is short, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from sentinel.protocol.stressor import StartStage
from sentinel.stressor.context import Rehearsal, WorkloadContext
from sentinel.stressor.device import Device, Filling, FillPlan
from sentinel.stressor.start_watch import PREPARATION_BYTES, StartWatch

W = TypeVar("W", bound=Callable[..., object])

#: The share of the card that a rehearsal works on.
SHARE = 0.01
#: How many chunks it has: enough for every workload.
_CHUNKS = 4
#: The bytes of each are a multiple of it, as those of real ones are.
_GRAIN = 2 * 2**20
#: Temporary tensors of these sizes make torch keep a segment of each of its kinds (see ``device``).
_SPARE_BYTES = (2**19, 8 * 2**20)


def rehearsed(rehearse: Callable[..., object]) -> Callable[[W], W]:
    """Give a workload its rehearsal, which takes the same context and options."""

    def mark(workload: W) -> W:
        workload.rehearse = rehearse  # type: ignore[attr-defined]
        return workload

    return mark


def run_rehearsal(
    rehearse: Callable[[Any], object],
    device: Device,
    planned: FillPlan,
    context: Callable[[Filling], WorkloadContext],
    watch: StartWatch,
) -> WorkloadContext:
    """Run a rehearsal on borrowed memory; return its context, which has no memory any more.

    Args:
        rehearse: The rehearsal with its options bound.
        device: The device.
        planned: What will be taken.
        context: Makes a context that works on some memory.
        watch: Announces it.
    """
    held = device.reserved_bytes()
    share = min(int(device.total_bytes() * SHARE), planned.asked)
    size = max(_GRAIN, share // _CHUNKS // _GRAIN * _GRAIN)
    watch.announce(StartStage.REHEARSING, _CHUNKS * size + PREPARATION_BYTES)
    with device.borrow(_CHUNKS * size) as memory:
        step = len(memory) // _CHUNKS
        pieces = tuple(memory[part * step : (part + 1) * step] for part in range(_CHUNKS))
        ctx = context(
            Filling(chunks=pieces, rest=None, worked_on=0, held=0, asked=0, refused=False)
        )
        chunks = [device.plan_chunk(planned.chunk)] * planned.chunks
        ctx.rehearse(Rehearsal(size=_CHUNKS * size, memory=memory, planned=chunks), rehearse)
    if device.reserved_bytes() > held:  # it has temporary tensors
        for spare in _SPARE_BYTES:
            torch.empty(spare, dtype=torch.uint8, device=device.torch_device)
    return ctx
