"""Write a pattern to all of the memory and check one round later that it is still there."""

from itertools import cycle, islice

import torch

from sentinel.workloads import ConfigError, ErrorCount, WorkloadContext


def retention(ctx: WorkloadContext, *, pattern: int = 0x5A) -> None:
    """Check and rewrite one chunk after another; a chunk that changed is an error.

    Args:
        ctx: The context of the stressor.
        pattern: The byte to write, from 0 to 127.
    """
    if not 0 <= pattern <= 127:  # noqa: PLR2004 - as documented
        raise ConfigError(f"retention: pattern={pattern} is not a number from 0 to 127")
    scratch, *blocks = ctx.chunks  # the comparison needs as much room as one chunk
    if not blocks:
        raise ConfigError("retention: two chunks are needed", "Hold more, or take smaller chunks.")
    differs = scratch.view(torch.bool)
    errors = ErrorCount(ctx.device)
    for block in blocks:
        block.fill_(pattern)

    def visit(block: torch.Tensor) -> None:
        torch.ne(block, pattern, out=differs)
        errors.total.add_(differs.any())
        block.fill_(pattern)

    seconds = ctx.measure(lambda: visit(blocks[0]))
    visits = max(1, int(ctx.quantum / max(seconds, 1e-6)))
    queue = cycle(blocks)
    while ctx.pace():
        for block in islice(queue, visits):
            visit(block)
        ctx.report(
            iterations=visits,
            bytes=4 * scratch.numel() * visits,  # read, two for the comparison, write
            checks=visits,
            errors=errors.news(),
        )
