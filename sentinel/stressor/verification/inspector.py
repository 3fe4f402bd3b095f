"""Compare, sum and read the matrices of one product, waiting asleep for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.comparison import BitComparison, Checksum, PieceSums, integers
from sentinel.stressor.verification.layout import Layout
from sentinel.stressor.verification.matmul import Product

#: Bytes of a matrix that the host reads at a time.
SLICE = 4 * 2**20


class StagingBuffers:
    """Host memory that receives copies from the device: two slices and an answer.

    Attributes:
        slices: One for the matrix under test, one for what it is compared with.
        answer: A bool.
    """

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.slices = torch.zeros((2, SLICE), dtype=torch.uint8, pin_memory=cuda)
        self.answer = torch.zeros((), dtype=torch.bool, pin_memory=cuda)


class Inspector:
    """Compares, sums and reads the matrices of one product; allocates nothing after first use.

    Attributes:
        comparison: Compares results with the reference without waiting.
        stopped: Whether the workload is to end, as of the last wait.
    """

    def __init__(
        self,
        ctx: WorkloadContext,
        product: Product,
        layout: Layout,
        staging_buffers: StagingBuffers,
    ) -> None:
        self.comparison = BitComparison(product.reference, layout.differs)
        self.stopped = False
        self._rests = True
        self._ctx = ctx
        self._staging_buffers = staging_buffers
        longest = max(matrix.nbytes for matrix in (*product.inputs, product.reference))
        self._checksum = Checksum(layout.weights, layout.weighted, longest)
        self._wrong = torch.zeros((), dtype=torch.bool, device=product.reference.device)
        self._differs = layout.differs.view(torch.bool)
        # For each stretch of the longest possible input, of single bytes: whether it differs.
        stretches = -(-longest // self._differs.numel())
        self._parts = torch.zeros(stretches, dtype=torch.bool, device=self._wrong.device)

    def wait(self) -> None:
        """Wait until the device has done all queued work."""
        self.stopped = not self._ctx.drain(rests=self._rests)

    @contextmanager
    def without_rest(self) -> Iterator[None]:
        """Suspend the duty cycle: evidence is reported before it can be lost."""
        rests, self._rests = self._rests, False
        try:
            yield
        finally:
            self._rests = rests

    def differs(self, result: Tensor) -> bool:
        """Check whether ``result`` differs from the reference in at least one bit."""
        self.comparison.mark(result, self._wrong)
        self._staging_buffers.answer.copy_(self._wrong, non_blocking=True)
        self.wait()
        return bool(self._staging_buffers.answer)

    def repeats_itself(self, matrix: Tensor, period: int) -> bool:
        """Check whether each element equals the one ``period`` before it, bit for bit."""
        elements = integers(matrix)
        step = self._differs.numel()
        starts = range(period, elements.numel(), step)
        for number, start in enumerate(starts):
            end = min(start + step, elements.numel())
            differs = self._differs[: end - start]
            torch.ne(elements[start:end], elements[start - period : end - period], out=differs)
            torch.any(differs, out=self._parts[number])
        # No logical_or_ of one after another: its kernels take 28 MiB of host memory.
        torch.any(self._parts[: len(starts)], out=self._wrong)
        self._staging_buffers.answer.copy_(self._wrong, non_blocking=True)
        self.wait()
        return not bool(self._staging_buffers.answer)

    def checksum(self, matrix: Tensor) -> PieceSums:
        """Return the sums of ``matrix``."""
        self._checksum.queue(matrix)
        self.wait()
        return self._checksum.value()

    def fetch(self, matrix: Tensor, start: int, end: int, *, window: int) -> Tensor:
        """Copy bytes of ``matrix`` to the host; valid until the next use of the same window."""
        slice_ = self._staging_buffers.slices[window][: end - start]
        slice_.copy_(matrix.view(-1).view(torch.uint8)[start:end], non_blocking=True)
        self.wait()
        return slice_
