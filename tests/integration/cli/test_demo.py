"""The demonstration shows a hand-over."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cli.tools import demo
from sentinel.host.simulation import Registry
from tests.harness.programs import run_program

SCRIPT = """
import sys, sentinel.cli.tools.demo as demo
demo.SHOW_S = 1.0
sys.exit(demo.command([], standalone_mode=False))
"""


@pytest.mark.long
def test_the_demo_shows_a_hand_over_and_exits_with_0() -> None:
    done = run_program(sys.executable, "-c", SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    story = (
        *("GPU 0     occupied", "demo job", "GPU 0     yielding", "GPU 0     handed over"),
        *("ends and frees", "GPU 0     occupied", "stopping", "exit code 0"),
        "The foreign job got its memory.",
    )
    rest = done.stdout
    for word in story:
        assert word in rest, f"no {word!r} in its place in:\n{done.stdout}"
        rest = rest.partition(word)[2]
    assert "GPU 0 got its" in done.stdout
    assert re.search(r"GPU 0     busy +used by foreign processes: demo-job \(pid", done.stdout)
    assert "GPU 1     yielding" not in done.stdout


def test_the_demo_ends_with_the_output_of_its_supervisor() -> None:
    """The process exits some time later, which nothing reports."""
    command = ["bash", "-c", "echo ended; exec >&-; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as silent:
        try:
            assert not demo._Output(silent).show_occupied({0: 1})
            assert silent.poll() is None
        finally:
            silent.kill()


@pytest.mark.parametrize("seconds", [0.05, 2.0])
def test_the_context_of_a_job_never_stops_growing_for_long(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpu,) = Registry.create(tmp_path, 1).gpus()
    with contextlib.closing(Registry(tmp_path).attach(gpu.uuid)) as membership:
        held, pauses = [], []

        def sleep(pause: float) -> None:
            held.append(membership.held)
            pauses.append(pause)

        monkeypatch.setattr("time.sleep", sleep)
        assert demo._grow(membership, demo._Report(gpu, text=True), seconds)
    assert held == sorted(set(held))
    assert held[0] == 13 * 2**20
    assert (len(held) == len(demo.CONTEXT_STEPS)) == (seconds == 0.05)
    assert max(pauses) <= 0.05
    assert sum(pauses) == pytest.approx(seconds)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_the_demo_ends_if_no_gpu_is_occupied(monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import sentinel.cli.tools.demo as demo; demo.START_TIMEOUT_S = 5.0{SCRIPT}"
    monkeypatch.setenv("SENTINEL_WORKLOAD", "gemm")
    done = run_program(sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (1, "")
    assert "Not all GPUs were occupied within 5 s." in done.stdout
    assert "demo job" not in done.stdout
