"""The verdict of a fleet: what stands out in comparison, and that nothing missing passes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.check import Status
from sentinel.burnin.checks.thresholds import Thresholds, parse
from sentinel.burnin.verdict import EXIT_CODES, Verdict
from sentinel.fleet.fleet_checks import CHECKS
from sentinel.fleet.node_files import FleetFiles, read_fleet
from sentinel.fleet.report import meaning
from sentinel.fleet.verdict import FleetVerdict, judge_fleet
from tests.harness.example_fleet import ExampleFleet, judged

Template = dict[str, Any]


def found(fleet: FleetVerdict) -> dict[tuple[str, int | None], dict[str, Status]]:
    """Collect the comparisons that failed or warned, by node and GPU."""
    rows: dict[tuple[str, int | None], dict[str, Status]] = {}
    for node in fleet.nodes:
        if node.results:
            rows[node.name, None] = {result.id: result.status for result in node.results}
        for gpu in node.gpus:
            if gpu.results:
                rows[node.name, gpu.gpu.index] = {
                    result.id: result.status for result in gpu.results
                }
    return rows


FAIL, WARN = Status.FAIL, Status.WARN
ONE = "node-0002"

#: What is wrong with node 2 or its GPU 3, and what the comparison finds.
FAULTS: dict[str, tuple[dict[str, Any], dict[tuple[str, int | None], dict[str, Status]]]] = {
    "a slow GPU": ({"rates": {(2, 3): 0.88}}, {(ONE, 3): {"fleet.rate": FAIL}}),
    "a GPU that is slow for so equal ones": (
        {"rates": {(2, 3): 0.935}},
        {(ONE, 3): {"fleet.rate": FAIL}},
    ),
    "a hot GPU": ({"heat": {(2, 3): 20.0}}, {(ONE, 3): {"fleet.temperature": WARN}}),
    "a wrong checksum": (
        {"wrong": frozenset({(2, 3)})},
        {(ONE, 3): {"fleet.golden": FAIL}},
    ),
    "new correctable errors": (
        {"moved": {(2, 3): {"ecc_corrected_total": 7}}},
        {(ONE, 3): {"fleet.ecc_corrected": WARN}},
    ),
    "correctable errors of its life": (
        {"moved": {(2, 3): {"ecc_corrected_lifetime_total": 4000}}},
        {(ONE, 3): {"fleet.ecc_corrected_lifetime": WARN}},
    ),
    "retransmissions": (
        {"moved": {(2, 3): {"pcie_replays_total": 9}}},
        {(ONE, 3): {"fleet.pcie_replays": WARN}},
    ),
    "a slow node": (
        {"node_rates": {2: 0.93}},
        {
            (ONE, None): {"fleet.node_rate": FAIL},
            **{(ONE, index): {"fleet.rate": FAIL} for index in range(8)},
        },
    ),
    "a GPU that is gone": ({"short": frozenset({2})}, {(ONE, None): {"fleet.gpus": WARN}}),
}


def quiet_counters(template: Template) -> Template:
    """Return a template whose GPUs have the counters that the faults move."""
    report = {**template, "gpus": [dict(gpu) for gpu in template["gpus"]]}
    for gpu in report["gpus"]:
        zero = {"ecc_corrected_lifetime_total": 0, "pcie_replays_total": 0}
        gpu["counters"] = {name: {**one, **zero} for name, one in gpu["counters"].items()}
    return report


@pytest.mark.parametrize("fault", FAULTS)
def test_each_comparison_finds_its_fault_and_nothing_else(
    fault: str, template: Template, tmp_path: Path
) -> None:
    given, expected = FAULTS[fault]
    fleet = judged(ExampleFleet(template=quiet_counters(template), **given), tmp_path)
    assert found(fleet) == expected
    worst = {status for one in expected.values() for status in one.values()}
    assert fleet.verdict is (Verdict.FAIL if FAIL in worst else Verdict.WARN)
    by_name = {node.name: node for node in fleet.nodes}
    assert by_name[ONE].verdict is fleet.verdict
    assert {node.verdict for name, node in by_name.items() if name != ONE} == {Verdict.PASS}


def test_a_healthy_fleet_passes_every_comparison(template: Template, tmp_path: Path) -> None:
    fleet = judged(ExampleFleet(template=quiet_counters(template)), tmp_path)
    assert fleet.verdict is Verdict.PASS
    assert found(fleet) == {}
    assert fleet.not_compared == []
    assert [len(group.members) for group in fleet.groups] == [48]


def test_every_comparison_has_a_fault_in_these_tests() -> None:
    ids = {id_ for _, expected in FAULTS.values() for one in expected.values() for id_ in one}
    assert ids == CHECKS.ids


def test_a_comparison_makes_no_verdict_better(template: Template, tmp_path: Path) -> None:
    verdicts = {0: "FAIL", 1: "INCOMPLETE", 2: "WARN", 3: "N/A"}
    fleet = judged(ExampleFleet(template=template, verdicts=verdicts), tmp_path)
    assert [node.gpus[0].verdict.value for node in fleet.nodes][:5] == [*verdicts.values(), "PASS"]
    assert [node.word for node in fleet.nodes][:3] == ["FAIL", "INCOMPLETE", "WARN"]


def test_a_fault_in_a_report_that_says_pass_fails(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run")
    report = example.report(1)
    report["gpus"][0]["checks"][0] |= {"status": "fail", "evidence": "it is lost"}
    folder.report("node-0001").write_text(json.dumps(report))
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    assert [node.word for node in fleet.nodes][:3] == ["PASS", "FAIL", "PASS"]


def test_a_node_without_a_gpu_is_incomplete(template: Template, tmp_path: Path) -> None:
    fleet = judged(ExampleFleet(template={**template, "gpus": []}, nodes=1), tmp_path)
    assert (fleet.verdict, fleet.nodes[0].reasons) == (Verdict.INCOMPLETE, ("no GPU was tested",))


# --- groups ----------------------------------------------------------------------------------


def test_only_equal_hardware_is_compared(template: Template, tmp_path: Path) -> None:
    slower = dict.fromkeys(range(4, 8), 0.8)
    limits = dict.fromkeys(range(4, 8), 600.0)
    both = ExampleFleet(template=template, nodes=8, node_rates=slower, limits=limits)
    fleet = judged(both, tmp_path)
    assert [str(group.hardware) for group in fleet.groups] == [
        "NVIDIA H200, driver 580.65.06, 600 W",
        "NVIDIA H200, driver 580.65.06, 700 W",
    ]
    assert found(fleet) == {}
    alike = ExampleFleet(template=template, nodes=8, node_rates={5: 0.8})
    assert judged(alike, tmp_path / "alike").verdict is Verdict.FAIL


def test_too_few_gpus_are_not_compared(template: Template, tmp_path: Path) -> None:
    small = {**template, "gpus": template["gpus"][:1]}
    few = ExampleFleet(template=small, nodes=3, rates={(1, 0): 0.5})
    fleet = judged(few, tmp_path)
    assert (fleet.verdict, fleet.groups[0].rate) == (Verdict.PASS, None)
    more = ExampleFleet(template=small, nodes=4, rates={(1, 0): 0.5})
    assert judged(more, tmp_path / "more").verdict is Verdict.FAIL


def test_a_load_below_the_power_limit_judges_no_rate(template: Template, tmp_path: Path) -> None:
    limits = dict.fromkeys(range(6), 1000.0)
    fleet = judged(ExampleFleet(template=template, limits=limits, rates={(2, 3): 0.5}), tmp_path)
    assert found(fleet) == {}
    (first, *_) = fleet.not_compared
    assert first == ("fleet.rate: the load reached less than 75% of the power limit", 48)


def test_a_lower_maximum_clock_explains_a_lower_rate(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(template=template, rates={(2, 3): 0.94})
    files = read_fleet(example.write(tmp_path / "run").path)
    assert found(judge_fleet(files, Thresholds()))[ONE, 3] == {"fleet.rate": FAIL}
    nodes = list(files.nodes)
    result = nodes[2].result
    assert result is not None
    gpus = list(result.gpus)
    assert gpus[3].before is not None
    gpus[3] = replace(gpus[3], before=replace(gpus[3].before, sm_clock_maximum_mhz=1500))
    nodes[2] = replace(nodes[2], result=replace(result, gpus=tuple(gpus)))
    fleet = judge_fleet(replace(files, nodes=tuple(nodes)), Thresholds())
    assert found(fleet)[ONE, 3] == {"fleet.rate": WARN}


# --- golden checksums ------------------------------------------------------------------------


def test_without_a_majority_every_gpu_fails(template: Template, tmp_path: Path) -> None:
    two = {**template, "gpus": template["gpus"][:2]}
    wrong = frozenset({(1, 0), (1, 1)})
    fleet = judged(ExampleFleet(template=two, nodes=2, wrong=wrong), tmp_path)
    assert [gpu.verdict.value for gpu in fleet.gpus] == ["FAIL"] * 4
    assert "no majority says which is right" in fleet.gpus[0].reasons[0]


def test_the_evidence_names_both_checksums_and_their_gpus(
    template: Template, tmp_path: Path
) -> None:
    fleet = judged(ExampleFleet(template=template, wrong=frozenset({(2, 3)})), tmp_path)
    (reason,) = next(gpu.reasons for gpu in fleet.gpus if gpu.verdict is Verdict.FAIL)
    assert reason.endswith(": 0xbad, as 0 of 47 other GPUs; 47 computed 0x5eed")


def test_a_gpu_that_contradicts_itself_fails_alone(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run")
    report = example.report(2)
    (one,) = report["gpus"][3]["golden_checksums"]
    report["gpus"][3]["golden_checksums"].append({**one, "checksum": "0xbad"})
    folder.report(ONE).write_text(json.dumps(report))
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    assert found(fleet) == {(ONE, 3): {"fleet.golden": FAIL}}


# --- missing nodes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "verdict", "code"),
    [
        ({}, Verdict.PASS, 0),
        ({"absent": frozenset({1})}, Verdict.INCOMPLETE, 3),
        ({"half": frozenset({1})}, Verdict.INCOMPLETE, 3),
        ({"absent": frozenset(range(6))}, Verdict.INCOMPLETE, 3),
        ({"absent": frozenset({1}), "verdicts": {2: "FAIL"}}, Verdict.FAIL, 1),
        ({"verdicts": {2: "WARN"}}, Verdict.WARN, 0),
        ({"verdicts": {2: "INCOMPLETE"}}, Verdict.INCOMPLETE, 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_node(
    given: dict[str, Any], verdict: Verdict, code: int, template: Template, tmp_path: Path
) -> None:
    fleet = judged(ExampleFleet(template=template, **given), tmp_path)
    assert (fleet.verdict, int(EXIT_CODES[fleet.verdict])) == (verdict, code)


def test_the_meaning_counts_the_missing_nodes(template: Template, tmp_path: Path) -> None:
    fleet = judged(ExampleFleet(template=template, absent=frozenset({1, 4})), tmp_path)
    assert meaning(fleet) == "no fault was found, and 2 of 6 nodes are missing"
    assert fleet.node_counts["MISSING"] == 2


def test_the_order_of_the_files_does_not_matter(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(
        template=template,
        rates={(2, 3): 0.8},
        wrong=frozenset({(1, 1)}),
        absent=frozenset({4}),
        limits={5: 500.0},
    )
    files = read_fleet(example.write(tmp_path / "run").path)
    first = judge_fleet(files, Thresholds())
    for seed in range(5):
        nodes = list(files.nodes)
        random.Random(seed).shuffle(nodes)
        again = judge_fleet(FleetFiles(run=files.run, nodes=tuple(nodes)), Thresholds())
        assert again == first


# --- notices and thresholds ------------------------------------------------------------------


def test_a_reader_is_told_what_the_verdicts_do_not_say(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(
        template={
            **template,
            "run": {**template["run"], "simulated": True},
            "thresholds_overridden": {"rate.peers.warn": "< 0.9"},
        }
    )
    fleet = judged(example, tmp_path, run_file=False)
    assert fleet.notices == (
        "There is no fleet.json: a node that has written no report is not known here.",
        "These GPUs are simulated: the report says nothing about hardware.",
        "6 nodes were judged by thresholds that are not the default.",
    )


def test_a_file_replaces_limits(template: Template, tmp_path: Path) -> None:
    text = """
        spec = "dcgm-error-thresholds-v1"
        [common_thresholds."fleet.temperature.warn".GT]
        value = 30
    """
    folder = ExampleFleet(template=template, heat={(2, 3): 20.0}).write(tmp_path / "run")
    fleet = judge_fleet(read_fleet(folder.path), parse(text, "limits.toml", CHECKS.limits))
    assert (fleet.verdict, fleet.thresholds.overridden()) == (
        Verdict.PASS,
        {"fleet.temperature.warn": "> 30"},
    )
