"""Keep a GPU warm between two steps of a script, and yield it to any other process.

python hold.py --gpus 0                # on a real GPU
python hold.py --simulate 1            # without one
"""

from __future__ import annotations

import argparse
import sys
import time

import sentinel
from sentinel.errors import SentinelError


def main() -> None:
    """Hold a GPU for some seconds and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default="0", metavar="GPU", help="index, UUID or PCI address")
    parser.add_argument("--simulate", type=int, help="pretend so many GPUs")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to hold it")
    given = parser.parse_args()
    with sentinel.hold(
        gpus=[given.gpus], memory="50%", workload="hold", simulate=given.simulate
    ) as held:
        (gpu,) = held.wait_held().gpus
        print(f"GPU {gpu.index} ({gpu.name}) is held: {(gpu.held or 0) / 2**30:.1f} GiB")
        time.sleep(given.seconds)  # stands for the work between two steps
        (gpu,) = held.status().gpus
        print("still held" if gpu.occupied else f"yielded: {gpu.reason}")
    print("released")


if __name__ == "__main__":
    try:
        main()
    except SentinelError as error:  # no driver, no such GPU, or another sentinel has it
        sys.exit(f"hold.py: {error}")
