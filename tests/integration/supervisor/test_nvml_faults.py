"""Whole sentinels over a pretended libnvidia-ml: what its errors, hangs and crashes cost."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.harness.fake_nvml import NvmlGround
from tests.harness.sentinel_over_nvml import LEFT_OUT
from tests.harness.sentinel_process import Sentry, eventually, gone

QUICK = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold")
#: After so many seconds without a reading nobody may hold a GPU (``stale_after``).
STALE_AFTER = 5.0

pytestmark = pytest.mark.usefixtures("fake_torch")


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> NvmlGround:
    """Return two GPUs behind NVML."""
    return NvmlGround(tmp_path, nvml_library)


def both_held(one: Sentry) -> None:
    """Wait until there is a stressor on either GPU."""
    one.wait_for("stressor.ready", gpu=0)
    one.wait_for("stressor.ready", gpu=1)


def holder(nvml: NvmlGround) -> psutil.Process:
    """Return the stressor on the first GPU."""
    (process,) = nvml.registry.processes(nvml.uuid())
    return psutil.Process(process.pid)


def probe_of(one: Sentry) -> psutil.Process:
    """Return the probe."""
    (probe,) = [c for c in one.children() if "sentinel: probe" in " ".join(c.cmdline())]
    return probe


def test_a_call_that_never_returns_costs_its_gpu_and_one_probe(nvml: NvmlGround) -> None:
    """The GPU is free in time, and stays out for longer each time; the others are cared for."""
    with nvml.sentry(2, *QUICK, "--status-every", "1s") as one:
        both_held(one)
        probe = probe_of(one)
        stressor = holder(nvml)
        nvml.plant(f"memory@{nvml.uuid()} hang")
        began = time.monotonic()
        hung = one.wait_for("probe.hung")
        assert (hung["gpu"], hung["call"]) == (nvml.uuid(), "memory")
        assert hung["pause_s"] == pytest.approx(LEFT_OUT)
        eventually(lambda: gone(stressor))
        assert time.monotonic() - began < STALE_AFTER
        eventually(nvml.empty)
        one.wait_for("probe.ready")
        eventually(lambda: gone(probe))
        with nvml.job(1) as newcomer:
            assert newcomer.got()
            newcomer.left()
        one.wait_for("stressor.ready", gpu=1, count=2)
        again = one.wait_for("probe.hung", count=2)
        assert again["pause_s"] == pytest.approx(2 * LEFT_OUT)
        assert again["at"] - hung["at"] >= LEFT_OUT
        assert "stressor.starting" not in one.names(0)[one.names(0).index("probe.hung") :]
        for gpu in (0, 1):
            said = [e["at"] for e in one.events if e["event"] == "gpu.status" and one._on(e, gpu)]
            assert max(later - earlier for earlier, later in pairwise(said)) < 3
            assert said[-1] > hung["at"] + LEFT_OUT
        one.wait_for("probe.ready", count=2)  # without one, nobody sees that memory is back
        assert one.stop() == 0


def test_a_gpu_that_does_not_even_say_who_it_is_keeps_no_other_from_being_read(
    nvml: NvmlGround,
) -> None:
    """The new probe goes on without it, soon enough for the stressor on the other one."""
    with nvml.sentry(2, *QUICK) as one:
        both_held(one)
        nvml.plant(*(f"{call}@{nvml.uuid()} hang" for call in ("memory", "handle", "uuid")))
        assert one.wait_for("probe.hung")["gpu"] == nvml.uuid()
        one.wait_for("stressor.stopped", gpu=0)
        assert one.wait_for("probe.ready")["gpus"] == 1
        with nvml.job(1) as newcomer:
            assert newcomer.got()
        nvml.plant()
        one.wait_for("stressor.ready", gpu=0, count=2, within=40)
        assert "stressor.stopped" not in one.names(1)


@pytest.mark.parametrize(("fault", "code"), [("crash", -6), ("segfault", -11)])
def test_a_crash_inside_the_library_costs_its_gpu_and_one_probe(
    nvml: NvmlGround, fault: str, code: int
) -> None:
    """The GPU is left out like one that hung, and the other one's stressor lives on."""
    with nvml.sentry(2, *QUICK) as one:
        both_held(one)
        stressor = holder(nvml)
        nvml.plant(f"memory@{nvml.uuid()} {fault}")
        exited = one.wait_for("probe.exited")
        assert (exited["exit_code"], exited["gpu"], exited["call"]) == (code, nvml.uuid(), "memory")
        assert exited["left_out_s"] == pytest.approx(LEFT_OUT)
        eventually(lambda: gone(stressor), within=STALE_AFTER)
        one.wait_for("probe.ready")
        with nvml.job(1) as newcomer:
            assert newcomer.got()
            assert one.names().count("probe.exited") == 1
            nvml.plant()
            newcomer.left()
        one.wait_for("stressor.ready", gpu=1, count=2)
        one.wait_for("stressor.ready", gpu=0, count=2, within=40)
        assert one.names().count("probe.exited") == 1
        assert "stressor.stopped" not in one.names(1)


