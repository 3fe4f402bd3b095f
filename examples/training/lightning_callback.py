"""Let Lightning train at the pace that the GPU's health allows.

python lightning_callback.py                 # with the daemon of this host, or without one
python lightning_callback.py --simulate 1    # on a host without a GPU

It needs `lightning`. Copy it with pace.py, and give the callback to your Trainer.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning.pytorch as pl
import torch
from pace import Monitor, Pace, any_stops, gpu_of

import sentinel


class SentinelCallback(pl.Callback):
    """Pauses after each step while the GPU is hot, and stops a training that cannot go on.

    Args:
        monitor: Where the health is read.
        patience_s: Seconds for a GPU that permits no work to recover.
    """

    def __init__(self, monitor: Monitor, patience_s: float = 300.0) -> None:
        self.pace = Pace(monitor, patience_s=patience_s)
        self._began = 0.0

    def on_train_start(self, _trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the GPU of this process."""
        self.pace.gpu = gpu_of(pl_module.device)

    def on_train_batch_start(self, *_: Any) -> None:
        """Note the time."""
        self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Pause, or stop."""
        stops = not self.pace.after_step(time.monotonic() - self._began)
        if any_stops(stops, pl_module.device):
            trainer.should_stop = True
        pl_module.log("sentinel/speed", self.pace.speed)


class Line(pl.LightningModule):
    """A model that learns a line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Compute the loss of a batch."""
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train a model of two numbers, and print how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", type=int, help="simulate so many GPUs, if no daemon runs")
    parser.add_argument("--steps", type=int, default=20, help="how many")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait when hot")
    given = parser.parse_args()
    x = torch.rand(8 * given.steps, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=8)
    with sentinel.Monitor(simulate=given.simulate) as monitor:
        callback = SentinelCallback(monitor, given.patience)
        trainer = pl.Trainer(
            accelerator="auto" if given.simulate is None else "cpu",
            max_steps=given.steps,
            callbacks=[callback],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Line(), loader)
    print(
        f"{trainer.global_step} of {given.steps} steps, "
        f"paused for {callback.pace.paused_s:.1f} s, speed {callback.pace.speed}"
    )


if __name__ == "__main__":
    main()
