"""Let Trainer of Hugging Face train at the pace that the GPU's health allows.

python hugging_face_callback.py                 # with the daemon of this host, or without one
python hugging_face_callback.py --simulate 1    # on a host without a GPU

It needs `transformers` and `accelerate`. Copy it with pace.py, and give the callback to your
Trainer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
import transformers
from pace import Monitor, Pace, any_stops, gpu_of

import sentinel


class SentinelCallback(transformers.TrainerCallback):
    """Pauses after each step while the GPU is hot, and saves and stops one that cannot go on.

    Args:
        monitor: Where the health is read.
        patience_s: Seconds for a GPU that permits no work to recover.
    """

    def __init__(self, monitor: Monitor, patience_s: float = 300.0) -> None:
        self.pace = Pace(monitor, patience_s=patience_s)
        self._began = 0.0

    def on_train_begin(self, args: transformers.TrainingArguments, *_: Any, **__: Any) -> None:
        """Find the GPU of this process."""
        self.pace.gpu = gpu_of(args.device)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self._began = time.monotonic()

    def on_step_end(
        self,
        args: transformers.TrainingArguments,
        _state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **_: Any,
    ) -> None:
        """Pause, or save and stop."""
        stops = not self.pace.after_step(time.monotonic() - self._began)
        if any_stops(stops, args.device):
            control.should_save = control.should_training_stop = True


class Line(torch.nn.Module):
    """A model that learns a line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute the loss of a batch."""
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}


def main() -> None:
    """Train a model of two numbers, and print how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", type=int, help="simulate so many GPUs, if no daemon runs")
    parser.add_argument("--steps", type=int, default=20, help="how many")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait when hot")
    given = parser.parse_args()
    examples = [{"x": x, "labels": 2 * x} for x in torch.rand(8 * given.steps, 1)]
    with (
        tempfile.TemporaryDirectory() as folder,
        sentinel.Monitor(simulate=given.simulate) as monitor,
    ):
        callback = SentinelCallback(monitor, given.patience)
        trainer = transformers.Trainer(
            model=Line(),
            args=transformers.TrainingArguments(
                output_dir=folder,
                max_steps=given.steps,
                use_cpu=given.simulate is not None,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=examples,
            callbacks=[callback],
        )
        trainer.train()
    print(
        f"{trainer.state.global_step} of {given.steps} steps, "
        f"paused for {callback.pace.paused_s:.1f} s, speed {callback.pace.speed}"
    )


if __name__ == "__main__":
    main()
