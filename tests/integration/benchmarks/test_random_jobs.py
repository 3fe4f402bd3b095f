"""Random jobs: a short run with real processes, and what it sees on the GPUs."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.host_gpus import Card
from benchmarks.random_jobs import Run
from sentinel.host.simulation import Registry
from tests.harness.benchmark_run import run_benchmark
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.long


def test_random_jobs_under_hostile_clients_break_no_invariant(tmp_path: Path) -> None:
    flags = ("--simulate", "6", "--jobs", "20", "--seconds", "20", "--clients", "200")
    results, output = run_benchmark("random_jobs", tmp_path, *flags)
    (record,) = results.of("random jobs")
    assert record["failed"] == [], output
    assert record["jobs"] == 20
    assert record["refused"] == 0
    assert record["handovers"] > 0
    assert record["token_answers"] > 0
    assert 0.9 < record["fullest"] <= 1
    answers = record["clients_answers"]
    for kind in ("malformed: 400", "too large: 431", "wrong token: 401", "half a head: closed"):
        assert answers.get(kind), (kind, answers)


#: Holds a part of a simulated GPU under a title, and ends with its standard input.
MEMBER = """
import sys
from pathlib import Path
from setproctitle import setproctitle
from sentinel.host.simulation import Registry
setproctitle(sys.argv[1])
assert Registry(Path(sys.argv[2])).attach(sys.argv[3]).allocate(2**30)
print("attached", flush=True)
sys.stdin.read()
"""


class QuietDaemon:
    """A daemon without events."""

    def events(self, within: float) -> tuple[()]:
        return ()


@contextmanager
def member(registry: Registry, title: str) -> Iterator[None]:
    (gpu,) = registry.gpus()
    process = piped_program(
        sys.executable, "-c", MEMBER, title, str(registry.folder), gpu.uuid, cwd=ROOT
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "attached\n"
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("title", "wrong"), [("sentinel: keeps idle GPU", 1), ("python train.py", 0)]
)
def test_two_stressors_on_a_gpu_are_seen(tmp_path: Path, title: str, wrong: int) -> None:
    registry = Registry.create(tmp_path, 1)
    (gpu,) = registry.gpus()
    card = Card(uuid=gpu.uuid, index=0, name=gpu.name, total=gpu.memory_total)
    run = Run(
        daemon=cast("Any", QuietDaemon()),
        jobs=cast("Any", None),
        cards=[card],
        registry=registry,
        chance=random.Random(0),
    )
    with ExitStack() as stack:
        for one in ("sentinel: keeps idle GPU", title):
            stack.enter_context(member(registry, one))
        eventually(lambda: len(registry.processes(gpu.uuid)) == 2)
        run.look()
    assert run.wrong["two stressors on a GPU"] == wrong
    assert run.fullest == 2 * 2**30 / gpu.memory_total
