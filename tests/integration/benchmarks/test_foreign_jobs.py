"""Foreign jobs on simulated GPUs: real processes that wait for memory and end in any way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign_jobs import FIRST_BYTES
from sentinel.host.simulation import Registry
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.long


def start_jobs(folder: Path, limit_s: float) -> subprocess.Popen[str]:
    command = ["benchmarks.foreign_jobs", "--simulation", str(folder), "--limit", str(limit_s)]
    process = piped_program(
        sys.executable, "-m", *command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert next_line(process)["ready"]
    return process


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def order(process: subprocess.Popen[str], gpus: Sequence[str], end: str, size: int) -> None:
    assert process.stdin is not None
    job = {"job": 1, "gpus": gpus, "size": size, "stay": 0.1, "end": end}
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ("exit", ["began", "got", "left"]),
        ("crash", ["began", "got", "left"]),
        ("fork", ["began", "got", "left", "ended"]),
    ],
)
def test_a_foreign_job_waits_for_its_memory_and_ends_as_ordered(
    tmp_path: Path, end: str, lines: list[str]
) -> None:
    registry = Registry.create(tmp_path, 2)
    gpus = [gpu.uuid for gpu in registry.gpus()]
    holder = registry.attach(gpus[1])
    assert holder.allocate(registry.memory(gpus[1]).total - FIRST_BYTES)
    with start_jobs(tmp_path, TIMEOUT_S) as process:
        try:
            order(process, gpus, end, registry.memory(gpus[1]).total)
            began = next_line(process)
            assert registry.memory(gpus[0]).used == FIRST_BYTES
            given_at = time.monotonic()
            holder.close()
            got = next_line(process)
            assert got["got"]
            assert got["wait_s"] >= given_at - began["at"]
            rest = [next_line(process) for _ in lines[2:]]
            assert [began["event"], got["event"], *(line["event"] for line in rest)] == lines
            assert rest[-1].get("got", True)
            eventually(lambda: not any(registry.memory(gpu).used for gpu in gpus))
        finally:
            process.kill()


def test_a_foreign_job_is_refused_once_its_time_is_over(tmp_path: Path) -> None:
    registry = Registry.create(tmp_path, 1)
    (gpu,) = (gpu.uuid for gpu in registry.gpus())
    holder = registry.attach(gpu)
    assert holder.allocate(2**30)
    with start_jobs(tmp_path, 0.05) as process:
        try:
            order(process, [gpu], "exit", registry.memory(gpu).total)
            assert [next_line(process)["event"], next_line(process)["got"]] == ["began", False]
        finally:
            process.kill()
    holder.close()