@pytest.mark.parametrize(("left", "restart"), [("15", False), ("6", False), ("28", True)])
def test_a_gpu_that_comes_back_under_another_index_is_the_same_gpu(
    nvml: NvmlGround, left: str, *, restart: bool
) -> None:
    """It is free while it is away, also for probes that never saw it, and then occupied again."""
    with nvml.sentry(2, *QUICK) as one:
        both_held(one)
        nvml.plant(f"left {left}", order=(1,))
        unknown = one.wait_for("gpu.unknown", gpu=0)
        assert "gone" in unknown["reason"] or "lost" in unknown["reason"]
        one.wait_for("stressor.stopped", gpu=0)
        for nth in (1, 2) if restart else ():
            probe_of(one).kill()
            assert one.wait_for("probe.ready", count=nth)["gpus"] == 1
        nvml.plant(order=(1, 0))
        back = one.wait_for("stressor.ready", gpu=0, count=2)
        assert (back["gpu"], back["index"]) == (nvml.uuid(0), 0)
        with nvml.job(0) as newcomer:
            assert newcomer.got()
            assert one.wait_for("gpu.handed_over", gpu=0)["processes"][0]["pid"] == newcomer.pid
        assert "gpu.unknown" not in one.names(1)[1:]
        assert "stressor.stopped" not in one.names(1)


def test_a_driver_that_goes_away_is_waited_for(nvml: NvmlGround) -> None:
    """Nothing is held without it, tries come ever more slowly, and all is occupied afterwards."""
    with nvml.sentry(2, *QUICK) as one:
        both_held(one)
        nvml.plant("memory 9", "init 9")
        assert one.wait_for("driver.unavailable")["code"] == "driver_not_loaded"
        for gpu in (0, 1):
            one.wait_for("stressor.stopped", gpu=gpu)
            assert nvml.empty(gpu)
        pauses = [one.wait_for("probe.exited", count=n)["pause_s"] for n in (1, 2, 3)]
        assert pauses == [0, 1, 2]
        nvml.plant()
        one.wait_for("probe.ready")
        for gpu in (0, 1):
            one.wait_for("stressor.ready", gpu=gpu, count=2)


def test_an_upgrade_of_the_driver_takes_a_new_process_and_no_stressor(nvml: NvmlGround) -> None:
    """The library that is loaded is of no use any more; the next probe loads the new one."""
    with nvml.sentry(1, *QUICK) as one:
        one.wait_for("stressor.ready", gpu=0)
        nvml.plant("memory 18")
        assert one.wait_for("driver.unavailable")["code"] == "lib_rm_version_mismatch"
        nvml.plant()
        one.wait_for("probe.ready")
        with nvml.job() as newcomer:
            assert newcomer.got()
        assert "stressor.stopped" not in one.names()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("memory@{} 15", "gpu_is_lost"),
        ("memory@{} 16", "reset_required"),
        ("memory@{} 11", "irq_issue"),
        ("compute@{} 4", "no_permission"),
        ("compute@{} 999", "unknown"),
        ("memory@{} 3", "not_supported"),
        ("used@{} 99999999999999", "nonsense"),
    ],
)
def test_a_gpu_with_an_error_is_let_go_and_the_other_is_kept(
    nvml: NvmlGround, fault: str, words: str
) -> None:
    """One GPU's error never stops the care for the others."""
    with nvml.sentry(2, *QUICK) as one:
        both_held(one)
        nvml.plant(fault.format(nvml.uuid(0)))
        assert words in one.wait_for("gpu.unknown", gpu=0)["reason"]
        assert one.wait_for("stressor.stopped", gpu=0)["cause"] == "unknown"
        with nvml.job(1) as newcomer:
            assert newcomer.got()
        nvml.plant()
        one.wait_for("stressor.ready", gpu=0, count=2)
        one.wait_for("stressor.ready", gpu=1, count=2)
        assert "probe.exited" not in one.names()


@pytest.mark.parametrize("pid", [0, 2**32 - 1, 2**22 + 1])
def test_a_pid_that_nobody_can_have_is_somebody(nvml: NvmlGround, pid: int) -> None:
    """Drivers were seen to list such PIDs: never ours, never a crash, and never nobody."""
    with nvml.sentry(2, *QUICK) as one:
        both_held(one)
        nvml.plant(f"pid@{nvml.uuid(0)} {pid}", f"pid@{nvml.uuid(0)} {pid}")
        busy = one.wait_for("gpu.busy", gpu=0)
        assert busy["processes"] == [{"pid": pid, "name": None, "user": None}]
        one.wait_for("gpu.handed_over", gpu=0)
        nvml.plant()
        one.wait_for("stressor.ready", gpu=0, count=2)
        assert one.names().count("gpu.busy") == 1
        assert "stressor.stopped" not in one.names(1)
