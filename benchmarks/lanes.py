"""Run a benchmark on each GPU at the same time: a process for each, over the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.host_gpus import Host
from sentinel.host.paths import SIMULATED


def run_lanes(host: Host, program: str, arguments: Sequence[str]) -> None:
    """Run the lanes of a program until all have ended.

    Args:
        host: The GPUs; simulated ones are shared by all lanes.
        program: The module.
        arguments: Its command line, without its lane.
    """
    simulated = {SIMULATED: host.simulation} if host.simulation is not None else {}
    command = (*(sys.executable, "-m", "benchmarks.die_with_parent"), sys.executable, "-m", program)
    lanes = [
        subprocess.Popen(
            [*command, *arguments, "--gpus", str(card.index), "--lane", str(card.index)],
            env=os.environ | simulated,
        )
        for card in host.cards
    ]
    for lane in lanes:
        lane.wait()
