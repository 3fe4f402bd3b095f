"""How a GPU's temperature controls its stressor, with low thresholds: ``benchmarks.thermal``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import sentinel
from benchmarks.results import Record
from benchmarks.thermal_plot import draw_heat
from sentinel.errors import SentinelError

#: Thresholds that an H200 exceeds within seconds of full load, and short pauses, so that a minute
#: shows every state.
FLAGS = (
    *("--throttle", "full"),
    *("--temp-normal-from", "50", "--temp-throttled-from", "56", "--temp-critical-from", "60"),
    *("--cooldown", "8s", "--critical-pause", "12s", "--rearm", "300ms"),
)
#: The sampling interval.
_INTERVAL_S = 0.5


def _look(held: sentinel.Hold, seconds: float) -> Iterator[Record]:
    """Yield the status of the first GPU, twice a second."""
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        try:
            gpu = held.status().gpus[0]
        except SentinelError:  # not started yet
            time.sleep(0.1)
            continue
        yield {
            "s": round(at, 2),
            "gpu": gpu.name,
            "temperature_c": gpu.temperature_c,
            "power_w": gpu.power_w,
            "health": gpu.health,
            "multiplier": gpu.multiplier,
            "stressor": gpu.stressor,
            "share": gpu.share,
        }
        time.sleep(_INTERVAL_S)


def _measure(file: Path, gpu: str, seconds: float) -> None:
    with (
        file.open("w") as lines,
        sentinel.hold(gpus=[gpu], workload="gemm", flags=FLAGS) as held,
    ):
        for record in _look(held, seconds):
            lines.write(json.dumps(record) + "\n")
            lines.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure into a file, or plot one; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thermal", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("heat.jsonl"))
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--plot", type=Path, help="draw the results instead of measuring")
    given = parser.parse_args(arguments)
    if given.plot is None:
        _measure(given.results, given.gpu, given.seconds)
        return 0
    records = [json.loads(line) for line in given.results.read_text().splitlines()]
    draw_heat(records, given.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
