"""Start two daemons at the same moment, repeatedly: ``python -m benchmarks.rivals``.

On simulated GPUs. Exactly one of each pair must win, and the other must name it. The winner is then
killed at a random moment, and the next pair starts at once over what it left behind. No GPU may
ever be held twice. The exit code is 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sentinel.host.paths import Places, places
from sentinel.host.registry import running
from sentinel.host.simulation import Registry

#: A fast daemon with a workload that leaves the CPU to other processes.
DAEMON = (sys.executable, "-m", "sentinel", "run", "--daemon", "--simulate", "1", "--rearm=300ms")
FLAGS = ("--poll=100ms", "--workload=hold")
#: How long the loser may take to end, and a daemon to hold its GPU.
TIMEOUT_S = 60.0
#: The winner is killed within so many seconds: most hold their GPU by then.
MAX_LIFE_S = 4.0


def main() -> int:
    """Start pair after pair; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    query = parser.parse_args()
    chance = random.Random(query.seed)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="sentinel-rivals-") as name:
        folder = Path(name)
        environment = {
            **{key: text for key, text in os.environ.items() if not key.startswith("SENTINEL_")},
            "SENTINEL_SIM_DIR": name,
            "SENTINEL_CONFIG": os.devnull,
        }
        where = places(environment, os.getuid(), folder)
        for number in range(query.pairs):
            # Every second winner is killed early, while it is still starting.
            life = chance.uniform(0, MAX_LIFE_S if number % 2 else MAX_LIFE_S / 8)
            seen.update(_pair(environment, where, life))
        seen.update(_afterwards(Registry(folder)))
    print("| of each pair | times |\n|---|---|")
    for what, times in sorted(seen.items()):
        print(f"| {what} | {times} |")
    good = seen["one won and the other named it"] == query.pairs
    return int(not good or any(what.startswith("WRONG") for what in seen))


def _pair(environment: dict[str, str], where: Places, life: float) -> Counter[str]:
    """Start two, kill the winner after ``life`` seconds, and return the observations."""
    with tempfile.TemporaryFile() as words:
        two = [
            subprocess.Popen(
                [*DAEMON, *FLAGS], env=environment, stdout=words, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        try:
            seen = _judge(two, where)
            seen.update(_watch(Registry(where.state), time.monotonic() + life))
        finally:
            for process in two:
                process.kill()
        for process in two:
            process.communicate()
    return seen


def _judge(two: list[subprocess.Popen[str]], where: Places) -> Counter[str]:
    """Return whether one of two won, and the other named it."""
    until = time.monotonic() + TIMEOUT_S
    while all(process.poll() is None for process in two) and time.monotonic() < until:
        time.sleep(0.01)
    losers = [process for process in two if process.poll() is not None]
    if len(losers) != 1:
        return Counter([f"WRONG: {len(losers)} ended"])
    (loser,) = losers
    (winner,) = [process for process in two if process is not loser]
    assert loser.stderr is not None
    error = loser.stderr.read()
    named = f"a daemon runs already: pid {winner.pid} " in error
    if loser.returncode != 75 or not named or running(where) != winner.pid:  # noqa: PLR2004
        return Counter([f"WRONG: exit code {loser.returncode}: {error.strip()}"])
    return Counter(["one won and the other named it"])


def _watch(registry: Registry, until: float) -> Counter[str]:
    """Watch the GPU until the winner is killed, and return how it was held."""
    most = 0
    while time.monotonic() < until:
        most = max(most, _holders(registry))
        time.sleep(0.01)
    if most > 1:
        return Counter([f"WRONG: {most} held the GPU"])
    return Counter(["its GPU was held when it was killed" if most else "its GPU was not held yet"])


def _holders(registry: Registry) -> int:
    """Return the number of processes that hold memory of the GPU."""
    return sum(
        bool(process.memory) for gpu in registry.gpus() for process in registry.processes(gpu.uuid)
    )


def _afterwards(registry: Registry) -> Counter[str]:
    """Return whether the GPU is free at the end."""
    until = time.monotonic() + TIMEOUT_S
    while _holders(registry) and time.monotonic() < until:
        time.sleep(0.01)
    return Counter(["WRONG: the GPU is held after the last"] if _holders(registry) else [])


if __name__ == "__main__":
    sys.exit(main())
