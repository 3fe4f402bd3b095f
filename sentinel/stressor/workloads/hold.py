"""Hold memory without computing."""

from __future__ import annotations

from sentinel.stressor.context import WorkloadContext


def hold(ctx: WorkloadContext) -> None:
    """Keep the memory occupied; the GPU stays cool."""
    while ctx.pace(rest=0.05):
        ctx.report()
