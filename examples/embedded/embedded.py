"""Run a supervisor in your own program, and count its hand-overs.

python embedded.py                # on two simulated GPUs, with a job on one of them
python embedded.py --real         # on the GPUs of this host, until Ctrl+C
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

import sentinel


class Counter:
    """An event sink, which is called with each event in a thread of its own."""

    def __init__(self, gpus: Mapping[str, sentinel.Gpu]) -> None:
        self.gpus = gpus
        self.occupied: set[str | None] = set()
        self.all_occupied = threading.Event()
        self.handovers = 0

    def __call__(self, event: sentinel.Event) -> None:
        """Process one event."""
        if event.name == "stressor.ready":
            self.occupied.add(event.gpu)
            if self.occupied >= self.gpus.keys():
                self.all_occupied.set()
        elif event.name == "gpu.handed_over" and event.gpu is not None:
            self.handovers += 1
            print(f"GPU {self.gpus[event.gpu].index} was handed over", flush=True)


def visit(counter: Counter) -> None:
    """Use a simulated GPU as a foreign process, then ask the supervisor to end."""
    if counter.all_occupied.wait(60):
        job = [sys.executable, "-m", "sentinel", "demo", "job", "--for", "1s"]
        subprocess.run(job, check=False, stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Supervise until a signal or the end of the time, and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="the GPUs of this host")
    real = parser.parse_args().real
    # Values are seconds, bytes and watts; the defaults are those of `sentinel run`.
    config = sentinel.Config(workload="hold", rearm=0.5, run_for=None if real else 90.0)
    options = sentinel.Options(config=config, simulate=None if real else 2)
    counters = []

    def sink_for(gpus: Mapping[str, sentinel.Gpu]) -> Counter:
        counters.append(Counter(gpus))
        if not real:
            threading.Thread(target=visit, args=counters, daemon=True).start()
        return counters[0]

    code = sentinel.supervise(options, sink_for)
    print(f"exit code {code:d}, hand-overs: {counters[0].handovers}")
    return int(code)


if __name__ == "__main__":  # child processes import this file, too
    sys.exit(main())
