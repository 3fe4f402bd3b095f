"""Whole sentinels that read the GPUs through the driver of a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sentinel.config.specs import DRIVERS as GROUP
from sentinel.errors import ExitCode
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import run_program
from tests.harness.registered import register_package
from tests.harness.sentinel_process import eventually

pytestmark = pytest.mark.long

Run = Callable[..., subprocess.CompletedProcess[str]]
DRIVERS = {
    "own": "own_drivers:Counting",
    "wrong": "own_drivers:Nonsense",
    "good": "own_drivers:Good",
    "empty": "own_drivers:Empty",
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
    """Simulated GPUs that the probe reads through the driver of a package.

    Args:
        folder: Their folder.
        driver: The name of the driver.
    """

    module = "sentinel_over_driver"

    def __init__(self, folder: Path, driver: str = "own") -> None:
        super().__init__(folder)
        self._driver = driver

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**more) | {"OWN_DRIVER": self._driver}

    @contextmanager
    def nonsense(self, *lines: str) -> Iterator[None]:
        """Let calls of the driver ``wrong`` do something else; see ``own_drivers.Nonsense``."""
        file = self.folder / "nonsense"
        file.write_text("\n".join(lines))
        yield
        file.unlink()


FLAGS = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold", "--unwatched-after", "5s")


@pytest.fixture
def own(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> OwnDriverHost:
    monkeypatch.setenv("PYTHONPATH", package, prepend=os.pathsep)
    return OwnDriverHost(tmp_path / "gpus")


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


@pytest.fixture
def wrong(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> OwnDriverHost:
    monkeypatch.setenv("PYTHONPATH", package, prepend=os.pathsep)
    return OwnDriverHost(tmp_path / "gpus", "wrong")


#: What a call does for one GPU, and a part of the reason; None if it says nothing of idleness.
NONSENSE = {
    ("memory", "huge"): "driver wrong: memory() returned Memory(total=1000",
    ("memory", "unprintable"): "driver wrong: memory() returned <Unprintable instance",
    ("memory", "exits"): "driver wrong: memory() raised SystemExit: 3",
    ("memory", "long"): "no ?[31m?no",
    ("memory", "bare"): "no kind of error",
    ("processes", "many"): "allowed are 10000; raise TooManyProcessesError for more",
    ("processes", "too many"): "driver wrong: processes() raised TooManyProcessesError",
    ("telemetry", "reasons"): None,
    ("telemetry", "hot"): None,
    ("utilization", "digits"): None,
}


@pytest.mark.usefixtures("fake_torch")
def test_nonsense_about_a_gpu_releases_it_with_the_reason_and_no_other(
    wrong: OwnDriverHost,
) -> None:
    lines = [f"{call} {gpu} {what}" for gpu, (call, what) in enumerate(NONSENSE)]
    reasons = dict(enumerate(NONSENSE.values()))
    released = [gpu for gpu, reason in reasons.items() if reason]
    kept = [gpu for gpu in reasons if gpu not in released]
    with wrong.sentinel(len(lines), *FLAGS, api=True) as sentinel:
        for gpu in reasons:
            sentinel.wait_for("stressor.ready", gpu=gpu)
        with wrong.nonsense(*lines):
            for gpu in released:
                assert str(reasons[gpu]) in sentinel.wait_for("gpu.unknown", gpu=gpu)["reason"]
                eventually(partial(wrong.empty, gpu))
            with wrong.job(kept[0], stay=0.1) as newcomer:
                assert newcomer.got_memory()
            sentinel.wait_for("stressor.ready", gpu=kept[0], count=2)
            started = [sentinel.names(gpu).count("stressor.starting") for gpu in released]
            assert set(started) == {1}
        for gpu in released:
            sentinel.wait_for("stressor.ready", gpu=gpu, count=2)
        for gpu in kept:
            assert not {"gpu.unknown", "stressor.stopped"} & set(sentinel.names(gpu))
        assert "probe.exited" not in sentinel.names()
        assert sentinel.stop() == 0
    assert sentinel.errors == ""


@pytest.mark.usefixtures("fake_torch")
def test_a_call_that_ends_the_process_costs_its_gpu_alone(wrong: OwnDriverHost) -> None:
    with wrong.sentinel(2, *FLAGS) as sentinel:
        for gpu in (0, 1):
            sentinel.wait_for("stressor.ready", gpu=gpu)
        sentinel.wait_for_process("spare probe")
        with wrong.nonsense("memory 0 ends 3"):
            exited = sentinel.wait_for("probe.exited")
            assert (exited["index"], exited["call"], exited["exit_code"]) == (0, "memory", 3)
            eventually(wrong.empty)
            sentinel.wait_for("probe.ready")
            with wrong.job(1, stay=0.1) as newcomer:
                assert newcomer.got_memory()
            sentinel.wait_for("stressor.ready", gpu=1, count=2)
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert "crashed in memory" in sentinel.wait_for("gpu.unknown")["reason"]
        assert "gpu.unknown" not in sentinel.names(1)
        assert sentinel.names().count("probe.exited") == 1
    assert sentinel.errors == ""


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("change", ["no more", "others", "swapped"])
def test_a_list_of_gpus_that_changes_costs_no_gpu(wrong: OwnDriverHost, change: str) -> None:
    """Each probe reads the list once; GPUs are known by their UUID."""
    with wrong.sentinel(2, *FLAGS) as sentinel:
        for gpu in (0, 1):
            sentinel.wait_for("stressor.ready", gpu=gpu)
        sentinel.wait_for_process("spare probe")
        with wrong.nonsense(f"gpus - {change}"):
            sentinel.wait_for_process("probe, reads").kill()
            sentinel.wait_for("probe.ready")
            with wrong.job(0, stay=0.1) as newcomer:
                assert newcomer.got_memory()
            sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert not {"gpu.unknown", "driver.unavailable"} & set(sentinel.names())
    assert sentinel.errors == ""


@pytest.mark.usefixtures("fake_torch")
def test_an_impossible_list_of_gpus_is_named_and_read_again(wrong: OwnDriverHost) -> None:
    with wrong.sentinel(1, *FLAGS) as sentinel:
        sentinel.wait_for("stressor.ready")
        sentinel.wait_for_process("spare probe")
        with wrong.nonsense("gpus - first twice"):
            sentinel.wait_for_process("probe, reads").kill()
            reason = sentinel.wait_for("driver.unavailable")["reason"]
            assert reason.startswith("driver wrong: gpus() returned (Gpu(")
            assert reason.endswith("allowed is each uuid once")
        sentinel.wait_for("probe.ready")
        with wrong.job(stay=0.1) as newcomer:
            assert newcomer.got_memory()
        assert sentinel.stop() == 0
    assert sentinel.errors == ""


@pytest.mark.parametrize("call", ["open", "version", "gpus"])
def test_a_call_that_ends_the_process_at_the_start_is_named(
    wrong: OwnDriverHost, call: str
) -> None:
    wrong.registry.create(wrong.folder, 1)
    with wrong.nonsense(f"{call} - ends 0"), wrong.sentinel(1, *FLAGS) as sentinel:
        assert sentinel.wait_for_exit() == 5
    assert f"the probe exited with code 0 in {call}() of driver " in sentinel.errors


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


def test_a_survey_reads_through_the_driver_of_the_setting(run: Run) -> None:
    done = run("run", "--once", "--log-format", "json", "--driver", "good")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
    assert [row["gpu"]["uuid"] for row in rows] == ["OWN-0000", "OWN-0001"]
    assert [row["occupancy"] for row in rows] == ["IDLE", "BUSY"]


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_a_driver_that_lists_no_gpu_is_named(run: Run, visible: dict[str, str]) -> None:
    done = run("run", "--once", "--driver", "empty", **visible)
    assert done.returncode == ExitCode.NO_SUCH_GPU, done.stderr
    what = "no GPU is visible: driver empty of own_package 0.1.0 (own_drivers:Empty) lists none"
    assert what in done.stderr


def test_the_probe_alone_imports_the_driver(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "imports"
    done = run("run", "--list", "--driver", "good", OWN_DRIVERS_LOG=str(log))
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == ["sentinel: probe, reads GPUs"]


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


@pytest.mark.parametrize(
    ("driver", "check", "found"),
    [
        ("good", "process list", [("ok", "0 computing"), ("ok", "1 computing")]),
        ("raises:call=processes", "process list", [("problem", "KeyError")] * 2),
        ("good", "memory", [("ok", "1.0 GiB")] * 2),
        ("good", "GPUs", [("ok", "2")]),
        ("hangs", "answers", [("problem", "memory has not returned")] * 2),
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
