"""Run jobs at the pace that a GPU's health allows, in memory that is allocated for them.

python monitor.py                      # with the daemon of this host, or without one
python monitor.py --simulate 1         # on a host without a GPU
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import sentinel
from sentinel.client import EventInfo, GpuStatus


def work(job: int, size: int) -> None:
    """Stand for one job with a batch of this size."""
    print(f"job {job}: a batch of {size}")
    time.sleep(0.01)


def main() -> None:
    """Run a few jobs: slower on a warm GPU, and none while it is too hot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default="0", metavar="GPU", help="index, UUID or PCI address")
    parser.add_argument("--simulate", type=int, help="simulate so many GPUs, if no daemon runs")
    parser.add_argument("--jobs", type=int, default=4, help="how many")
    parser.add_argument("--batch", type=int, default=32, help="the size of a batch at full speed")
    given = parser.parse_args()
    with sentinel.Monitor(simulate=given.simulate) as monitor:
        if not monitor.is_available():
            print(f"no GPU: {monitor.reason}")
            return

        @monitor.on("state_change")
        def changed(gpu: GpuStatus, event: EventInfo) -> None:
            before, now = event.fields["before"], event.fields["health"]
            print(f"GPU {gpu.index}: {before} -> {now} at {gpu.temperature_c} C")

        monitor.start()
        with monitor.allocation("monitor-example", "1GiB", given.gpus) as memory:
            print(f"{memory.size / 2**30:.0f} GiB of GPU {memory.index} are allocated")
            for job in range(given.jobs):
                while (speed := monitor.speed_multiplier(given.gpus)) == 0:
                    time.sleep(1)  # too hot, or unknown: it recovers by itself
                work(job, max(1, int(given.batch * speed)))
        print(f"done, {monitor.errors} errors in callbacks")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
