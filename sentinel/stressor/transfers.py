"""Run transfers on a stream of their own, and wait for them asleep and for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from sentinel.stressor.context import WorkloadContext

#: The longest time of a transfer, in seconds: below ``--hang-after``, which is for the GPU's own
#: faults. The largest takes milliseconds.
TIMEOUT_S = 20.0
#: How long a stopped stressor goes on with a transfer that others take part in, in seconds: they
#: end in step.
LEAVE_S = 1.0
#: The intervals of two looks at a transfer, and of two signs of life, in seconds.
_POLL_S, _ALIVE_S = 0.0005, 0.02

#: torch declares no types for these.
_Event: Any = torch.cuda.Event
_Stream: Any = torch.cuda.Stream


class StoppedError(Exception):
    """The workload is to return."""


class TransferTimeoutError(Exception):
    """A transfer has not ended in time."""


class Transfers:
    """Transfers of one GPU.

    The context's own stream stays free, so that its :meth:`~WorkloadContext.drain` returns although
    a transfer waits for a GPU that is gone.

    Args:
        ctx: The workload's context.
        patience: How long to go on after a stop, in seconds.
    """

    def __init__(self, ctx: WorkloadContext, patience: float) -> None:
        self._ctx = ctx
        self._patience = patience
        self.real = ctx.device.type == "cuda"
        self._streams: list[Any] = []
        if self.real:
            self._streams = [_Stream(ctx.device) for _ in range(2)]

    def run(
        self,
        queue: Callable[[], object],
        beside: Callable[[], object] | None = None,
        before: Callable[[], object] | None = None,
    ) -> float:
        """Run transfers, and wait for them.

        Args:
            queue: Queues transfers on the current stream.
            beside: Queues more of them, which run at the same time.
            before: Queues what comes first, and is not measured.

        Returns:
            The seconds from the beginning of the first to the end of the last.

        Raises:
            StoppedError: The workload is to return.
            TransferTimeoutError: It has not ended in time.
        """
        if not self.real:
            if before is not None:
                before()
            began = time.monotonic()
            queue()
            if beside is not None:
                beside()
            self._check_stop()
            return max(time.monotonic() - began, 1e-9)
        main, other = self._streams
        begin, end = _Event(enable_timing=True), _Event(enable_timing=True)
        with torch.cuda.stream(main):
            if before is not None:
                before()
            begin.record()
            if beside is not None:
                other.wait_stream(main)
                with torch.cuda.stream(other):
                    beside()
            queue()
            if beside is not None:
                main.wait_stream(other)
            end.record()
        self._wait(end.query)
        seconds: float = begin.elapsed_time(end) / 1000
        return max(seconds, 1e-9)

    def compute(self, work: Callable[[], Any]) -> Any:
        """Compute something after the last transfer, and wait for it; return its result."""
        if not self.real:
            return work()
        with torch.cuda.stream(self._streams[0]):
            return work()

    def _check_stop(self) -> None:
        if not self._ctx.drain(rests=False) and not self._patience:
            raise StoppedError

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait, and keep on sending progress."""
        began = alive = time.monotonic()
        stopped: float | None = None
        while not is_done():
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now - began >= TIMEOUT_S:
                raise TransferTimeoutError(f"a transfer did not end within {TIMEOUT_S:g} s")
            if now - alive < _ALIVE_S:
                continue
            alive = now
            if not self._ctx.drain(rests=False):
                stopped = now if stopped is None else stopped
                if now - stopped >= self._patience:
                    raise StoppedError
