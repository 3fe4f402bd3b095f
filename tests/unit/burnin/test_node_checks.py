"""The health of a node for Nagios, for node-problem-detector and as JSON; proven faults."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sentinel.burnin.checks import node_formats
from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.node_report import FAILED, PASSED, NodeReport, judge_node, proven_fault
from sentinel.burnin.verdict import Verdict
from sentinel.cli.display.output import to_json
from sentinel.protocol.api_types import GpuProof
from sentinel.protocol.counters import READ_FIELDS, Counters
from tests.harness.check_evidence import HEALTHY

SECOND = replace(HEALTHY, index=1, uuid="GPU-2", serial="2", pci_bus_id="00000000:02:00.0")
BLIND = Counters(uuid="", index=2, name="", at=0.0).unread("no permission\nat | all")


def judged(*gpus: Counters) -> NodeReport:
    return judge_node(gpus, Thresholds())


HEALTHY_NODE = judged(HEALTHY, SECOND)
WARNED = judged(HEALTHY, replace(SECOND, remap_banks_low=2))
FAULTY_NODE = judged(
    replace(HEALTHY, remap_failed=True), replace(SECOND, lost="gone | forever\n" * 20), BLIND
)
UNTESTED = judged(BLIND)
#: A card of which every call fails but that for the banks, which warn.
UNREAD = judged(
    HEALTHY,
    replace(
        Counters(uuid="GPU-2", index=1, name=HEALTHY.name, at=0.0, remap_banks_low=2),
        failed=dict.fromkeys(set(READ_FIELDS) - {"remap_banks_low"}, "ERR!"),
    ),
)
SILENT = "nvmlDeviceGetTemperature did not return within 10 s"
LOST = judged(replace(HEALTHY, lost=SILENT, unanswered=True))
EMPTY = judged()
#: Neither NVML nor the PCI bus has a GPU.
GONE = judge_node((), Thresholds(), pci_devices=())
NO_DRIVER = replace(EMPTY, driver_error="there is no driver | here\n" + "x" * 200)


@pytest.mark.parametrize(
    ("report", "plain", "nagios", "npd", "text"),
    [
        (HEALTHY_NODE, 0, 0, 0, "GPU OK - 2 GPUs tested | gpus=2 fail=0;;0 warn=0;0 not_tested=0 "),
        (WARNED, 0, 1, 0, "GPU WARNING - GPU 1: memory.bank_headroom = 2 | gpus=2 fail=0;;0 warn="),
        (
            FAULTY_NODE,
            1,
            2,
            1,
            "GPU CRITICAL - GPU 0: memory.remap_failed = 1, GPU 1: gpu.lost = lost (gone / forever",
        ),
        (UNTESTED, 3, 3, 2, "GPU UNKNOWN - GPU 2: no permission at / all | gpus=1 "),
        (
            UNREAD,
            3,
            3,
            2,
            "GPU UNKNOWN - GPU 1: could not be read: memory errors, memory repairs, temp",
        ),
        (LOST, 3, 3, 2, "GPU UNKNOWN - GPU 0: nvmlDeviceGetTemperature did not return within"),
        (EMPTY, 3, 3, 2, "GPU UNKNOWN - no GPU was tested | gpus=0 "),
        (GONE, 3, 3, 2, "GPU UNKNOWN - no GPU was tested | gpus=0 "),
        (NO_DRIVER, 2, 3, 2, "GPU UNKNOWN - there is no driver / here xxx"),
    ],
)
def test_each_format_has_its_exit_code_and_line(
    report: NodeReport, plain: int, nagios: int, npd: int, text: str
) -> None:
    assert node_formats.exit_code(report) == plain
    code, line = node_formats.nagios(report)
    assert code == nagios
    assert line.startswith(text)
    assert "\n" not in line
    assert line.count("|") <= 1
    code, short = node_formats.npd(report)
    assert code == npd
    assert 0 < len(short) <= 80
    assert "\n" not in short


def test_a_gpu_that_failed_is_a_verdict_even_if_the_driver_is_gone() -> None:
    report = replace(FAULTY_NODE, driver_error="nvmlInit did not return")
    assert node_formats.exit_code(report) == 1
    assert node_formats.nagios(report)[0] == 2
    assert node_formats.npd(report)[0] == 1
    assert node_formats.as_object(report)["verdict"] == "fail"
    assert node_formats.as_object(report)["driver_error"] == "nvmlInit did not return"


def test_performance_data_are_numbers_with_labels() -> None:
    _, line = node_formats.nagios(HEALTHY_NODE)
    data = dict(item.split("=") for item in line.partition(" | ")[2].split())
    assert data["gpus"] == "2"
    assert data["gpu0_temperature_left"] == "27"
    assert data["gpu1_ecc_uncorrected"] == "0"


def test_many_faults_are_counted_in_the_line() -> None:
    report = judged(*(replace(HEALTHY, index=index, remap_failed=True) for index in range(8)))
    assert "and 3 more" in node_formats.nagios(report)[1]
    assert node_formats.npd(report)[1] == "GPU 0: memory.remap_failed = 1, and 7 more"


def test_the_object_has_every_check_with_its_fields() -> None:
    found = json.loads(json.dumps(to_json(node_formats.as_object(FAULTY_NODE))))
    assert found["verdict"] == "fail"
    assert [gpu["verdict"] for gpu in found["gpus"]] == ["fail", "fail", "not tested"]
    assert found["gpus"][2]["uuid"] is None
    first = found["gpus"][0]
    assert first["counters"]["nvlinks"][17]["active"] is True
    checks = {check["id"]: check for check in first["checks"]}
    assert checks["memory.remap_failed"] == {
        "id": "memory.remap_failed",
        "status": "fail",
        "value": 1,
        "unit": "",
        "threshold": "fail > 0",
        "source": "NVIDIA, RMA policy for row remapping",
        "severity": "isolate",
        "action": "CONTACT_SUPPORT: run NVIDIA's field diagnostic; if it confirms the fault, "
        "replace the card.",
        "evidence": "remap_failed = 1",
        "unread": "",
    }
    nothing = node_formats.as_object(NO_DRIVER)
    assert (nothing["verdict"], nothing["gpus"]) == (None, [])


@pytest.mark.parametrize(
    ("verdict", "errors", "findings", "fault"),
    [
        (None, None, 0, None),
        ("PASS", 0, 0, None),
        ("INCOMPLETE", 0, 0, None),
        ("FAIL", None, 0, "failed burn-in long"),
        ("FAIL", 1, 1, "failed burn-in long"),
        ("PASS", 1, 0, "1 wrong result"),
        (None, 1, 2, "3 wrong results"),
    ],
)
def test_a_fault(verdict: str | None, errors: int | None, findings: int, fault: str | None) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    proof = None if errors is None else GpuProof(since=since, errors=errors, findings=findings)
    assert proven_fault(verdict, "long", proof) == fault


def test_the_names_are_those_of_verdicts() -> None:
    assert {FAILED} == {Verdict.FAIL.value}
    assert {Verdict.PASS.value, Verdict.WARN.value} == PASSED
