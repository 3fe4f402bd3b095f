"""Independent watch of a GPU: the time at which its used memory first grows.

A separate process that reads the used memory every millisecond. ``arm`` on its standard input makes
the present value the baseline. The first reading at least 1 MiB above it is printed, with the time
before the read. It takes a tenth of a core, so it does not run while costs are measured.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.die_with_parent import end_with_parent
from benchmarks.host_gpus import RealHost
from benchmarks.measured_line import write_line
from sentinel.host.simulation import Registry

_GROWTH = 2**20
_EVERY = 0.001


def main() -> None:
    """Read one GPU without end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--simulation")
    given = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    if given.simulation:
        registry = Registry(Path(given.simulation))

        def used() -> int:
            return registry.memory(given.gpu).used
    else:
        host = RealHost()

        def used() -> int:
            return host.used(given.gpu)

    write_line(ready=True, pid=os.getpid())
    watch(used)


def watch(used: Callable[[], int]) -> None:
    """Read commands: ``arm`` starts to watch for growth."""
    level: int | None = None
    before = time.monotonic()
    while True:
        if select.select([sys.stdin], [], [], _EVERY)[0]:
            if not sys.stdin.readline():
                return
            level = used()
            before = time.monotonic()
            write_line(armed=level)
        at = time.monotonic()
        now = used()
        if level is not None and now - level >= _GROWTH:
            # It grew between the end of the previous read and now.
            write_line(grown_at=at, not_before=before, took=time.monotonic() - at, by=now - level)
            level = None
        before = at


if __name__ == "__main__":
    main()
