"""How long commands take to start, compared with Python: ``python -m benchmarks.commands``."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

#: The commands, and the maximum ratio of their duration to that of ``python -c pass``.
BARS: dict[tuple[str, ...], float | None] = {
    ("-m", "sentinel", "--help"): 6.0,
    ("-m", "sentinel", "--version"): None,
    ("-c", "import sentinel; sentinel.connect('/nowhere')"): None,
    ("-m", "sentinel", "status", "--socket", "/nowhere/sentinel.sock"): None,
    ("-m", "sentinel", "run", "--help"): None,
}


def main() -> int:
    """Measure each in alternation; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    commands = [("-c", "pass"), *BARS]
    took: dict[tuple[str, ...], list[float]] = {command: [] for command in commands}
    for number in range(rounds + 1):
        for command in commands:
            seconds = _run(command)
            if number:  # the first round reads everything from the disk
                took[command].append(seconds)
    base = statistics.median(took["-c", "pass"])
    missed = False
    print("| python ... | median | of `-c pass` | bar |\n|---|---|---|---|")
    for command in commands:
        median, bar = statistics.median(took[command]), BARS.get(command)
        ratio = median / base
        missed |= bar is not None and ratio > bar
        verdict = "" if bar is None else f"{bar:g}, {'kept' if ratio <= bar else 'MISSED'}"
        print(f"| `{' '.join(command)}` | {median * 1000:.0f} ms | {ratio:.1f} | {verdict} |")
    return int(missed)


def _run(command: Sequence[str]) -> float:
    """Return the seconds that one run takes."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("SENTINEL_")}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
