"""Phases of the shipped levels with real torch on simulated GPUs: memory, pulses and links.

The ranks of links meet in a file and exchange data with gloo over the loopback device.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from sentinel.errors import ExitCode
from tests.harness.burnin_run import FAULTLESS, BurninRun, check_passed, plan_of
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import output_of
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.long

HELD_AND_PULSES = plan_of(
    "both",
    ("retention", "memtest:patterns=zeros,retention=2", "passes = 1"),
    ("pulse", "pulse:hz=1,sync=in-phase", "seconds = 2"),
    ("pulse-fast", "pulse:hz=10,sync=out-of-phase", "seconds = 2"),
    ("pulse-burst", "pulse:hz=20,burst=5,sync=in-phase", "seconds = 2"),
)
FADING = plan_of(
    "fading", ("retention", "bad_workloads:tests_memory_that_loses_a_held_bit", "passes = 1")
)
UNITS = "sentinel.stressor.workloads:units:plan=exp+atomics+attention+fp4+sfu+gather,seconds=0.3"
LINKS = "sentinel.stressor.links:links"
PLAN = plan_of(
    "links",
    ("memory", "sentinel.stressor.memtest:memtest:patterns=ones", "passes = 1"),
    ("links", LINKS, "seconds = 3", "together = true"),
)
#: The failures of stressors that a check counts or that end a phase.
FAILURES = ("stressor.failed", "stressor.fatal", "stressor.finding", "stressor.mismatch")


def checks_of(gpu: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the status and the evidence of each check of links."""
    return {
        one["id"]: (one["status"], one["evidence"])
        for one in gpu["checks"]
        if one["id"].startswith("links.")
    }


def samples(run: BurninRun, gpus: int) -> list[set[tuple[str, int | None]]]:
    """Return the links of each GPU that were measured, by part and sender."""
    lines = (run.folder / "samples.jsonl").read_text().splitlines()
    found = [one for line in lines if (one := json.loads(line))["event"] == "link"]
    uuids = [gpu["uuid"] for gpu in run.report()["gpus"]]
    assert len(uuids) == gpus
    return [{(one["part"], one["peer"]) for one in found if one["gpu"] == uuid} for uuid in uuids]


HOST = {(part, None) for part in ("host_to_device", "device_to_host", "both_directions")}
ALL = {(part, None) for part in ("host_to_device_all", "device_to_host_all", "all_reduce")}


def test_a_held_stripe_and_synchronised_pulses_are_done_to_the_end(
    simulated: SimulatedHost,
) -> None:
    run = BurninRun(simulated, HELD_AND_PULSES, gpus=2)
    run.run()
    report = run.report()
    assert len(report["gpus"]) == 2
    for gpu in report["gpus"]:
        assert all(phase["complete"] for phase in gpu["coverage"]), gpu["coverage"]
        assert all(phase["checks"] and not phase["errors"] for phase in gpu["coverage"])
        assert [phase["retained_share"] for phase in gpu["coverage"][1:]] == [None] * 3
        for phase, hz in zip(gpu["coverage"][1:], (1.0, 10.0, 20.0), strict=True):
            swing = phase["power_swing"]
            assert (swing["hz"], swing["amplitude_w"]) == (hz, None), "samples are too few"
        retention = gpu["coverage"][0]
        assert retention["done_s"] > 1.0, "no progress was reported while the stripe was held"
        assert 0.05 < retention["retained_share"] <= 0.25
        assert retention["memory_heat"]["sensor"] == "memory"
        power = gpu["detection_power"]
        comparison, (bf16,) = power["comparison"], power["rounding"]
        assert comparison["found"] == comparison["injected"] > 0
        assert (bf16["format"], bf16["injected"]) == ("bf16", comparison["injected"])
        assert 0.3 < bf16["found"] / bf16["injected"] < 0.7
        assert power["exercised"]["parts"] == ["bf16", "memory"]
        assert {"fp8", "exp", "network"} <= {row["part"] for row in power["not_exercised"]}


def test_a_bit_that_fades_in_a_held_stripe_fails_the_gpu(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, FADING)
    run.run(code=ExitCode.FAIL)
    (gpu,) = run.report()["gpus"]
    assert {"results.wrong", "results.finding"} <= {
        one["id"] for one in gpu["checks"] if one["status"] == "fail"
    }
    (finding,) = gpu["findings"]
    assert (finding["place"], finding["first"][1], finding["bits"][17]) == ("memory", 3, 1)
    assert finding["detail"].startswith("pattern retention (random")


