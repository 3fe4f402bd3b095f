"""Foreign jobs on simulated GPUs, each a process of its own, forked by this small program.

It reads one job per line: ``{"job": 7, "gpus": [UUID, ...], "size": BYTES, "stay": SECONDS}``. A
job behaves like a CUDA program: its context begins with a few MiB on each GPU, and it requests the
rest in one allocation per GPU, once. A driver lets that allocation wait for a killed process; a
simulated GPU does not, so a job waits for free memory by itself, up to a limit. It prints how long
that was after its first byte, independently of what Sentinel reports.

``end`` is how a job ends: ``exit``, ``crash`` (by SIGKILL) or ``fork`` (a forked process with its
own share stays on the GPU after its parent). It knows nothing of Sentinel.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.die_with_parent import end_with_parent
from sentinel.host.simulation import Membership, Registry

#: The first memory of a context, in bytes; see sentinel/cli/tools/demo.py.
FIRST_BYTES = 13 * 2**20
#: How often a job looks at the free memory, in seconds.
_LOOK_S = 0.005

Order = dict[str, Any]


def write_line(**fields: object) -> None:
    """Write one line in one piece: many jobs share the pipe."""
    os.write(1, (json.dumps(fields) + "\n").encode())


class Job:
    """One foreign job, in its own process.

    Args:
        registry: The simulated GPUs.
        order: The job, as read.
        limit_s: How long it waits for free memory after its first byte, in seconds.
    """

    def __init__(self, registry: Registry, order: Order, limit_s: float) -> None:
        self._registry = registry
        self._order = order
        self._number = order["job"]
        self._size = order["size"]
        self._limit_s = limit_s

    def run(self) -> None:
        """Take the memory on each GPU, stay, and end as ordered."""
        # Beside a stressor there is room for a small job: that is no hand-over.
        gpus = self._order["gpus"]
        waits = any(self._registry.memory(gpu).free < self._size for gpu in gpus)
        began = time.monotonic()
        members = [self._registry.attach(gpu) for gpu in gpus]
        got = all(member.allocate(FIRST_BYTES) for member in members)
        write_line(job=self._number, event="began", at=began, pid=os.getpid())
        rest = self._size - FIRST_BYTES
        while time.monotonic() < began + self._limit_s:
            if all(self._registry.memory(gpu).free >= rest for gpu in gpus):
                break
            time.sleep(_LOOK_S)
        waited = time.monotonic() - began
        got = got and all(member.allocate(rest) for member in members)
        write_line(job=self._number, event="got", got=got, wait_s=waited if waits else None)
        if got:
            self._stay(members)
        write_line(job=self._number, event="left", at=time.monotonic())
        if self._order.get("end") == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        for member in members:
            member.close()

    def _stay(self, members: list[Membership]) -> None:
        stay_s = self._order["stay"]
        if self._order.get("end") != "fork":
            time.sleep(stay_s)
            return
        time.sleep(stay_s / 2)
        for member in members:
            member.free(self._size // 2)
        read, write = os.pipe()
        if not os.fork():
            # The kernel's locks belong to the process, so the new one joins by itself.
            heirs = [self._registry.attach(gpu) for gpu in self._order["gpus"]]
            taken = all(heir.allocate(self._size // 2) for heir in heirs)
            os.write(write, b"1")
            time.sleep(stay_s / 2)
            write_line(job=self._number, event="ended", got=taken)
            os._exit(0)
        os.read(read, 1)


def main() -> None:
    """Fork one process for each line; the kernel reaps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulation", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--limit", type=float, default=5.0, metavar="SECONDS")
    given = parser.parse_args()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    registry = Registry(given.simulation)
    write_line(ready=True, pid=os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork():
            continue
        code = 1
        try:
            end_with_parent(signal.SIGKILL)
            Job(registry, order, given.limit).run()
            code = 0
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()
