"""The counters of one GPU, read beside children that another thread watches."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.diagnostics.counters import read_counters
from sentinel.diagnostics.counters_process import read_counters_apart
from sentinel.host.gpus.simulation import Registry
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


def test_they_are_those_of_a_reading_here(tmp_path: Path) -> None:
    registry = Registry.create(tmp_path, 2)
    uuid = registry.gpus()[1].uuid
    registry.inject_figures(uuid, {"remap_failed": True})
    (here,) = read_counters(tmp_path, [uuid]).counters
    (apart,) = read_counters_apart(tmp_path, uuid).counters
    assert apart.remap_failed
    assert replace(apart, at=here.at, energy_j=here.energy_j) == here


def test_no_child_of_this_process_is_reaped(tmp_path: Path) -> None:
    """The supervisor must see the exit of its children itself, while they keep their PIDs."""
    uuid = Registry.create(tmp_path, 1).gpus()[0].uuid
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()

    def exited() -> bool:
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, child.pid or 0, flags) is not None

    eventually(exited)
    assert read_counters_apart(tmp_path, uuid).counters
    assert exited(), "it was reaped"
    child.join()


def test_a_process_that_fails_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = Registry.create(tmp_path, 1).gpus()[0].uuid
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = read_counters_apart(tmp_path, uuid)
    assert result.counters == ()
    assert "exit status 1" in str(result.driver_error)


def test_a_process_that_cannot_be_killed_does_not_delay_the_counters(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import subprocess\n"
        "from sentinel.diagnostics import counters_process\n"
        "from sentinel.diagnostics.counters import CountersResult\n"
        "def read(*_):\n"
        "    subprocess.Popen(['sleep', '600'])  # keeps its standard output\n"
        "    return CountersResult(counters=(), driver_error='stuck', stuck=True)\n"
        "counters_process.read_counters = read\n"
        "counters_process.main('', 'GPU-0')\n"
    )
    command = [sys.executable, "-P", str(tmp_path / "stuck.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            text, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert json.loads(text)["driver_error"] == "stuck"
    assert process.returncode == 0
