"""The verdict of a fleet: what stands out in comparison, and that nothing missing passes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sentinel.burnin.checks.check import Status, Thresholds
from sentinel.burnin.checks.thresholds_file import parse
from sentinel.burnin.verdict import EXIT_CODES, Verdict
from sentinel.config.expectation import parse_expectation
from sentinel.fleet.fleet_checks import CHECKS
from sentinel.fleet.formats import FORMATS
from sentinel.fleet.node_files import FleetFiles
from sentinel.fleet.report import meaning
from sentinel.fleet.verdict import FleetVerdict, judge_fleet
from tests.harness.example_fleet import Fleets
from tests.harness.parameters import mostly_long

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
    "a GPU that is slower than good cards are": (
        {"rates": {(2, 3): 0.915}},
        {(ONE, 3): {"fleet.rate": WARN}},
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
        {"node_rates": {2: 0.935}},
        {
            (ONE, None): {"fleet.node_rate": FAIL},
        },
    ),
    "another power limit": (
        {"limits": {2: 600.0}},
        {(ONE, None): {"fleet.settings": WARN}},
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
def test_each_comparison_finds_its_fault_and_nothing_else(fault: str, fleets: Fleets) -> None:
    given, expected = FAULTS[fault]
    fleet = fleets.judged(template=quiet_counters(fleets.template), **given)
    assert found(fleet) == expected
    worst = {status for one in expected.values() for status in one.values()}
    assert fleet.verdict is (Verdict.FAIL if FAIL in worst else Verdict.WARN)
    by_name = {node.name: node for node in fleet.nodes}
    assert by_name[ONE].verdict is fleet.verdict
    assert {node.verdict for name, node in by_name.items() if name != ONE} == {Verdict.PASS}


def test_a_healthy_fleet_passes_every_comparison(fleets: Fleets) -> None:
    fleet = fleets.judged(template=quiet_counters(fleets.template))
    assert fleet.verdict is Verdict.PASS
    assert found(fleet) == {}
    assert fleet.not_compared == []
    assert [len(group.members) for group in fleet.groups] == [24]


def test_every_comparison_has_a_fault_in_these_tests() -> None:
    ids = {id_ for _, expected in FAULTS.values() for one in expected.values() for id_ in one}
    assert ids == CHECKS.ids


def test_a_comparison_makes_no_verdict_better(fleets: Fleets) -> None:
    verdicts = {0: "FAIL", 1: "INCOMPLETE", 2: "WARN", 3: "N/A"}
    fleet = fleets.judged(verdicts=verdicts)
    assert [node.gpus[0].verdict.value for node in fleet.nodes][:5] == [*verdicts.values(), "PASS"]
    assert [node.word for node in fleet.nodes][:3] == ["FAIL", "INCOMPLETE", "WARN"]


def test_a_fault_in_a_report_that_says_pass_fails(fleets: Fleets) -> None:
    report = fleets.report(1)
    report["gpus"][0]["checks"][0] |= {"status": "fail", "evidence": "it is lost"}
    fleet = fleets.judged(reports={1: report})
    assert [node.word for node in fleet.nodes][:3] == ["PASS", "FAIL", "PASS"]


def test_a_node_without_a_gpu_is_incomplete(fleets: Fleets) -> None:
    fleet = fleets.judged(template={**fleets.template, "gpus": []}, nodes=1)
    assert (fleet.verdict, fleet.nodes[0].reasons) == (Verdict.INCOMPLETE, ("no GPU was tested",))


# --- what is expected ------------------------------------------------------------------------

LIMIT = '[model."NVIDIA H200"]\npower_limit_w = 700\n'


@mostly_long(
    "text, given, word, reason",
    [
        ("gpus = 4", {}, "PASS", ""),
        ("gpus = 4", {"short": frozenset(range(6))}, "FAIL", "3 of 4 are there"),
        (LIMIT, {"limits": dict.fromkeys(range(6), 500.0)}, "FAIL", "is 500, expected 700"),
        ("[all]\necc = true", {}, "PASS", ""),
        ("[all]\nnvlinks = 20", {}, "FAIL", "nvlinks is 18, expected 20"),
        ("[all]\nmig = false", {}, "INCOMPLETE", "mig is not known"),
        ('[[infiniband]]\nport = "a/1"', {}, "INCOMPLETE", "state of port a/1 is not known"),
    ],
    quick=3,
)
def test_a_fleet_is_judged_by_what_its_nodes_were_not_asked_for(
    text: str, given: dict[str, Any], word: str, reason: str, fleets: Fleets
) -> None:
    template = quiet_counters(fleets.template)
    for gpu in template["gpus"]:
        gpu["counters"]["before"]["mig"] = None
    files = fleets.read(template=template, **given)
    fleet = judge_fleet(files, Thresholds(), parse_expectation(text, "f"))
    assert {node.word for node in fleet.nodes} == {word}
    said = [*fleet.nodes[1].reasons, *fleet.nodes[1].gpus[0].reasons]
    assert not reason or any(reason in one for one in said), said
    shown = FORMATS["text"](fleet)
    assert reason in " ".join(shown.split())


@mostly_long(
    "name, value",
    [("vbios", "97.00"), ("ecc", False), ("persistence", False), ("driver", "1"), ("model", "X")],
    quick=2,
)
def test_a_node_that_is_set_differently_is_named_unless_that_is_expected(
    name: str, value: Any, fleets: Fleets
) -> None:
    report = fleets.report(2)
    for gpu in report["gpus"]:
        gpu["counters"]["before"][name] = value
        gpu[name] = value
    report["node"][name] = value
    fleet = fleets.judged(reports={2: report})
    named = {node: rows for (node, _), rows in found(fleet).items() if "fleet.settings" in rows}
    assert named == {ONE: {"fleet.settings": WARN}}
    (result,) = next(node.results for node in fleet.nodes if node.name == ONE)
    assert "5 of 6 nodes have" in result.evidence
    if name != "model":
        expectation = parse_expectation(f"[all]\n{name} = {json.dumps([value])}", "f")
        files = fleets.read(reports={2: report})
        again = judge_fleet(files, Thresholds(), expectation)
        assert not any("fleet.settings" in rows for rows in found(again).values())


# --- groups ----------------------------------------------------------------------------------


def test_only_equal_hardware_is_compared(fleets: Fleets) -> None:
    slower = dict.fromkeys(range(4, 8), 0.8)
    limits = dict.fromkeys(range(4, 8), 600.0)
    fleet = fleets.judged(nodes=8, node_rates=slower, limits=limits)
    assert [str(group.hardware) for group in fleet.groups] == [
        "NVIDIA H200, driver 580.65.06, 600 W",
        "NVIDIA H200, driver 580.65.06, 700 W",
    ]
    assert found(fleet) == {(node.name, None): {"fleet.settings": WARN} for node in fleet.nodes}
    assert fleets.judged(nodes=8, node_rates={5: 0.8}).verdict is Verdict.FAIL


def test_too_few_gpus_are_not_compared(fleets: Fleets) -> None:
    small = {**fleets.template, "gpus": fleets.template["gpus"][:1]}
    fleet = fleets.judged(template=small, nodes=3, rates={(1, 0): 0.5})
    assert (fleet.verdict, fleet.groups[0].usual["flops_per_s"]) == (Verdict.PASS, None)
    more = fleets.judged(template=small, nodes=4, rates={(1, 0): 0.5})
    assert more.verdict is Verdict.FAIL


def test_a_load_below_the_power_limit_exempts_no_slow_gpu(fleets: Fleets) -> None:
    limits = dict.fromkeys(range(6), 1000.0)
    fleet = fleets.judged(limits=limits, rates={(2, 3): 0.5})
    assert found(fleet) == {(ONE, 3): {"fleet.rate": FAIL}}


def test_a_lower_maximum_clock_explains_no_lower_rate(fleets: Fleets) -> None:
    slow: dict[str, Any] = {"rates": {(2, 3): 0.89}}
    assert found(fleets.judged(**slow))[ONE, 3] == {"fleet.rate": FAIL}
    report = fleets.report(2, **slow)
    report["gpus"][3]["counters"]["before"]["sm_clock_maximum_mhz"] = 1500
    assert found(fleets.judged(reports={2: report}))[ONE, 3] == {"fleet.rate": FAIL}


# --- golden checksums ------------------------------------------------------------------------


def test_without_a_majority_every_gpu_fails(fleets: Fleets) -> None:
    two = {**fleets.template, "gpus": fleets.template["gpus"][:2]}
    fleet = fleets.judged(template=two, nodes=2, wrong=frozenset({(1, 0), (1, 1)}))
    assert [gpu.verdict.value for gpu in fleet.gpus] == ["FAIL"] * 4
    assert "no majority says which is right" in fleet.gpus[0].reasons[0]


def test_the_evidence_names_both_checksums_and_their_gpus(fleets: Fleets) -> None:
    fleet = fleets.judged(wrong=frozenset({(2, 3)}))
    (reason,) = next(gpu.reasons for gpu in fleet.gpus if gpu.verdict is Verdict.FAIL)
    assert reason.endswith(": 0xbad, as 0 of 23 other GPUs; 23 computed 0x5eed")


def test_a_gpu_that_contradicts_itself_fails_alone(fleets: Fleets) -> None:
    report = fleets.report(2)
    (one,) = report["gpus"][3]["golden_checksums"]
    report["gpus"][3]["golden_checksums"].append({**one, "checksum": "0xbad"})
    fleet = fleets.judged(reports={2: report})
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
    given: dict[str, Any], verdict: Verdict, code: int, fleets: Fleets
) -> None:
    fleet = fleets.judged(**given)
    assert (fleet.verdict, int(EXIT_CODES[fleet.verdict])) == (verdict, code)


def test_the_meaning_counts_the_missing_nodes(fleets: Fleets) -> None:
    fleet = fleets.judged(absent=frozenset({1, 4}))
    assert meaning(fleet) == "no fault was found, and 2 of 6 nodes are missing"
    assert fleet.node_counts["MISSING"] == 2


def test_the_order_of_the_files_does_not_matter(fleets: Fleets) -> None:
    files = fleets.read(
        rates={(2, 3): 0.8},
        wrong=frozenset({(1, 1)}),
        absent=frozenset({4}),
        limits={5: 500.0},
    )
    first = judge_fleet(files, Thresholds())
    for seed in range(5):
        nodes = list(files.nodes)
        random.Random(seed).shuffle(nodes)
        again = judge_fleet(FleetFiles(run=files.run, nodes=tuple(nodes)), Thresholds())
        assert again == first


# --- notices and thresholds ------------------------------------------------------------------


def test_a_reader_is_told_what_the_verdicts_do_not_say(fleets: Fleets) -> None:
    template = {
        **fleets.template,
        "run": {**fleets.template["run"], "simulated": True},
        "thresholds_overridden": {"rate.peers.warn": "< 0.9"},
    }
    fleet = fleets.judged(template=template, run_file=False)
    assert fleet.notices == (
        (
            "There is no fleet.json: a node that has written no report is not known here"
            " (--expect-nodes names all)."
        ),
        "These GPUs are simulated: the report says nothing about hardware.",
        "6 nodes were judged by thresholds that are not the default: node-[0000-0005]",
    )


def test_a_file_replaces_limits(fleets: Fleets) -> None:
    text = """
        spec = "dcgm-error-thresholds-v1"
        [common_thresholds."fleet.temperature.warn".GT]
        value = 30
    """
    files = fleets.read(heat={(2, 3): 20.0})
    fleet = judge_fleet(files, parse(text, "limits.toml", CHECKS.limits))
    assert (fleet.verdict, fleet.thresholds.overridden()) == (
        Verdict.PASS,
        {"fleet.temperature.warn": "> 30"},
    )
