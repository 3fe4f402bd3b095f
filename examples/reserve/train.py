"""Train on GPUs that the sentinel daemon of this host reserves.

python train.py --count 2

Without a daemon it uses the GPUs in CUDA_VISIBLE_DEVICES, as usual.
"""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager, nullcontext

import sentinel
from sentinel.client import ReservationInfo
from sentinel.errors import NotRunningError


def reserved(count: int, reason: str) -> AbstractContextManager[ReservationInfo | None]:
    """Reserve GPUs for a ``with`` block; without a daemon there is nothing to reserve."""
    try:
        # Bound: the reservation ends with this process, even if that is killed.
        return sentinel.connect().reserve(count, reason=reason, bound=True, wait=60)
    except NotRunningError:
        return nullcontext()  # no daemon holds a GPU


def main() -> None:
    """Print the GPUs to train on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1, help="how many")
    given = parser.parse_args()
    with reserved(given.count, "a training run") as mine:
        if mine is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = mine.cuda_visible_devices
        # CUDA reads the variable when it starts, so import torch here, not above.
        print("training on", os.environ.get("CUDA_VISIBLE_DEVICES", "all there is"), flush=True)


if __name__ == "__main__":
    main()
