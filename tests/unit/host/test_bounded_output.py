"""The output of processes: bounded without a writer that waits or fails."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.host.logs import bounded_output
from sentinel.host.logs.bounded_output import BoundedOutput
from tests.harness.sentinel_process import eventually

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@pytest.fixture(params=["inotify", "no inotify instance"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "inotify":
        monkeypatch.setattr(bounded_output, "_watch", lambda _: None)
        monkeypatch.setattr(bounded_output, "_POLL_MS", 10)


@pytest.mark.usefixtures("_how")
def test_the_last_lines_and_the_number_of_dropped_bytes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out"
    file = os.open(path, FLAGS)
    with closing(BoundedOutput(file, 1000)) as bounded:
        os.write(file, b"short\n")
        for number in range(300):
            os.write(file, b"line %d\n" % number)
        eventually(lambda: bounded.dropped > 0)
        os.write(file, b"the end\n")
    os.close(file)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("[sentinel: ")
    assert f"{bounded.dropped:,} bytes of output were dropped here]" in lines[0]
    assert lines[-1] == "the end"
    assert all(line.startswith("line ") for line in lines[1:-1])
    assert path.stat().st_size <= 1000


@pytest.mark.usefixtures("_how")
def test_output_below_the_limit_stays_as_it_is(tmp_path: Path) -> None:
    file = os.open(tmp_path / "out", FLAGS)
    with closing(BoundedOutput(file, 1000)) as bounded:
        os.write(file, b"a" * 1000)
    os.close(file)
    assert bounded.dropped == 0
    assert (tmp_path / "out").read_bytes() == b"a" * 1000


def test_a_burst_blocks_and_fails_no_writer(tmp_path: Path) -> None:
    path, size = tmp_path / "out", 20_000_000
    file = os.open(path, FLAGS)
    script = f"import os\nfor _ in range({size // 10_000}): print('x' * 9_999)"
    with closing(BoundedOutput(file, 100_000)) as bounded:
        done = subprocess.run([sys.executable, "-c", script], stdout=file, check=False)
    os.close(file)
    assert done.returncode == 0
    assert path.stat().st_size <= 100_000 + 200
    assert bounded.dropped > 0
