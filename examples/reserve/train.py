"""Train on GPUs that the sentinel daemon of this host keeps free for it.

python train.py --gpus 2

Without a daemon it takes the GPUs that it is given by others, as ever.
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
    """Have GPUs to ourselves while the block lasts, and show CUDA these and no other."""
    daemon = sentinel.connect()
    try:
        # Bound: it ends with this process, should that be killed in the middle.
        mine = daemon.reserve(count, reason=reason, bound=True, wait=60)
    except NotRunningError:
        yield  # nobody holds any
        return
    try:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine.gpus)
        yield
    finally:
        daemon.unreserve(mine.id)


def main() -> None:
    """Say which GPUs there are to train on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1, help="how many")
    given = parser.parse_args()
    with reserved(given.gpus, "a training run"):
        # CUDA looks at the variable when it begins: import torch here, not above.
        print("training on", os.environ.get("CUDA_VISIBLE_DEVICES", "all there is"), flush=True)


if __name__ == "__main__":
    main()
