"""Copy one half of the memory over the other, alternating the direction."""

import torch

from sentinel.workloads import ConfigError, WorkloadContext


class Traffic:
    """Copy between pairs of chunks, for memory bandwidth.

    Args:
        turns: The number of rounds over all pairs before the direction changes.
    """

    def __init__(self, *, turns: int = 1) -> None:
        if turns < 1:
            raise ConfigError(f"traffic: turns={turns} is not 1 or more")
        self._turns = turns
        self._queued = 0

    def run(self, ctx: WorkloadContext) -> None:
        """Copy until the context returns False."""
        half = len(ctx.chunks) // 2
        if not half:
            raise ConfigError(
                "traffic: two chunks are needed", "Hold more, or take smaller chunks."
            )
        pairs = list(zip(ctx.chunks[:half], ctx.chunks[half : 2 * half], strict=True))
        seconds = ctx.measure(lambda: self._copy(pairs))
        copies = max(1, int(ctx.quantum / max(seconds, 1e-6)))
        while ctx.pace():
            for _ in range(copies):
                self._copy(pairs)
            ctx.report(iterations=copies, bytes=2 * pairs[0][0].numel() * copies)

    def _copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Queue one copy and advance to the next pair."""
        rounds, place = divmod(self._queued, len(pairs))
        source, target = pairs[place]
        if rounds // self._turns % 2:
            source, target = target, source
        target.copy_(source)
        self._queued += 1
