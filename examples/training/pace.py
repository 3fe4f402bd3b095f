"""Slow a training loop down as its GPU's health demands; for any framework.

The callbacks for Lightning and for Trainer of Hugging Face, beside this file, are a few lines each.
A loop of your own needs two:

    pace = Pace(sentinel.Monitor(), gpu_of(device))
    for batch in batches:
        began = time.monotonic()
        ...
        if not pace.after_step(time.monotonic() - began):
            break
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from sentinel.errors import SentinelError

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


class Monitor(Protocol):
    """The part of :class:`sentinel.Monitor` that is used here."""

    def speed_multiplier(self, gpu: str | int = 0) -> float:
        """Read the share of full speed that a GPU's health permits."""


class Pace:
    """The pace of one training process on one GPU.

    A training must not fail because its GPU is not monitored: without Sentinel it has full speed.

    Args:
        monitor: Where the health is read, at most once a second.
        gpu: The GPU by index, UUID or PCI address.
        patience_s: Seconds for a GPU that permits no work to recover. In distributed training,
            less than the timeout of its collectives, which the other processes wait in.
    """

    def __init__(self, monitor: Monitor, gpu: str | int = 0, *, patience_s: float = 300.0) -> None:
        self.monitor = monitor
        self.gpu = gpu
        self.patience_s = patience_s
        #: The share of full speed that was permitted last.
        self.speed = 1.0
        #: Seconds that training has been paused.
        self.paused_s = 0.0
        self._read_at = float("-inf")

    def after_step(self, seconds: float) -> bool:
        """Pause after a step of ``seconds``, so that the GPU works for the permitted share of time.

        Returns:
            Whether to go on: False if the GPU has permitted no work for ``patience_s`` seconds.
        """
        until = time.monotonic() + self.patience_s
        while self._read() == 0:
            if time.monotonic() >= until:
                return False
            self._pause(1.0)
        self._pause(seconds * (1 / self.speed - 1))
        return True

    def _read(self) -> float:
        """Read the permitted speed, unless that was done within the last second."""
        if time.monotonic() - self._read_at >= 1.0:
            self._read_at = time.monotonic()
            try:
                self.speed = self.monitor.speed_multiplier(self.gpu)
            except SentinelError as error:
                _log.warning("training goes on at full speed: %s", error.what)
                self.speed = 1.0
        return self.speed

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
            self.paused_s += seconds


def gpu_of(device: torch.device) -> str | int:
    """Find the GPU of a torch device: its UUID, since CUDA's numbers are not nvidia-smi's."""
    if device.type != "cuda":
        return 0
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def any_stops(stops: bool, device: torch.device) -> bool:  # noqa: FBT001 - as all()
    """Agree with the other processes of a distributed training; all of them must call it."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return stops
    flag = torch.tensor(int(stops), device=device)
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag.item())