def test_units_are_exercised_and_the_report_says_which(simulated: SimulatedHost) -> None:
    after = ("after", "bad_workloads:checks_results", "seconds = 1")
    run = BurninRun(simulated, plan_of("units", ("units", UNITS, "seconds = 4"), after), gpus=2)
    run.run()
    report = run.report()
    check_passed(report)
    for gpu in report["gpus"]:
        phase, behind = gpu["coverage"]
        assert phase["complete"]
        assert behind["units"] == [], "the last work of a phase is not that of the next"
        units = {one["unit"]: one for one in phase["units"]}
        assert units.keys() == {"exp", "atomics", "attention", "fp4", "sfu", "gather"}
        for name in ("fp4", "sfu"):
            assert "not by this torch" in units.pop(name)["not_exercised"]
        assert all(one["checks"] and not one["wrong"] for one in units.values())
        power = gpu["detection_power"]
        assert set(power["exercised"]["parts"]) == units.keys()
        reasons = {row["part"]: row["why"] for row in power["not_exercised"]}
        assert all("not by this torch" in reasons[name] for name in ("fp4", "sfu"))


@pytest.mark.parametrize("unit", ["atomics", "gather"])
def test_a_unit_that_computes_wrong_fails_the_gpu_and_is_named(
    simulated: SimulatedHost, unit: str
) -> None:
    faulty = f"bad_workloads:computes_a_unit_wrong:unit={unit},plan=exp+atomics+gather"
    run = BurninRun(simulated, plan_of("units", ("units", faulty, "seconds = 8")))
    run.run(code=ExitCode.FAIL)
    (gpu,) = run.report()["gpus"]
    assert gpu["verdict"] == "FAIL"
    failed = {one["id"]: one["evidence"] for one in gpu["checks"] if one["status"] == "fail"}
    assert failed.keys() == {"results.wrong", "results.finding"}
    assert f"first: units {unit}" in failed["results.finding"]
    # On a busy host the phase may end within the turn of the unit, which is not counted then.
    assert {one["unit"] for one in gpu["coverage"][0]["units"] if one["wrong"]} <= {unit}
    (finding,) = gpu["findings"]
    assert (finding["dtype"], finding["count"], finding["bits"][3]) == (unit, 1, 1)


def test_two_gpus_test_their_links_together(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN.replace(LINKS, f"{LINKS}:nvls=true"), gpus=2)
    output = run.run()
    report = run.report()
    check_passed(report)
    assert not run.events("stressor.failed"), output
    assert samples(run, 2) == [HOST | ALL | {("peer", 1)}, HOST | ALL | {("peer", 0)}]
    for gpu in report["gpus"]:
        phase = gpu["coverage"][1]
        assert phase["complete"]
        assert phase["checks"] > 0
        found = checks_of(gpu)
        assert found["links.data"][0] == "pass"
        assert found["links.peer"] == ("n/a", "a simulated GPU has no link")
    members = [(event["rank"], event["members"]) for event in run.events("burnin.grouped")]
    assert members == [(0, [0, 1]), (1, [0, 1])]


def test_a_newcomer_interrupts_both_and_both_begin_again(simulated: SimulatedHost) -> None:
    # So long that the newcomer comes within the phase, also on a busy host.
    run = BurninRun(simulated, PLAN.replace("seconds = 3", "seconds = 15"), gpus=2)
    with run.started() as process:
        eventually(lambda: len(run.events("burnin.grouped")) == 2)
        eventually(lambda: len(run.events("stressor.ready")) == 4)
        with simulated.job(1, stay=0.5) as job:
            assert job.got_memory()
            job.wait_for_exit()
        output = output_of(process, ExitCode.OK)
    check_passed(run.report())
    assert not [event for name in FAILURES for event in run.events(name)], output
    (broken,) = run.events("burnin.ungrouped")
    assert (broken["index"], broken["reason"]) == (
        0,
        "GPU 1 left its group: a foreign process needed it",
    )
    assert len(run.events("burnin.grouped")) == 4
    for gpu in run.report()["gpus"]:
        assert gpu["coverage"][1]["complete"]
        assert checks_of(gpu)["links.data"][0] == "pass"


def test_a_rank_that_is_killed_is_no_fault_of_the_other(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN, gpus=2)
    with run.started() as process:
        eventually(lambda: len(run.events("stressor.ready")) == 4)
        (stressor,) = simulated.registry.processes(simulated.uuid(1))
        os.kill(stressor.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=3 * TIMEOUT_S)
    report = run.report()
    assert {event["index"] for event in run.events("stressor.failed")} == {1}, output
    for gpu in report["gpus"]:
        assert gpu["coverage"][1]["complete"]
        assert gpu["verdict"] in FAULTLESS, gpu["reasons"]


def test_a_gpu_alone_tests_the_links_to_the_host(simulated: SimulatedHost) -> None:
    run = BurninRun(simulated, PLAN, gpus=1)
    output = run.run()
    check_passed(run.report())
    assert "skipped, the run has one GPU: links.peer, links.all_reduce" in output
    assert samples(run, 1) == [HOST]
    (gpu,) = run.report()["gpus"]
    found = checks_of(gpu)
    assert found["links.data"][0] == "pass"
    for name in ("links.peer", "links.all_reduce"):
        assert found[name] == ("n/a", "skipped: the run has one GPU")
