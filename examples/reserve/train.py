"""Train on GPUs that the sentinel daemon of this host reserves.

python train.py --count 2

Without a daemon it uses the GPUs in CUDA_VISIBLE_DEVICES, as usual.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import sentinel
from sentinel.errors import NotRunningError


@contextmanager
def reserved(count: int, reason: str) -> Iterator[None]:
    """Reserve GPUs for the duration of the block, and make only these visible to CUDA."""
    daemon = sentinel.connect()
    try:
        # Bound: the reservation ends with this process, even if that is killed.
        mine = daemon.reserve(count, reason=reason, bound=True, wait=60)
    except NotRunningError:
        yield  # no daemon holds a GPU
        return
    try:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine.gpus)
        yield
    finally:
        daemon.unreserve(mine.id)


def main() -> None:
    """Print the GPUs to train on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1, help="how many")
    given = parser.parse_args()
    with reserved(given.count, "a training run"):
        # CUDA reads the variable when it starts, so import torch here, not above.
        print("training on", os.environ.get("CUDA_VISIBLE_DEVICES", "all there is"), flush=True)


if __name__ == "__main__":
    main()
