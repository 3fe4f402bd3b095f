"""Occupy, yield, re-occupy: real processes, and a job that wants everything."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest

from sentinel.host.procfs import read_stat
from tests.harness.gpu_environment import Ground, SimulatedGround
from tests.harness.sentinel_process import Sentry, eventually, gone

QUICK = ("--rearm", "300ms", "--poll", "200ms")
MIB = 2**20
#: Its lease runs out, and with it the stressor, perhaps a moment before somebody comes.
ENDS_ITSELF = {"holds_the_interpreter"}


def test_it_occupies_yields_and_occupies_again(ground: Ground) -> None:
    gpus = ground.gpus(2)
    with ground.sentry(gpus, *QUICK, "--status-every", "1s") as one:
        for gpu in gpus:
            one.wait_for("stressor.ready", gpu=gpu)
        held = ground.held(0)
        assert held > 0.85 * ground.total(0)
        with ground.job() as newcomer:
            assert newcomer.got()
            handed = one.wait_for("gpu.handed_over", gpu=0)
            assert handed["processes"][0]["pid"] == newcomer.pid
            newcomer.left()
        assert handed["kill_s"] < handed["exit_s"]
        assert handed["exit_s"] <= handed["memory_back_s"]
        one.wait_for("stressor.ready", gpu=0, count=2)
        assert abs(ground.held(0) - held) <= ground.noise
        assert one.names().count("gpu.yielding") == 1, "nobody came to the others"
        eventually(lambda: any(event.get("checks", 0) > 0 for event in one.events))
        assert one.stop() == 0
        assert all(map(ground.empty, gpus))


def test_newcomers_on_all_gpus_at_once_all_get_their_memory(ground: Ground) -> None:
    gpus = ground.gpus(3)
    with ground.sentry(gpus, *QUICK, "--workload", "hold") as one, ExitStack() as stack:
        for gpu in gpus:
            one.wait_for("stressor.ready", gpu=gpu)
        newcomers = [stack.enter_context(ground.job(gpu)) for gpu in gpus]
        assert [newcomer.got() for newcomer in newcomers] == [True for _ in gpus]


def phase(ground: Ground, one: Sentry, name: str) -> None:
    """Wait until the child on the first GPU is in a phase of its life."""
    one.wait_for("stressor.starting", gpu=0)
    if name == "import":
        eventually(one.stressors)
    elif name == "allocation":
        eventually(lambda: not ground.empty())
    elif name == "ready":
        one.wait_for("stressor.ready", gpu=0)


@pytest.mark.parametrize("name", ["spawn", "import", "allocation", "ready"])
def test_a_job_that_comes_at_any_phase_of_a_childs_life_gets_its_memory(
    ground: Ground, name: str
) -> None:
    with ground.sentry(1, *QUICK, "--workload", "hold") as one:
        phase(ground, one, name)
        with ground.job() as newcomer:
            assert newcomer.got()
            one.wait_for("gpu.yielding", gpu=0)
            newcomer.left()
        one.wait_for("stressor.ready", gpu=0, count=2 if name == "ready" else 1)
        assert "stressor.failed" not in one.names()


def test_a_job_that_comes_while_a_child_is_asked_to_stop_gets_its_memory(ground: Ground) -> None:
    stubborn = ("--workload", "bad_workloads:stubborn", "--grace", "20s")
    with ground.sentry(1, *QUICK, *stubborn) as one:
        one.wait_for("stressor.ready", gpu=0)
        one.process.send_signal(signal.SIGTERM)
        one.wait_for("sentinel.stopping")
        with ground.job() as newcomer:
            assert newcomer.got()
            assert one.ended() == 0


def test_a_job_that_is_gone_before_the_kill_costs_a_restart_at_most(ground: Ground) -> None:
    with ground.sentry(1, *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready", gpu=0)
        held = ground.held()
        with ground.job() as newcomer:
            eventually(lambda: ground.held() > held + MIB or "gpu.yielding" in one.names())
            newcomer.kill()
        # It was seen, and then the GPU is occupied again; or it was gone between two readings.
        eventually(lambda: one.names().count("stressor.ready") > one.names().count("gpu.yielding"))
        assert "stressor.failed" not in one.names()
        with ground.job() as second:
            assert second.got()


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    "workload",
    [
        "stubborn",
        "busy",
        "sleeps",
        "freezes",
        "imposes",
        "starts_processes",
        "forks",
        "chatters",
        "holds_the_interpreter",
    ],
)
def test_a_workload_that_misbehaves_never_keeps_a_job_from_its_memory(
    ground: Ground, workload: str
) -> None:
    with ground.sentry(1, *QUICK, "--workload", f"bad_workloads:{workload}") as one:
        one.wait_for("stressor.ready", gpu=0)
        family = [child for child in one.children() if "probe" not in " ".join(child.cmdline())]
        with ground.job() as newcomer:
            assert newcomer.got()
            if workload in ENDS_ITSELF:
                eventually(lambda: {"gpu.handed_over", "stressor.failed"} & {*one.names(0)})
            else:
                one.wait_for("gpu.handed_over", gpu=0)
        stressors = [child for child in family if (stat := read_stat(child.pid)) and stat.alive]
        left = [child for child in stressors if "resource_tracker" not in " ".join(child.cmdline())]
        assert not left, f"left behind by the workload: {left}"


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("workload", ["babbles", "floods"])
def test_a_child_that_sends_what_is_no_message_is_killed_and_counted(
    ground: Ground, workload: str
) -> None:
    flags = ("--poll", "200ms", "--workload", f"bad_workloads:{workload}")
    with ground.sentry(2, *flags) as one:
        one.wait_for("stressor.failed", gpu=0)
        with ground.job(1) as newcomer:
            assert newcomer.got()
        one.wait_for("stressor.failed", gpu=0, count=2)


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("bad_workloads:raises", "boom"),
        ("bad_workloads:returns", "returned"),
        ("bad_workloads:exits", "exit"),
        ("bad_workloads:segfaults", "signal 11"),
    ],
)
def test_a_workload_that_fails_costs_a_pause_and_says_why(
    ground: Ground, workload: str, words: str
) -> None:
    with ground.sentry(1, "--poll", "200ms", "--workload", workload) as one:
        failed = one.wait_for("stressor.failed", count=2)
        assert words in failed["reason"]
        assert failed["pause_s"] == 2
        assert one.stop() == 0


@pytest.mark.usefixtures("fake_torch")
def test_a_workload_that_cannot_be_imported_is_given_up_at_once(ground: Ground) -> None:
    flags = ("--poll", "200ms", "--workload", "bad_workloads.failing_import:workload")
    with ground.sentry(1, *flags) as one:
        assert "bad_workloads.failing_import" in one.wait_for("stressor.fatal")["reason"]
        assert one.ended() == 2


def test_a_wrong_option_that_only_the_workload_knows_ends_it(ground: Ground) -> None:
    with ground.sentry(ground.gpus(2), "--poll", "200ms", "--workload", "gemm:sze=4096") as one:
        assert one.ended() == 2
        assert "sze" in one.wait_for("sentinel.stopping")["reason"]


@pytest.mark.usefixtures("fake_torch")
def test_a_wrong_result_is_said(ground: Ground) -> None:
    with ground.sentry(1, "--poll", "200ms", "--workload", "bad_workloads:faulty") as one:
        assert one.wait_for("stressor.mismatch")["errors"] == 1


@pytest.mark.usefixtures("fake_torch")
def test_a_finding_is_not_lost_when_its_stressor_dies_right_after(ground: Ground) -> None:
    flags = ("--poll", "200ms", "--workload", "bad_workloads:finds_and_dies")
    with ground.sentry(1, *flags) as one:
        assert one.wait_for("stressor.finding")["first"] == [5, 9]
        assert "signal 9" in one.wait_for("stressor.failed")["reason"]


@pytest.mark.usefixtures("fake_torch")
def test_standard_output_that_nobody_reads_never_holds_up_a_hand_over(ground: Ground) -> None:
    flags = (*QUICK, "--status-every", "1s", "--workload", "hold")

    def occupied() -> bool:
        return ground.held() > 0.85 * ground.total()

    with ground.sentry(1, *flags, read=False) as one:
        eventually(occupied)
        for _ in range(3):
            with ground.job() as newcomer:
                assert newcomer.got()
                newcomer.left()
            eventually(occupied)
        assert one.stop() == 0


@pytest.mark.usefixtures("fake_torch")
def test_a_gpu_that_cannot_be_read_is_given_back_and_the_other_is_kept(
    simulated: SimulatedGround,
) -> None:
    with simulated.sentry(2, *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready", gpu=0)
        one.wait_for("stressor.ready", gpu=1)
        simulated.registry.plant(simulated.uuid(), "error")
        one.wait_for("gpu.unknown", gpu=0)
        one.wait_for("stressor.stopped", gpu=0)
        simulated.registry.plant(simulated.uuid(), None)
        one.wait_for("stressor.ready", gpu=0, count=2)
        assert "stressor.stopped" not in one.names(1)


@pytest.mark.usefixtures("fake_torch")
def test_a_driver_call_that_hangs_costs_one_gpu_and_one_probe(simulated: SimulatedGround) -> None:
    with simulated.sentry(2, *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready", gpu=0)
        one.wait_for("stressor.ready", gpu=1)
        simulated.registry.plant(simulated.uuid(), "hang")
        began = time.monotonic()
        hung = one.wait_for("probe.hung")
        assert (hung["index"], hung["call"]) == (0, "memory")
        one.wait_for("stressor.stopped", gpu=0)
        assert time.monotonic() - began < 5 + 1
        one.wait_for("probe.ready")
        simulated.registry.plant(simulated.uuid(), None)
        with simulated.job(1) as newcomer:
            assert newcomer.got()
        one.wait_for("stressor.ready", gpu=0, count=2, within=25)


@pytest.mark.usefixtures("fake_torch")
def test_a_probe_that_is_killed_is_replaced_and_children_live_on(ground: Ground) -> None:
    with ground.sentry(1, *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready")
        (probe,) = [c for c in one.children() if "sentinel: probe" in " ".join(c.cmdline())]
        probe.kill()
        one.wait_for("probe.ready")
        with ground.job() as newcomer:
            assert newcomer.got()
        assert "stressor.stopped" not in one.names()
        assert gone(probe)
