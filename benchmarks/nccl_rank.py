"""One rank of a foreign job on all GPUs: most of its GPU's memory first, then NCCL.

``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are those of torchrun; the rank is
also the number of its GPU. It waits for a line before it opens a device, as a newcomer does, and
knows nothing of sentinel. It keeps its memory until its standard input ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

from benchmarks.die_with_parent import end_with_parent
from benchmarks.measured_line import write_line
from benchmarks.newcomer import wait_for_start

#: The bytes of each all-reduce, and how many there are: the sums of ones stay exact in float32.
ALL_REDUCE_BYTES = 64 * 2**20
ALL_REDUCES = 4
#: How long NCCL may wait for the other ranks.
TIMEOUT_S = 45.0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, required=True, help="of the GPU's total memory")
    return parser.parse_args()


def allocate(rank: int, share: float, go: float) -> Any:
    """Create a tensor with ``share`` of the memory and report it; return it, or None if refused."""
    import torch

    cuda: Any = torch.cuda
    cuda.set_device(rank)
    free, total = cuda.mem_get_info(rank)
    requested_at = time.monotonic()
    try:
        tensor = torch.empty(int(total * share), dtype=torch.uint8, device=f"cuda:{rank}")
    except torch.cuda.OutOfMemoryError:
        tensor = None
    done = time.monotonic()
    # The share is not of the free memory, so the free memory has no bar: "first_free".
    write_line(
        go=go,
        got=tensor is not None,
        first_free=free,
        total=total,
        context_s=requested_at - go,
        allocation_s=done - requested_at,
        memory_s=done - go,
    )
    return tensor


def all_reduce(rank: int, world: int, go: float) -> None:
    """Sum ones of all ranks a few times, and report the first and whether all sums are right."""
    import torch
    from torch import distributed

    distributed.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S))
    ones = torch.ones(ALL_REDUCE_BYTES // 4, dtype=torch.float32, device=f"cuda:{rank}")
    first_s = 0.0
    for _ in range(ALL_REDUCES):
        distributed.all_reduce(ones)
        torch.cuda.synchronize()
        first_s = first_s or time.monotonic() - go
    write_line(all_reduce=bool((ones == float(world**ALL_REDUCES)).all()), all_reduce_s=first_s)


def main() -> None:
    """Run one rank."""
    given = parse()
    end_with_parent(signal.SIGKILL)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Before the start: loading must not count. Neither import opens a device.
    import torch.distributed  # noqa: F401

    go = wait_for_start()
    try:
        tensor = allocate(rank, given.share, go)
    except RuntimeError as error:
        tensor = None
        write_line(go=go, got=False, error=str(error))
    if tensor is not None:
        try:
            all_reduce(rank, world, go)
        except RuntimeError as error:
            write_line(all_reduce=False, error=str(error))
    sys.stdin.readline()  # an early end would break the connections of the other ranks
    os._exit(0)


if __name__ == "__main__":
    main()
