"""Run a benchmark as a command, with results in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.results import Results
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program
from tests.harness.timing import TIMEOUT_S

#: No newcomer gives up on a machine that freezes for a while.
PATIENT = ("--limit", str(TIMEOUT_S))


def run_benchmark(program: str, folder: Path, *flags: str) -> tuple[Results, str]:
    """Run a benchmark in its short form; return its results and its output."""
    file = folder / "results.jsonl"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SENTINEL_")}
    done = run_program(
        sys.executable,
        "-m",
        f"benchmarks.{program}",
        "--results",
        str(file),
        *PATIENT,
        *flags,
        cwd=ROOT,
        env=kept | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.STDOUT,
        timeout=4 * TIMEOUT_S,
    )
    assert file.exists(), done.stdout
    return Results(file), done.stdout
