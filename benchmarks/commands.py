"""What commands cost, compared with Python: ``python -m benchmarks.commands``.

``status`` asks a socket that answers at once with eight GPUs, so that it does all its work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The commands, and the maximum ratio of their processor time to that of ``python -c pass``.
BARS: dict[tuple[str, ...], float | None] = {
    ("-m", "sentinel", "status"): 10.0,
    ("-m", "sentinel", "status", "--list"): 10.0,
    ("-m", "sentinel", "status", "--json"): 10.0,
    ("-m", "sentinel", "--help"): 6.0,
    ("-m", "sentinel", "--version"): None,
    ("-c", "import sentinel; sentinel.connect('/nowhere')"): None,
    ("-m", "sentinel", "status", "--socket", "/nowhere/sentinel.sock"): None,
    ("-m", "sentinel", "run", "--help"): None,
}
_BASE = ("-c", "pass")
_GPUS = 8


@dataclass(frozen=True)
class _Cost:
    """What one run took, in seconds."""

    elapsed_s: float
    processor_s: float


def main() -> int:
    """Measure each in alternation; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    commands = [_BASE, *BARS]
    costs: dict[tuple[str, ...], list[_Cost]] = {command: [] for command in commands}
    with _answering_socket() as socket:
        for number in range(rounds + 1):
            for command in commands:
                cost = _run(command, socket)
                if number:  # the first round reads everything from the disk
                    costs[command].append(cost)
    base = _processor_s(costs[_BASE])
    missed = False
    print("| python ... | elapsed | processor | of `-c pass` | bar |\n|---|---|---|---|---|")
    for command in commands:
        elapsed = statistics.median(cost.elapsed_s for cost in costs[command])
        used, bar = _processor_s(costs[command]), BARS.get(command)
        ratio = used / base
        missed |= bar is not None and ratio > bar
        verdict = "" if bar is None else f"{bar:g}, {'kept' if ratio <= bar else 'MISSED'}"
        times = f"{elapsed * 1000:.0f} ms | {used * 1000:.0f} ms"
        print(f"| `{' '.join(command)}` | {times} | {ratio:.1f} | {verdict} |")
    return int(missed)


def _processor_s(costs: Sequence[_Cost]) -> float:
    return statistics.median(cost.processor_s for cost in costs)


def _run(command: Sequence[str], socket: Path) -> _Cost:
    """Run one command."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("SENTINEL_")}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command],
        env={**environment, "SENTINEL_SOCKET": str(socket)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return _Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


# --- a daemon --------------------------------------------------------------------------------


def _gpu(index: int) -> dict[str, Any]:
    """Build the state of a busy GPU, as the API sends it."""
    return {
        "uuid": f"GPU-{index:08d}-67d8-5168-8d5a-083882c8d660",
        "index": index,
        "name": "NVIDIA H200",
        "memory_total": 141 * 2**30,
        "memory_used": 130 * 2**30,
        "occupancy": "BUSY",
        "stressor": "STOPPED",
        "admin": "ENABLED",
        "reason": "in use",
        "utilization": 0.97,
        "temperature_c": 64,
        "power_w": 643.0,
        "processes": [{"pid": os.getpid(), "name": "python", "user": "ana", "memory": 2**37}],
    }


@contextlib.contextmanager
def _answering_socket() -> Iterator[Path]:
    """Serve the status of a daemon on a socket."""
    daemon = {
        "pid": os.getpid(),
        "host": "node7",
        "version": "0",
        "phase": "waiting",
        "since": "2026-11-21T20:00:00+00:00",
        "driver": "580.159.04",
        "workload": "gemm",
        "socket": "-",
    }
    status = {"schema_version": 1, "daemon": daemon, "gpus": [_gpu(n) for n in range(_GPUS)]}
    body = json.dumps(status).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(head.encode() + body)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        with socketserver.UnixStreamServer(str(path), Answer) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield path
            finally:
                server.shutdown()
                thread.join()


if __name__ == "__main__":
    sys.exit(main())
