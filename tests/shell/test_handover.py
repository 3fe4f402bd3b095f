"""Occupy, yield, re-occupy: real processes on simulated GPUs, and a job that wants everything."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from sentry import PATIENCE, Sentry, eventually, gone, job, sentry, verdict

from sentinel.procfs import read_stat

QUICK = ("--rearm", "300ms", "--poll", "200ms")
GREEDY = ("--memory", "97%", "--for", "1s")


def test_it_occupies_yields_and_occupies_again(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK, "--status-every", "1s") as one:
        one.wait_for("stressor.ready", index=0)
        one.wait_for("stressor.ready", index=1)
        held = one.held(0)
        assert held > 0.85 * one.registry.gpus()[0].memory_total
        with job(tmp_path, "--gpu", "0", *GREEDY) as newcomer:
            assert verdict(newcomer) == "job.got"
            handed = one.wait_for("gpu.handed_over", index=0)
            assert handed["by"][0]["pid"] == newcomer.pid
            newcomer.wait(PATIENCE)
        assert handed["kill_s"] < handed["exit_s"]
        assert handed["exit_s"] <= handed["memory_back_s"]
        one.wait_for("stressor.ready", index=0, count=2)
        assert one.held(0) == held
        assert "gpu.yielding" not in one.names(1)
        eventually(lambda: any(event.get("bytes_per_s", 0) > 0 for event in one.events))
        assert one.stop() == 0
        assert one.held(0) == one.held(1) == 0


def test_newcomers_on_all_gpus_at_once_all_get_their_memory(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "3", *QUICK, "--workload", "hold") as one:
        for index in range(3):
            one.wait_for("stressor.ready", index=index)
        with (
            job(tmp_path, "--gpu", "0", *GREEDY) as first,
            job(tmp_path, "--gpu", "1", *GREEDY) as second,
            job(tmp_path, "--gpu", "2", *GREEDY) as third,
        ):
            assert [verdict(newcomer) for newcomer in (first, second, third)] == ["job.got"] * 3


def phase(one: Sentry, name: str) -> None:
    """Wait until the child on the first GPU is in a phase of its life."""
    one.wait_for("stressor.starting", index=0)
    if name == "import":
        eventually(one.stressors)
    elif name == "allocation":
        eventually(lambda: one.held(0) > 0)
    elif name == "ready":
        one.wait_for("stressor.ready", index=0)


@pytest.mark.parametrize("name", ["spawn", "import", "allocation", "ready"])
def test_a_job_that_comes_at_any_phase_of_a_childs_life_gets_its_memory(
    tmp_path: Path, name: str
) -> None:
    with sentry(tmp_path, "--simulate", "1", *QUICK, "--workload", "hold") as one:
        phase(one, name)
        membership_holder = job(tmp_path, "--gpu", "0", *GREEDY)
        with membership_holder as newcomer:
            assert verdict(newcomer) == "job.got"
            one.wait_for("gpu.yielding", index=0)
            newcomer.wait(PATIENCE)
        one.wait_for("stressor.ready", index=0, count=2 if name == "ready" else 1)
        assert "stressor.failed" not in one.names()


def test_a_job_that_comes_while_a_child_is_asked_to_stop_gets_its_memory(tmp_path: Path) -> None:
    stubborn = ("--workload", "misbehaving:stubborn", "--grace", "20s")
    with sentry(tmp_path, "--simulate", "1", *QUICK, *stubborn) as one:
        one.wait_for("stressor.ready", index=0)
        one.process.send_signal(signal.SIGTERM)
        one.wait_for("sentinel.stopping")
        with job(tmp_path, "--gpu", "0", *GREEDY) as newcomer:
            assert verdict(newcomer) == "job.got"
            assert one.ended() == 0


def test_a_job_that_is_gone_before_the_kill_costs_only_a_restart(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "1", *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready", index=0)
        with job(tmp_path, "--gpu", "0", "--memory", "800MiB", "--for", "1ms") as newcomer:
            eventually(lambda: one.registry.memory(one.uuid()).used > 0.9 * 16 * 2**30 or newcomer)
            newcomer.kill()
        one.wait_for("stressor.ready", index=0, count=1)
        with job(tmp_path, "--gpu", "0", *GREEDY) as second:
            assert verdict(second) == "job.got"


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
    tmp_path: Path, workload: str
) -> None:
    flags = ("--simulate", "1", *QUICK, "--workload", f"misbehaving:{workload}")
    with sentry(tmp_path, *flags) as one:
        one.wait_for("stressor.ready", index=0)
        family = [child for child in one.children() if "probe" not in " ".join(child.cmdline())]
        with job(tmp_path, "--gpu", "0", *GREEDY) as newcomer:
            assert verdict(newcomer) == "job.got"
            one.wait_for("gpu.handed_over", index=0)
        stressors = [child for child in family if (stat := read_stat(child.pid)) and stat.alive]
        left = [child for child in stressors if "resource_tracker" not in " ".join(child.cmdline())]
        assert not left, f"left behind by the workload: {left}"


@pytest.mark.parametrize("workload", ["babbles", "floods"])
def test_a_child_that_sends_what_is_no_message_is_killed_and_counted(
    tmp_path: Path, workload: str
) -> None:
    flags = ("--simulate", "2", "--poll", "200ms", "--workload", f"misbehaving:{workload}")
    with sentry(tmp_path, *flags) as one:
        one.wait_for("stressor.failed", index=0)
        with job(tmp_path, "--gpu", "1", *GREEDY) as newcomer:
            assert verdict(newcomer) == "job.got"
        one.wait_for("stressor.failed", index=0, count=2)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("misbehaving:raises", "boom"),
        ("misbehaving:returns", "returned"),
        ("misbehaving:exits", "exit"),
        ("misbehaving:segfaults", "signal 11"),
    ],
)
def test_a_workload_that_fails_costs_a_pause_and_says_why(
    tmp_path: Path, workload: str, words: str
) -> None:
    with sentry(tmp_path, "--simulate", "1", "--poll", "200ms", "--workload", workload) as one:
        failed = one.wait_for("stressor.failed", count=2)
        assert words in failed["reason"]
        assert failed["pause_s"] == 2
        assert one.stop() == 0


def test_a_workload_that_cannot_be_imported_is_given_up_at_once(tmp_path: Path) -> None:
    flags = ("--simulate", "1", "--poll", "200ms", "--workload", "misbehaving_import:workload")
    with sentry(tmp_path, *flags) as one:
        assert "misbehaving_import" in one.wait_for("stressor.fatal")["reason"]
        assert one.stop() == 0


def test_a_wrong_result_is_said(tmp_path: Path) -> None:
    flags = ("--simulate", "1", "--poll", "200ms", "--workload", "misbehaving:faulty")
    with sentry(tmp_path, *flags) as one:
        assert one.wait_for("stressor.mismatch")["errors"] == 1


def test_standard_output_that_nobody_reads_never_holds_up_a_hand_over(tmp_path: Path) -> None:
    flags = ("--simulate", "1", *QUICK, "--status-every", "1s", "--workload", "hold")
    with sentry(tmp_path, *flags, read=False) as one:
        eventually(lambda: one.registry.gpus() and one.held() > 0.85 * 16 * 2**30)
        for _ in range(3):
            with job(tmp_path, "--gpu", "0", *GREEDY) as newcomer:
                assert verdict(newcomer) == "job.got"
            eventually(lambda: one.held() > 0.85 * 16 * 2**30)
        assert one.stop() == 0


def test_a_gpu_that_cannot_be_read_is_given_back_and_the_other_is_kept(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready", index=0)
        one.wait_for("stressor.ready", index=1)
        one.registry.plant(one.uuid(0), "error")
        one.wait_for("gpu.unknown", index=0)
        one.wait_for("stressor.stopped", index=0)
        one.registry.plant(one.uuid(0), None)
        one.wait_for("stressor.ready", index=0, count=2)
        assert "stressor.stopped" not in one.names(1)


def test_a_driver_call_that_hangs_costs_one_gpu_and_one_probe(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "2", *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready", index=0)
        one.wait_for("stressor.ready", index=1)
        one.registry.plant(one.uuid(0), "hang")
        began = time.monotonic()
        hung = one.wait_for("probe.hung")
        assert (hung["index"], hung["call"]) == (0, "memory")
        one.wait_for("stressor.stopped", index=0)
        assert time.monotonic() - began < 5 + 1
        one.wait_for("probe.ready")
        one.registry.plant(one.uuid(0), None)
        with job(tmp_path, "--gpu", "1", *GREEDY) as newcomer:
            assert verdict(newcomer) == "job.got"
        one.wait_for("stressor.ready", index=0, count=2, within=25)


def test_a_probe_that_is_killed_is_replaced_and_children_live_on(tmp_path: Path) -> None:
    with sentry(tmp_path, "--simulate", "1", *QUICK, "--workload", "hold") as one:
        one.wait_for("stressor.ready")
        (probe,) = [c for c in one.children() if "sentinel: probe" in " ".join(c.cmdline())]
        probe.kill()
        one.wait_for("probe.ready")
        with job(tmp_path, "--gpu", "0", *GREEDY) as newcomer:
            assert verdict(newcomer) == "job.got"
        assert "stressor.stopped" not in one.names()
        assert gone(probe)
