"""Cells for several GPUs exist only where there are several; a lost turn is a refusal."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.handover import cells
from benchmarks.host_gpus import Card, SimulatedHost
from benchmarks.processes import Line, Program, Rig
from benchmarks.report import Report
from benchmarks.results import Results
from benchmarks.several_gpus import _answer, _turns
from tests.harness.parameters import mostly_long

CUDA_ONLY = {"every-gpu-in-turn", "every-gpu-nccl"}
EVERYWHERE = {
    *("every-gpu-at-once", "every-gpu-onlooker", "every-gpu-api-killed"),
    *("every-gpu-probe-killed", "every-gpu-both-probes-killed", "every-gpu-probe-stopped"),
    *("every-gpu-supervisor-killed", "every-gpu-supervisor-stopped"),
}
CARDS = [Card(uuid=f"GPU-{number}", index=number, name="GPU", total=2**30) for number in range(3)]


@mostly_long(
    "gpus, kind, expected",
    [
        (1, "simulated", set()),
        (2, "simulated", EVERYWHERE),
        (2, "real", EVERYWHERE | CUDA_ONLY),
    ],
)
def test_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, kind: str, expected: set[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    host = SimulatedHost(tmp_path / "gpus", gpus)
    if kind == "real":
        host.simulation = None
    rig = Rig(host, tmp_path / "log", "300ms")
    names = [cell.name for cell in cells(rig, quick=True)]
    rig._errors.close()
    assert {name for name in names if name.startswith("every-gpu-")} == expected
    assert len(names) == len(set(names))


@contextlib.contextmanager
def written(tmp_path: Path, *lines: Line) -> Iterator[Program]:
    """Run a program that waits for a line and writes these lines."""
    text = "\n".join(json.dumps(line) for line in lines)
    with (tmp_path / "log").open("a") as errors:
        program = Program([sys.executable, "-c", f"input(); print({text!r})"], {}, errors)
    with program.process:
        yield program
        program.end()


def test_turns(tmp_path: Path) -> None:
    lines: list[Line] = [{"turn": 0, "got": True, "free": 7}, {"got": False, "error": "no context"}]
    with written(tmp_path, *lines) as program:
        records = _turns(program, CARDS)
    assert [record["gpu"] for record in records] == [0, 1, 2]
    assert [record["got"] for record in records] == [True, False, False]
    assert records[0]["free"] == 7
    assert records[2]["error"] == "no context"


def test_a_rank_that_ends_early_is_an_error(tmp_path: Path) -> None:
    with written(tmp_path, {"got": True, "memory_s": 0.5}) as program:
        program.send_line("go")
        assert _answer(program, "got")["memory_s"] == 0.5
        assert not _answer(program, "all_reduce")["all_reduce"]


def test_a_job_on_several_gpus_has_only_the_bar_of_its_memory(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    record = {"newcomer": "nccl", "got": True, "memory_s": 0.5, "reader_error": "no growth"}
    results.add({"cell": "every-gpu-nccl", "round": 0, **record})
    report = Report(results)
    assert "1 of 1" in report.render()
    assert not report.failed
    results.add({"cell": "every-gpu-nccl", "round": 0, **record, "got": False})
    report.render()
    assert report.failed == ["every-gpu-nccl: got the memory"]
