"""Read the counters of one GPU from any thread of a process that has children of its own.

To start a child of multiprocessing reaps all that have exited, which only the thread that watches
them may do. So the read has a process of its own, which is none of multiprocessing's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from sentinel.diagnostics.counters import CountersResult, read_counters
from sentinel.protocol.codec import DecodeError, from_json

#: More than the timeouts of all calls for one GPU, in seconds.
_TIMEOUT_S = 300.0


def read_counters_apart(simulation: Path | None, uuid: str) -> CountersResult:
    """Read the counters of one GPU.

    Args:
        simulation: The folder of simulated GPUs, or None for the driver.
        uuid: The GPU.

    Returns:
        No counters, with the reason as the error of the driver, if the process fails.
    """
    folder = "" if simulation is None else str(simulation)
    command = [sys.executable, "-P", "-m", __name__, folder, uuid]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl+C is for the run
            timeout=_TIMEOUT_S,
            check=True,
        )
        return from_json(CountersResult, json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, DecodeError, ValueError) as error:
        return CountersResult(counters=(), driver_error=str(error), stuck=False)


def main(folder: str, uuid: str) -> None:
    """Print the counters as JSON, and exit also if a process survives SIGKILL."""
    # That process must not keep the output open, whose end is waited for.
    with os.fdopen(os.dup(1), "w") as output:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        result = read_counters(Path(folder) if folder else None, [uuid])
        output.write(json.dumps(asdict(result)))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
