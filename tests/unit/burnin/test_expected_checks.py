"""What is not as an expectation says fails, and what is not known of it leaves a node unproved."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from sentinel.burnin.checks.check import Status, Thresholds
from sentinel.burnin.checks.evidence import ExpectedEvidence, MomentEvidence
from sentinel.burnin.checks.expected_checks import learn
from sentinel.burnin.checks.node_formats import nagios, npd
from sentinel.burnin.checks.node_report import MOMENT, judge_node
from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import judge_run, report_object
from sentinel.burnin.verdict import Verdict
from sentinel.cli.tools.check import summary_lines
from sentinel.config.expectation import (
    GPU_FIELDS,
    Expectation,
    expectation_toml,
    parse_expectation,
)
from sentinel.protocol.counters import Counters, HostCounters, NvLink, Port
from tests.harness.check_evidence import HEALTHY, PEER
from tests.harness.example_run import ExampleRun
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long

PORT = Port(name="mlx5_0/1", state="ACTIVE", rate="400 Gb/sec (4X NDR)", layer="InfiniBand")
LINKS = tuple(NvLink(link=link, active=True, speed_mbps=26562) for link in range(18))
NODE = tuple(
    replace(
        HEALTHY,
        uuid=f"GPU-{index}",
        index=index,
        serial=str(index),
        pci_bus_id=f"00000000:{index:02X}:00.0",
        nvlinks=LINKS,
    )
    for index in range(8)
)
HOST = HostCounters(ports=(PORT,))


def judge(
    expectation: Expectation, *gpus: Counters, host: HostCounters = HOST, **more: Any
) -> tuple[Status, str]:
    """Judge a node at one moment: its status, and the texts of what is not as expected."""
    evidence = ExpectedEvidence(expectation=expectation, listed=gpus, hosts=(host,), **more)
    report = judge_node(gpus, Thresholds(), more=(evidence,))
    found = [*report.node, *(check for gpu in report.gpus for check in gpu.checks)]
    texts = [one.evidence for one in found if one.id in {"gpu.expected", "node.expected"}]
    return report.status, "; ".join(filter(None, texts))


def learned(*gpus: Counters) -> Expectation:
    text = expectation_toml(learn(gpus, HOST, "f")[0])
    return parse_expectation(text, "f")


#: By the field: a counter that makes it another one, and how that is worded.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "memory_mib": ({"memory_total": 2**30}, "memory_mib is 1024, expected 143771"),
    "driver": ({"driver": "570.1"}, "driver is 570.1, expected 580.159"),
    "vbios": ({"vbios": "96"}, "vbios is 96, expected 96.00.9F.00.02"),
    "power_limit_w": ({"power_limit_w": 500.0}, "power_limit_w is 500, expected 700"),
    "ecc": ({"ecc": False}, "ecc is off, expected on"),
    "mig": ({"mig": True}, "mig is on, expected off"),
    "persistence": ({"persistence": False}, "persistence is off, expected on"),
    "pcie_generation": ({"pcie_generation_maximum": 4}, "pcie_generation is 4, expected 5"),
    "pcie_width": ({"pcie_width": 8}, "pcie_width is 8, expected 16"),
    "nvlinks": ({"nvlinks": LINKS[1:]}, "nvlinks is 17, expected 18"),
    "nvlink_speed_mbps": (
        {"nvlinks": (replace(LINKS[0], speed_mbps=25000), *LINKS[1:])},
        "nvlink_speed_mbps is 25000, expected 26562",
    ),
}


def test_a_node_meets_what_was_learned_of_it() -> None:
    expectation = learned(*NODE)
    assert expectation.models[HEALTHY.name].keys() == GPU_FIELDS.keys() == CHANGES.keys()
    assert judge(expectation, *NODE) == (Status.PASS, "")


@pytest.mark.parametrize("name", CHANGES)
def test_a_difference_fails_the_node_and_names_both_values(name: str) -> None:
    changed, text = CHANGES[name]
    status, found = judge(learned(*NODE), replace(NODE[0], **changed), *NODE[1:])
    assert (status, found) == (Status.FAIL, text)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("why", ["Unknown Error", None])
def test_a_field_that_is_not_known_is_never_a_pass(name: str, why: str | None) -> None:
    counter = next(iter(CHANGES[name][0]))
    counter = "pcie_width_maximum" if counter == "pcie_width" else counter
    fields: dict[str, Any] = {counter: None, "failed": {counter: why} if why else {}}
    status, found = judge(learned(*NODE), replace(NODE[0], **fields), *NODE[1:])
    assert (status, f"{name} is not known" in found) == (Status.NOT_TESTED, True)


def test_a_model_that_no_table_names_is_a_difference() -> None:
    other = replace(NODE[0], name="NVIDIA H200 NVL")
    status, found = judge(learned(*NODE), other, *NODE[1:])
    assert (status, found) == (Status.FAIL, "model is NVIDIA H200 NVL, expected NVIDIA H200")


def test_two_revisions_of_a_model_are_learned_as_a_list() -> None:
    mixed = (replace(NODE[0], vbios="97.00"), *NODE[1:])
    assert judge(learned(*mixed), *mixed) == (Status.PASS, "")
    assert judge(learned(*mixed), *NODE) == (Status.PASS, "")


SERIALS = parse_expectation('serials = ["0", "1"]', "f")
PORTS = parse_expectation('[[infiniband]]\nport = "mlx5_0/1"\nrate_gbps = 400', "f")


@pytest.mark.parametrize(
    ("expectation", "gpus", "host", "status", "text"),
    [
        (SERIALS, NODE[:2], HOST, Status.PASS, ""),
        (SERIALS, NODE[:1], HOST, Status.FAIL, "no GPU has the serial number 1"),
        (SERIALS, NODE[1:3], HOST, Status.FAIL, "serial of GPU 2 is 2, expected another"),
        (
            SERIALS,
            (NODE[0], replace(NODE[1], serial=None)),
            HOST,
            Status.NOT_TESTED,
            "no GPU has the serial number 1",
        ),
        (PORTS, NODE, HOST, Status.PASS, ""),
        (PORTS, NODE, HostCounters(), Status.FAIL, "state of port mlx5_0/1 is missing"),
        (PORTS, NODE, HostCounters(error="it hung"), Status.NOT_TESTED, "it hung"),
        (PORTS, NODE, HostCounters(ports=(replace(PORT, state="DOWN"),)), Status.FAIL, "is DOWN"),
        (
            PORTS,
            NODE,
            HostCounters(ports=(replace(PORT, rate=None),)),
            Status.NOT_TESTED,
            "the kernel does not say it",
        ),
        (
            PORTS,
            NODE,
            HostCounters(ports=(replace(PORT, rate="200 Gb/sec (4X HDR)"),)),
            Status.FAIL,
            "rate_gbps of port mlx5_0/1 is 200, expected 400",
        ),
    ],
)
def test_serials_and_ports_are_judged_by_the_node(
    expectation: Expectation,
    gpus: tuple[Counters, ...],
    host: HostCounters,
    status: Status,
    text: str,
) -> None:
    found = judge(expectation, *gpus, host=host)
    assert (found[0], text in found[1]) == (status, True)


def test_a_power_limit_below_the_default_warns_unless_it_is_expected() -> None:
    limited = tuple(replace(gpu, power_limit_w=500.0) for gpu in NODE)
    assert judge(Expectation(), *limited)[0] is Status.WARN
    report = judge_node(limited, Thresholds())
    (line, *_) = summary_lines(report, colour=False, width=200)
    assert "power.limit (500 W is below the default of 700 W" in line
    assert judge(learned(*limited), *limited)[0] is Status.PASS


def test_without_an_expectation_every_line_says_that_the_number_was_not_checked() -> None:
    evidence = ExpectedEvidence(expectation=Expectation(), listed=NODE)
    report = judge_node(NODE, Thresholds(), more=(evidence,))
    assert "8 GPUs tested; the number of GPUs was not checked |" in nagios(report)[1]
    assert npd(report) == (0, "8 GPUs tested; the number of GPUs was not checked")


def test_no_threshold_raises_what_is_expected() -> None:
    for name in ("gpu.expected", "node.expected", "node.gpus"):
        assert not MOMENT[name].limits


# --- a burn-in -------------------------------------------------------------------------------

WHOLE = """
gpus = 2
[model."NVIDIA H200"]
driver = {min = "580.65"}
power_limit_w = 700
persistence = true
pcie_generation = 5
"""


@pytest.mark.parametrize(
    ("unanswered", "wanted", "status"),
    [(True, 8, Status.NOT_TESTED), (None, 8, Status.FAIL), (True, 9, Status.FAIL)],
    ids=["did not answer", "lost", "another is missing"],
)
def test_a_gpu_whose_call_does_not_return_is_not_missing(
    unanswered: bool | None,  # noqa: FBT001 - a parameter of the test
    wanted: int,
    status: Status,
) -> None:
    gpus = (*NODE[:7], replace(NODE[7], lost="nvmlDeviceGetName", unanswered=unanswered))
    evidence = ExpectedEvidence(expectation=Expectation(gpus=wanted), listed=gpus)
    report = judge_node(gpus, Thresholds(), more=(evidence,))
    (found,) = (one for one in report.node if one.id == "node.gpus")
    assert found.status is status
    assert ("GPU 7 is lost" in found.evidence) is (unanswered is None)


def verdict(tmp_path: Path, text: str, **more: Any) -> tuple[Verdict, str]:
    """Judge a recorded run with an expectation; return its verdict and what is said of it."""
    run = ExampleRun(expectation=text, **more)
    judged = judge_run(run.write(tmp_path / "run"), Thresholds())
    return judged.verdict, report_object(judged)["meaning"]


@mostly_long(
    "old, new, wanted, text",
    [
        ("", "", Verdict.PASS, "no fault was found"),
        ("gpus = 2", "gpus = 3", Verdict.FAIL, "2 of 3 are there"),
        ("gpus = 2\n", "", Verdict.PASS, "the number of GPUs was not checked"),
        ("580.65", "581", Verdict.FAIL, "driver is 580.65.06, expected at least 581"),
        ("limit_w = 700", "limit_w = 650", Verdict.FAIL, "is 700, expected 650"),
        ("generation = 5", "generation = 6", Verdict.FAIL, "is 5, expected 6"),
        ("gpus = 2", 'gpus = 2\nserials = ["1"]', Verdict.FAIL, "no GPU has the serial number 1"),
        (
            "gpus = 2",
            'gpus = 2\n[[infiniband]]\nport = "mlx5_0/1"',
            Verdict.INCOMPLETE,
            "node.expected: ",
        ),
    ],
    quick=3,
)
def test_a_burn_in_is_judged_by_the_expectation_of_its_record(
    tmp_path: Path, old: str, new: str, wanted: Verdict, text: str
) -> None:
    found, meaning = verdict(tmp_path, WHOLE.replace(old, new))
    assert (found, text in meaning) == (wanted, True), meaning


def test_what_is_not_known_of_the_node_is_an_error_in_junit(tmp_path: Path) -> None:
    run = ExampleRun(expectation='[[infiniband]]\nport = "mlx5_0/1"')
    judged = judge_run(run.write(tmp_path / "run"), Thresholds())
    text = FORMATS["junit"](judged, report_object(judged))
    assert ET.fromstring(text).get("errors") == "1"  # noqa: S314 - of this program
    assert "state of port mlx5_0/1 is not known" in FORMATS["text"](judged, report_object(judged))


@pytest.mark.parametrize(
    ("moved", "wanted"),
    [
        ({"persistence": False}, Verdict.FAIL),
        ({"persistence": None, "failed": {"persistence": "x"}}, Verdict.INCOMPLETE),
        ({"persistence": None}, Verdict.INCOMPLETE),
    ],
)
def test_each_reading_of_a_burn_in_counts(
    tmp_path: Path, moved: dict[str, Any], wanted: Verdict
) -> None:
    assert verdict(tmp_path, WHOLE, moved={1: moved})[0] is wanted


def test_a_gpu_is_judged_by_itself() -> None:
    evidence = MomentEvidence(counters=HEALTHY, expectation=Expectation())
    assert MOMENT["gpu.expected"].run(evidence, Thresholds()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize(("held", "errors"), [({}, 0), ({PEER.uuid: "pid 5 (x)"}, 1)])
def test_a_gpu_that_was_held_elsewhere_is_an_error_in_junit(
    tmp_path: Path, held: dict[str, str], errors: int
) -> None:
    folder = ExampleRun().write(tmp_path)
    counters = json.loads(folder.counters.read_text())
    gpus = [counters["before"][0], asdict(PEER)]
    found = {**counters, "before": gpus, "selected": True, "held_elsewhere": held}
    folder.write(folder.counters, found)
    judged = judge_run(folder)
    text = FORMATS["junit"](judged, report_object(judged))
    node = ET.fromstring(text).find("testsuite[@name='node']")  # noqa: S314 - of this program
    assert not_none(node).get("errors") == str(errors)
    assert ("has no verdict: it is held by pid 5 (x)" in text) == bool(errors)
