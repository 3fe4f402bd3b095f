"""What the benchmarks of one host share: their options, its GPUs, and the processes on them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.host_gpus import Host, RealHost, SimulatedHost
from benchmarks.processes import Rig
from benchmarks.results import Results
from sentinel.host.paths import SIMULATED


class Named(Protocol):
    """A measurement with a name."""

    @property
    def name(self) -> str:
        """Its name in the results."""


N = TypeVar("N", bound=Named)


def add_options(parser: argparse.ArgumentParser, *, results: str) -> None:
    """Add the options for the file of results and for the GPUs.

    Args:
        parser: The command line.
        results: The default name of the file.
    """
    parser.add_argument("--results", type=Path, default=Path(results), metavar="FILE")
    parser.add_argument("--table", action="store_true", help="only render the results as tables")
    parser.add_argument(
        "--gpus", type=int, nargs="*", default=(), metavar="INDEX", help="use only these GPUs"
    )
    parser.add_argument("--simulate", type=int, default=0, metavar="N", help="simulate N GPUs")


def add_selection(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the options that limit what is measured.

    Args:
        parser: The command line.
        what: What a measurement is called.
    """
    parser.add_argument(
        "--only", default="", metavar=f"{what.upper()},...", help=f"only these {what}s"
    )
    parser.add_argument("--list", action="store_true", help=f"list the {what}s and end")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--rearm", default="300ms", help="how long sentinel leaves a GPU alone")


def selected(every: Sequence[N], only: str) -> list[N]:
    """Return the measurements of these names, or all; an unknown name ends the program."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = set(names) - {cell.name for cell in every}
    if unknown:
        sys.exit(f"not here: {', '.join(sorted(unknown))}; see --list")
    return [cell for cell in every if not names or cell.name in names]


@contextmanager
def host_of(simulate: int, gpus: Collection[int]) -> Iterator[Host]:
    """Return the GPUs to use."""
    if not simulate:
        yield RealHost(gpus)
        return
    with tempfile.TemporaryDirectory(prefix="sentinel-benchmark-") as folder:
        # Several processes with a GPU each share the folder of the one that started them.
        yield SimulatedHost(Path(os.environ.get(SIMULATED, folder)), simulate, gpus)


@contextmanager
def rig_of(given: argparse.Namespace, rearm: str) -> Iterator[Rig]:
    """Run processes on the chosen GPUs; all of them end with the block, also by a signal.

    Args:
        given: The options of ``add_options``.
        rearm: How long sentinel leaves a GPU alone.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # Every way out passes through the clean-up.
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    with ExitStack() as stack:
        host = stack.enter_context(host_of(given.simulate, given.gpus))
        rig = Rig(host, given.results.with_suffix(".log"), rearm)
        stack.callback(rig.reset)
        yield rig


def add_machine(results: Results, host: Host) -> None:
    """Note the machine and the date in the results."""
    machine = {**host.describe(), "date": time.strftime("%Y-%m-%d")}
    results.add({"cell": "machine", "round": results.rounds("machine"), **machine})
