"""The demonstration shows a hand-over."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sentinel.cli.tools import demo
from tests.harness.timing import TIMEOUT_S

SCRIPT = """
import sys, sentinel.cli.tools.demo as demo
demo.SHOW_S = 1.0
sys.exit(demo.command([], standalone_mode=False))
"""


@pytest.mark.long
def test_the_demo_shows_a_hand_over_and_exits_with_0() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
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


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_the_demo_ends_if_no_gpu_is_occupied(monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import sentinel.cli.tools.demo as demo; demo.START_TIMEOUT_S = 5.0{SCRIPT}"
    monkeypatch.setenv("SENTINEL_WORKLOAD", "gemm")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "Not all GPUs were occupied within 5 s." in done.stdout
    assert "demo job" not in done.stdout
