"""Workloads that allocate tensors of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from sentinel.workloads import WorkloadContext


def keeps_a_mebibyte(ctx: WorkloadContext) -> None:
    """Allocate in every round, and free nothing."""
    kept: list[Tensor] = []
    while ctx.pace():
        kept.append(torch.empty(2**20, dtype=torch.uint8, device=ctx.device))
        ctx.report()


def takes_a_gibibyte(ctx: WorkloadContext) -> None:
    """Allocate before the loop, as a workload may."""
    own = torch.empty(2**30, dtype=torch.uint8, device=ctx.device)
    while ctx.pace(rest=0.05):
        own[:1024].bitwise_not_()
        ctx.report()
