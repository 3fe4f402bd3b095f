"""Whole sentinels that read the GPUs through the driver of a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sentinel.config.specs import DRIVERS as GROUP
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import run_program
from tests.harness.registered import register_package
from tests.harness.sentinel_process import eventually

Run = Callable[..., subprocess.CompletedProcess[str]]
DRIVERS = {
    "own": "own_drivers:Counting",
    "good": "own_drivers:Good",
    "bad": "own_drivers:refuses",
    "hangs": "own_drivers:Hangs",
    "raises": "own_drivers:Raises",
}


@pytest.fixture
def package(tmp_path: Path) -> str:
    """Install a package with drivers; return the path to import from."""
    return register_package(tmp_path, GROUP, "own_package", DRIVERS)


@pytest.fixture
def run(simulated: SimulatedHost, package: str, tmp_path: Path) -> Run:
    """Return a function that runs a command of sentinel."""

    def run_one(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        paths = {"PYTHONPATH": package, "XDG_STATE_HOME": str(tmp_path)}
        environment = simulated.environment(**paths, **more)
        del environment["SENTINEL_SIM_DIR"]  # it would mean the built-in simulated GPUs
        return run_program(sys.executable, "-m", "sentinel", *words, env=environment)

    return run_one


class OwnDriverHost(SimulatedHost):
    """Simulated GPUs that the probe reads through the driver of a package."""

    module = "sentinel_over_driver"


FLAGS = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold", "--unwatched-after", "5s")


@pytest.fixture
def own(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> OwnDriverHost:
    monkeypatch.setenv("PYTHONPATH", package, prepend=os.pathsep)
    return OwnDriverHost(tmp_path / "gpus")


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_gpus_of_another_driver_are_held_and_yielded(own: OwnDriverHost) -> None:
    """Their stressor cannot watch them itself: the probe alone sees the newcomer."""
    with own.sentinel(1, *FLAGS) as sentinel:
        assert sentinel.wait_for("sentinel.started")["driver"] == "own simulated"
        sentinel.wait_for("stressor.ready")
        with own.job(0) as newcomer:
            assert newcomer.got_memory()
            newcomer.wait_for_exit()
        sentinel.wait_for("gpu.handed_over")
        sentinel.wait_for("stressor.ready", count=2)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_fault_of_such_a_driver_ends_the_stressor(own: OwnDriverHost) -> None:
    with own.sentinel(1, *FLAGS) as sentinel:
        sentinel.wait_for("stressor.ready")
        own.registry.inject(own.uuid(), "error")
        sentinel.wait_for("gpu.unknown")
        eventually(own.empty)


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_at_a_slow_poll_a_gpu_in_use_is_read_rarely(own: OwnDriverHost) -> None:
    """A held GPU is read as often as a hand-over needs, and readings of the other do not expire."""
    own.registry.create(own.folder, 2)
    calls = own.folder / "calls"

    def count(call: str, gpu: int) -> int:
        return calls.read_text().splitlines().count(f"{call} {own.uuid(gpu)}")

    with ExitStack() as stack:
        # The job is there before the first reading, so that nothing changes later.
        job = stack.enter_context(own.job(0, share=0.5, stay=600.0))
        assert job.got_memory()
        sentinel = stack.enter_context(own.sentinel(2, *FLAGS, "--poll", "10m"))
        sentinel.wait_for("stressor.ready", gpu=1)
        before = count("processes", 0)
        # Every 25 ms: these take 7.5 s, longer than a reading of a held GPU counts.
        eventually(lambda: count("memory", 1) > 300)
        assert count("processes", 0) <= before + 1
        with own.job(1) as newcomer:
            assert newcomer.got_memory()
            newcomer.wait_for_exit()
        sentinel.wait_for("gpu.handed_over", gpu=1)
        assert not {"gpu.unknown", "probe.hung", "gpu.unwatched"} & set(sentinel.names())


@pytest.mark.long
def test_a_survey_reads_through_the_driver_of_the_setting(run: Run) -> None:
    done = run("run", "--once", "--log-format", "json", "--driver", "good")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
    assert [row["gpu"]["uuid"] for row in rows] == ["OWN-0000", "OWN-0001"]
    assert [row["occupancy"] for row in rows] == ["IDLE", "BUSY"]


@pytest.mark.long
def test_an_unusable_driver_ends_the_start_and_names_itself(run: Run) -> None:
    done = run("run", "--list", SENTINEL_DRIVER="bad:library=/x")
    assert done.returncode == 5
    assert "driver bad of own_package 0.1.0 (own_drivers:refuses) cannot be loaded" in done.stderr
    assert "OSError: no such library: {'library': '/x'}" in done.stderr


@pytest.mark.long
def test_an_unknown_driver_is_refused(run: Run) -> None:
    done = run("run", "--list", "--driver", "godo")
    assert done.returncode == 2
    assert "there is no driver 'godo'; known are nvml, bad, good, hangs, own, raises" in done.stderr


@pytest.mark.long
def test_the_probe_alone_imports_the_driver(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "imports"
    done = run("run", "--list", "--driver", "good", OWN_DRIVERS_LOG=str(log))
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == ["sentinel: probe, reads GPUs"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("driver", "found"),
    [
        ("good", "good 1.2, driver good of own_package 0.1.0 (own_drivers:Good)"),
        ("bad", "cannot be loaded: OSError"),
        ("godo", "there is no driver 'godo'"),
    ],
)
def test_the_doctor_inspects_the_driver_of_the_setting(driver: str, found: str, run: Run) -> None:
    file = os.devnull
    done = run("doctor", "--json", SENTINEL_DRIVER=driver, SENTINEL_CONFIG=file)
    lines = json.loads(done.stdout)["lines"]
    (line,) = [one for one in lines if one["check"] == "driver"]
    assert found in line["found"]
    assert line["level"] == ("ok" if driver == "good" else "problem")


@pytest.mark.long
@pytest.mark.parametrize(
    ("driver", "check", "found"),
    [
        ("good", "process list", [("ok", "0 computing"), ("ok", "1 computing")]),
        ("raises:call=processes", "process list", [("problem", "KeyError")] * 2),
        ("hangs", "answers", [("problem", "did not answer in time")] * 2),
    ],
)
def test_the_doctor_reads_the_gpus_of_the_driver(
    driver: str, check: str, found: list[tuple[str, str]], run: Run
) -> None:
    """A driver that lists processes is not said to list none."""
    done = run("doctor", "--json", SENTINEL_DRIVER=driver, SENTINEL_CONFIG=os.devnull)
    lines = [one for one in json.loads(done.stdout)["lines"] if one["check"] == check]
    assert len(lines) == len(found), done.stdout
    for line, (level, part) in zip(lines, found, strict=True):
        assert (line["level"], part in line["found"]) == (level, True), line
