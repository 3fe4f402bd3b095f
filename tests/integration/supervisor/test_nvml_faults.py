"""Whole sentinels over a fake libnvidia-ml that fails, hangs or crashes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.harness.fake_nvml import NvmlHost
from tests.harness.programs import run_program
from tests.harness.sentinel_over_nvml import FIRST_EXCLUSION_S
from tests.harness.sentinel_process import SentinelProcess, eventually, gone

QUICK = (
    "--rearm",
    "300ms",
    "--rearm-longest",
    "300ms",
    "--poll",
    "200ms",
    "--workload",
    "hold",
    "--unwatched-after",
    "5s",
)
PROBE = "sentinel: probe"
#: PIDs that real drivers have listed: of the kernel, of no process, and above the maximum.
IMPOSSIBLE_PIDS = (0, 2**32 - 1, 2**22 + 1)
#: The driver's result for one GPU, and a part of the reported reason.
ERRORS = {
    "memory@{} 15": "gpu_is_lost",
    "memory@{} 16": "reset_required",
    "memory@{} 11": "irq_issue",
    "compute@{} 4": "no_permission",
    "compute@{} 999": "unknown",
    "memory@{} 3": "not_supported",
    "used@{} 99999999999999": "nonsense",
}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> NvmlHost:
    """Provide two GPUs behind NVML."""
    return NvmlHost(tmp_path, nvml_library)


def wait_until_both_are_held(sentinel: SentinelProcess) -> None:
    sentinel.wait_for("stressor.ready", gpu=0)
    sentinel.wait_for("stressor.ready", gpu=1)


def stressor_on(nvml: NvmlHost, gpu: int) -> psutil.Process:
    (process,) = nvml.registry.processes(nvml.uuid(gpu))
    return psutil.Process(process.pid)


def test_a_hanging_call_excludes_its_gpu_and_replaces_the_probe_once(nvml: NvmlHost) -> None:
    """The GPU is excluded for longer each time; the other GPU is unaffected."""
    with nvml.sentinel(2, *QUICK, "--status-every", "1s") as sentinel:
        wait_until_both_are_held(sentinel)
        probe, stressor = sentinel.wait_for_process(PROBE), stressor_on(nvml, 0)
        nvml.inject(f"memory@{nvml.uuid()} hang")
        hung = sentinel.wait_for("probe.hung")
        assert (hung["gpu"], hung["call"]) == (nvml.uuid(), "memory")
        assert hung["pause_s"] == pytest.approx(FIRST_EXCLUSION_S)
        eventually(lambda: gone(stressor))
        eventually(nvml.empty)
        sentinel.wait_for("probe.ready")
        eventually(lambda: gone(probe))
        with nvml.job(1) as newcomer:
            assert newcomer.got_memory()
            newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=1, count=2)
        again = sentinel.wait_for("probe.hung", count=2)
        assert again["pause_s"] == pytest.approx(2 * FIRST_EXCLUSION_S)
        assert again["at"] - hung["at"] >= FIRST_EXCLUSION_S
        assert "stressor.starting" not in sentinel.names(0)[sentinel.names(0).index("probe.hung") :]
        for gpu in (0, 1):  # both are reported meanwhile
            times = [
                e["at"]
                for e in sentinel.events
                if e["event"] == "gpu.status" and sentinel._on(e, gpu)
            ]
            assert sum(hung["at"] < at < again["at"] for at in times) >= 2
        sentinel.wait_for("probe.ready", count=2)  # only a probe sees that the memory is free
        assert sentinel.stop() == 0


def test_a_gpu_without_a_uuid_does_not_prevent_reads_of_others(nvml: NvmlHost) -> None:
    """The new probe continues without it, early enough for the stressor on the other GPU."""
    with nvml.sentinel(2, *QUICK) as sentinel:
        wait_until_both_are_held(sentinel)
        nvml.inject(*(f"{call}@{nvml.uuid()} hang" for call in ("memory", "handle", "uuid")))
        assert sentinel.wait_for("probe.hung")["gpu"] == nvml.uuid()
        sentinel.wait_for("stressor.stopped", gpu=0)
        assert sentinel.wait_for("probe.ready")["gpus"] == 1
        with nvml.job(1) as newcomer:
            assert newcomer.got_memory()
        nvml.inject()
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert "stressor.stopped" not in sentinel.names(1)


def test_a_crash_inside_the_library_excludes_its_gpu_and_replaces_the_probe_once(
    nvml: NvmlHost,
) -> None:
    """The GPU is excluded as after a hang; the stressor on a GPU without a call continues."""
    with nvml.sentinel(2, *QUICK) as sentinel:
        wait_until_both_are_held(sentinel)
        stressor = stressor_on(nvml, 0)
        nvml.inject(f"memory@{nvml.uuid(0)} crash")
        exited = sentinel.wait_for("probe.exited")
        assert (exited["exit_code"], exited["gpu"], exited["call"]) == (-6, nvml.uuid(0), "memory")
        assert exited["left_out_s"] == pytest.approx(FIRST_EXCLUSION_S)
        eventually(lambda: gone(stressor))
        sentinel.wait_for("probe.ready")
        with nvml.job(1) as newcomer:
            assert newcomer.got_memory()
            assert sentinel.names().count("probe.exited") == 1
            nvml.inject()
            newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=1, count=2)
        sentinel.wait_for("stressor.ready", gpu=0, count=2)
        assert sentinel.names().count("probe.exited") == 1
        # A GPU with a call in flight is excluded, too: any of them may have crashed the library.
        in_flight = [
            event
            for event in sentinel.events
            if event["event"] == "gpu.unknown" and event.get("index") == 1
        ]
        assert all("crashed in" in event["reason"] for event in in_flight)
        assert sentinel.names(1).count("stressor.stopped") == len(in_flight)

        nvml.inject(f"memory@{nvml.uuid(1)} segfault")
        exited = sentinel.wait_for("probe.exited", count=2)
        assert (exited["exit_code"], exited["gpu"], exited["call"]) == (-11, nvml.uuid(1), "memory")
        assert exited["left_out_s"] == pytest.approx(FIRST_EXCLUSION_S)
        nvml.inject()
        sentinel.wait_for("stressor.ready", gpu=1, count=3)


def test_a_gpu_that_returns_under_another_index_is_the_same_gpu(nvml: NvmlHost) -> None:
    """The missing GPU stays known to new probes, and is occupied again after its return."""
    probes = 0
    with nvml.sentinel(2, *QUICK) as sentinel:
        wait_until_both_are_held(sentinel)
        for nth, (code, restarts) in enumerate((("15", 0), ("6", 0), ("28", 2)), start=1):
            nvml.inject(f"left {code}", order=(1,))
            unknown = sentinel.wait_for("gpu.unknown", gpu=0, count=nth)
            assert "gone" in unknown["reason"] or "lost" in unknown["reason"]
            sentinel.wait_for("stressor.stopped", gpu=0, count=nth)
            for _ in range(restarts):
                sentinel.wait_for_process(PROBE).kill()
                probes += 1
                assert sentinel.wait_for("probe.ready", count=probes)["gpus"] == 1
            nvml.inject(order=(1, 0))
            back = sentinel.wait_for("stressor.ready", gpu=0, count=nth + 1)
            assert (back["gpu"], back["index"]) == (nvml.uuid(0), 0)
        with nvml.job(0) as newcomer:
            assert newcomer.got_memory()
            assert (
                sentinel.wait_for("gpu.handed_over", gpu=0)["processes"][0]["pid"] == newcomer.pid
            )
        lost = [one for one in sentinel.events if one["event"] == "gpu.unknown"]
        reasons = [one["reason"] for one in lost if one["index"] == 1]
        late = [reason for reason in reasons if reason.startswith("not read for")]
        assert reasons == late, "a busy host may start a probe late; the other GPU is not lost"
        assert sentinel.names(1).count("stressor.stopped") <= len(late)


def test_gpus_are_occupied_again_after_the_driver_was_unloaded(nvml: NvmlHost) -> None:
    """Without the driver no GPU is held and retries become rarer."""
    with nvml.sentinel(2, *QUICK) as sentinel:
        wait_until_both_are_held(sentinel)
        nvml.inject("memory 9", "init 9")
        assert sentinel.wait_for("driver.unavailable")["code"] == "driver_not_loaded"
        for gpu in (0, 1):
            sentinel.wait_for("stressor.stopped", gpu=gpu)
            assert nvml.empty(gpu)
        pauses = [sentinel.wait_for("probe.exited", count=n)["pause_s"] for n in (1, 2, 3)]
        assert pauses == [0, 1, 2]
        nvml.inject()
        sentinel.wait_for("probe.ready")
        for gpu in (0, 1):
            sentinel.wait_for("stressor.ready", gpu=gpu, count=2)


def test_an_upgrade_of_the_driver_replaces_the_probe_and_no_stressor(nvml: NvmlHost) -> None:
    """The loaded library no longer works; the next probe loads the new one."""
    with nvml.sentinel(1, *QUICK) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        nvml.inject("memory 18")
        assert sentinel.wait_for("driver.unavailable")["code"] == "lib_rm_version_mismatch"
        nvml.inject()
        sentinel.wait_for("probe.ready")
        with nvml.job() as newcomer:
            assert newcomer.got_memory()
        assert "stressor.stopped" not in sentinel.names()


@pytest.mark.parametrize("first", range(0, len(ERRORS), 3))
def test_an_error_of_one_gpu_releases_it_and_keeps_the_other(nvml: NvmlHost, first: int) -> None:
    errors = list(ERRORS.items())[first : first + 3]  # the pauses after errors grow
    with nvml.sentinel(2, *QUICK) as sentinel:
        wait_until_both_are_held(sentinel)
        for nth, (fault, words) in enumerate(errors, start=1):
            nvml.inject(fault.format(nvml.uuid(0)))
            assert words in sentinel.wait_for("gpu.unknown", gpu=0, count=nth)["reason"], fault
            assert sentinel.wait_for("stressor.stopped", gpu=0, count=nth)["cause"] == "unknown"
            if nth == len(errors):
                with nvml.job(1) as newcomer:
                    assert newcomer.got_memory()
            nvml.inject()
            sentinel.wait_for("stressor.ready", gpu=0, count=nth + 1)
        sentinel.wait_for("stressor.ready", gpu=1, count=2)
        assert "stressor.stopped" not in sentinel.names(1)
        assert "probe.exited" not in sentinel.names()


def test_a_pid_that_no_process_can_have_is_a_foreign_process(nvml: NvmlHost) -> None:
    """Real drivers have listed such PIDs: they are foreign and cause no crash."""
    with nvml.sentinel(2, *QUICK) as sentinel:
        wait_until_both_are_held(sentinel)
        for nth, pid in enumerate(IMPOSSIBLE_PIDS, start=1):
            nvml.inject(*[f"pid@{nvml.uuid(0)} {pid}"] * 2)
            busy = sentinel.wait_for("gpu.busy", gpu=0, count=nth)
            assert busy["processes"] == [{"pid": pid, "name": None, "user": None}]
            sentinel.wait_for("gpu.handed_over", gpu=0, count=nth)
            nvml.inject()
            sentinel.wait_for("stressor.ready", gpu=0, count=nth + 1)
        assert sentinel.names().count("gpu.busy") == len(IMPOSSIBLE_PIDS)
        assert "stressor.stopped" not in sentinel.names(1)


def ask(nvml: NvmlHost, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code, and its output without line breaks."""
    done = run_program(sys.executable, "-m", "sentinel", *words, env=nvml.environment())
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_number_never_means_another_gpu_than_that_of_nvidia_smi(nvml: NvmlHost) -> None:
    """After a loss, nvidia-smi's GPU 0 is the second card."""
    first, second = nvml.uuid(0), nvml.uuid(1)
    command = partial(ask, nvml)
    with nvml.sentinel(2, *QUICK, "--paused", api=True) as sentinel:
        eventually(lambda: command("pause", "0")[0] == 0)
        nvml.inject(order=(1,))
        assert sentinel.wait_for("gpu.fault", gpu=0)["fault"] == "lost"
        eventually(lambda: f"nvidia-smi's 0 is {second} now" in command("status")[1])
        assert first in command("status")[1]
        for number in ("0", "1", "0-1"):
            code, text = command("pause", number)
            assert code != 0, text
            assert f"nvidia-smi's 0 is {second} now" in text
            assert f"1 {second}" in text
            assert "nvidia-smi has it as 0 now" in text
        assert command("pause", second)[0] == 0
        nvml.inject()
        sentinel.wait_for("gpu.fault_over", gpu=0)
        eventually(lambda: command("pause", "1")[0] == 0)


@pytest.mark.long
def test_a_number_means_no_other_gpu_when_the_order_changes(nvml: NvmlHost) -> None:
    """No GPU is lost: a card may have come back at another address."""
    with nvml.sentinel(2, *QUICK, "--paused", api=True):
        eventually(lambda: ask(nvml, "pause", "0")[0] == 0)
        nvml.inject(order=(1, 0))
        eventually(lambda: "nvidia-smi has it as 1 now" in ask(nvml, "status")[1])
        code, text = ask(nvml, "pause", "0")
        assert code != 0, text
        assert "nvidia-smi has it as 1 now" in text
        nvml.inject()
        eventually(lambda: ask(nvml, "pause", "0")[0] == 0)
