"""Each check finds its fault, passes a healthy GPU, and takes no missing value for a fault."""

from __future__ import annotations

import random
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.burnin.checks.check import (
    Check,
    CheckResult,
    Evidence,
    NodeEvidence,
    Severity,
    Status,
    worst,
)
from sentinel.burnin.checks.counter_checks import DAEMON_CHECKS, MOMENT_CHECKS, NODE_CHECKS
from sentinel.burnin.checks.growth_checks import GROWTH_CHECKS
from sentinel.burnin.checks.node_report import judge_node
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.protocol.counters import READ_FIELDS, Counters, NvLink
from tests.harness.healthy_counters import HEALTHY, later, random_healthy

CHECKS = {check.id: check for check in (*MOMENT_CHECKS, *GROWTH_CHECKS)}
SECONDS = 3600.0
BEFORE = HEALTHY
AFTER = replace(HEALTHY, at=HEALTHY.at + SECONDS, energy_j=2e6)
LINKS = HEALTHY.nvlinks or ()


def links(**first: Any) -> tuple[NvLink, ...]:
    """Change the first link."""
    return (replace(LINKS[0], **first), *LINKS[1:])


def run(check: str, now: Counters, before: Counters | None = None, *peers: Counters) -> CheckResult:
    """Run a check of one moment, or of a difference if there is a reading before."""
    if before is None:
        evidence = Evidence(before=now, node=(now, *peers))
    else:
        evidence = Evidence(before=before, after=now, seconds=SECONDS, node=(before, *peers))
    return CHECKS[check].run(evidence, Thresholds())


PEER = replace(HEALTHY, index=1, uuid="GPU-22222222-0000-0000-0000-000000000000")

#: A check of one moment, the changed values, the status and the value.
MOMENTS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("gpu.lost", {"lost": "the GPU fell off the bus"}, "fail", "lost"),
    ("recovery.action", {"recovery_action": "gpu_reset"}, "fail", "gpu_reset"),
    ("recovery.action", {"recovery_action": "action 9"}, "fail", "action 9"),
    ("ecc.mode", {"ecc": False}, "warn", "off"),
    ("ecc.mode", {"ecc_pending": False}, "warn", "on"),
    ("ecc.mode", {"ecc": False, "name": "NVIDIA GeForce RTX 4090"}, "pass", "off"),
    ("ecc.uncorrected", {"ecc_uncorrected_total": 1}, "warn", 1),
    ("memory.sram_threshold", {"sram_threshold_exceeded": True}, "fail", 1),
    ("memory.remap_failed", {"remap_failed": True}, "fail", 1),
    ("memory.repair_pending", {"remap_pending": True}, "warn", 1),
    ("memory.repair_pending", {"retirement_pending": True}, "warn", 1),
    ("memory.repair_pending", {"channel_repair_pending": True}, "warn", 1),
    ("memory.repair_pending", {"tpc_repair_pending": True, "remap_pending": None}, "warn", 1),
    ("memory.unrepairable", {"memory_unrepairable": True}, "fail", 1),
    ("memory.bank_headroom", {"remap_banks_low": 2, "remap_banks_none": 1}, "warn", 3),
    ("memory.retired_pages", {"retired_corrected_total": 14}, "pass", 14),
    ("memory.retired_pages", {"retired_corrected_total": 15}, "warn", 15),
    (
        "memory.retired_pages",
        {"retired_corrected_total": 60, "retired_uncorrected_total": 3},
        "fail",
        63,
    ),
    ("inforom.valid", {"inforom_valid": False}, "warn", "corrupted"),
    ("clocks.hardware_slowdown", {"reasons": ("hw_slowdown",)}, "warn", 1),
    (
        "clocks.hardware_slowdown",
        {"reasons": ("sw_power_cap", "hw_slowdown", "hw_power_brake_slowdown")},
        "warn",
        2,
    ),
    ("temperature.gpu", {"temperature_c": 83}, "pass", 4),
    ("temperature.gpu", {"temperature_c": 84}, "warn", 3),
    ("temperature.gpu", {"temperature_c": 87}, "warn", 0),
    ("temperature.gpu", {"temperature_c": 88}, "fail", -1),
    ("temperature.limit", {"temperature_margin_c": 3}, "pass", 5),
    ("temperature.limit", {"temperature_margin_c": 2}, "warn", 4),
    ("temperature.limit", {"temperature_margin_c": -2}, "fail", 0),
    ("temperature.memory", {"memory_temperature_c": 89}, "pass", 6),
    ("temperature.memory", {"memory_temperature_c": 90}, "warn", 5),
    ("temperature.memory", {"memory_temperature_c": 95}, "fail", 0),
    ("pcie.generation", {"pcie_generation": 4}, "fail", 4),
    ("pcie.generation", {"pcie_generation": 1, "reasons": ("gpu_idle",)}, "not tested", None),
    ("pcie.generation", {"pcie_generation": 1, "reasons": None}, "not tested", None),
    ("pcie.generation", {"pcie_generation": 1, "sm_clock_mhz": 345}, "not tested", None),
    ("pcie.width", {"pcie_width": 8}, "fail", 8),
    ("pcie.width", {"pcie_width": 8, "reasons": ("gpu_idle",)}, "not tested", None),
    ("nvlink.inactive", {"nvlinks": links(active=False)}, "fail", 1),
    ("nvlink.inactive", {"nvlinks": links(active=False), "mig": True}, "n/a", None),
    ("nvlink.bit_error_rate", {"nvlinks": links(effective_ber=2e-12)}, "fail", 2e-12),
    ("nvlink.bit_error_rate", {"nvlinks": links(effective_ber=1e-12)}, "pass", 1e-12),
    ("fabric.state", {"fabric_state": "not_started"}, "fail", "not_started"),
    ("fabric.state", {"fabric_state": "failed"}, "fail", "failed"),
    ("fabric.state", {"fabric_state": "in_progress"}, "warn", "in_progress"),
    ("fabric.state", {"fabric_state": "not_supported"}, "n/a", None),
    ("fabric.health", {"fabric_health": "unhealthy"}, "fail", "unhealthy"),
    ("fabric.health", {"fabric_health": "limited_capacity"}, "warn", "limited_capacity"),
    ("fabric.health", {"fabric_health": "not_supported"}, "n/a", None),
    ("persistence.mode", {"persistence": False}, "pass", 0),
    ("power.limit", {"power_limit_w": 400.0}, "pass", 400.0),
]

#: A check of a difference, the values that changed, the status and the value.
GROWTHS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("ecc.uncorrected_new", {"ecc_uncorrected_total": 1}, "fail", 1),
    ("ecc.uncorrected_lifetime_new", {"ecc_uncorrected_lifetime_total": 1}, "fail", 1),
    ("ecc.corrected_new", {"ecc_corrected_total": 10}, "pass", 10),
    ("ecc.corrected_new", {"ecc_corrected_total": 11}, "warn", 11),
    ("memory.sram_uncorrected_new", {"sram_uncorrected_lifetime_total": 1}, "fail", 1),
    ("memory.remapped_uncorrected_new", {"remapped_uncorrected_total": 1}, "fail", 1),
    ("memory.remapped_corrected_new", {"remapped_corrected_total": 1}, "warn", 1),
    ("memory.repair_new", {"remap_pending": True}, "fail", 1),
    ("memory.repair_new", {"retirement_pending": True, "remap_pending": None}, "fail", 1),
    ("memory.repair_new", {"channel_repair_pending": True}, "fail", 1),
    ("memory.repair_new", {"tpc_repair_pending": True}, "fail", 1),
    ("throttle.hardware_thermal", {"hardware_thermal_throttled_s": 0.001}, "warn", 0.001 / 3600),
    ("throttle.hardware_thermal", {"hardware_thermal_throttled_s": 37.0}, "fail", 37 / 3600),
    ("throttle.power_brake", {"power_brake_throttled_s": 36.0}, "warn", 0.01),
    ("throttle.power_brake", {"power_brake_throttled_s": 37.0}, "fail", 37 / 3600),
    ("throttle.software_thermal", {"software_thermal_throttled_s": 18.0}, "pass", 0.005),
    ("throttle.software_thermal", {"software_thermal_throttled_s": 19.0}, "warn", 19 / 3600),
    ("throttle.software_thermal", {"software_thermal_throttled_s": 181.0}, "fail", 181 / 3600),
    ("throttle.thermal", {"thermal_throttled_s": 999.0}, "n/a", None),
    (
        "throttle.thermal",
        {"thermal_throttled_s": 181.0, "software_thermal_throttled_s": None},
        "fail",
        181 / 3600,
    ),
    ("throttle.power_cap", {"power_throttled_s": 3700.0}, "pass", 1.0),
    ("pcie.replay_rate", {"pcie_replays_total": 3 + 184}, "pass", 184 / 60 / 16),
    ("pcie.replay_rate", {"pcie_replays_total": 3 + 185}, "warn", 185 / 60 / 16),
    ("pcie.replay_rate", {"pcie_replays_total": 3 + 1844}, "fail", 1844 / 60 / 16),
    (
        "pcie.replay_rate",
        {"pcie_replays_total": 9, "pcie_generation_maximum": 7},
        "not tested",
        None,
    ),
    ("pcie.replay_rate", {"pcie_replays_total": 9, "pcie_width": 0}, "not tested", None),
    ("pcie.replays", {"pcie_replays_total": 3 + 81}, "warn", 81),
    ("nvlink.lost", {"nvlinks": links(active=False)}, "fail", 1),
    ("nvlink.recoveries", {"nvlinks": links(recoveries_total=1)}, "warn", 1),
    ("nvlink.replays", {"nvlinks": links(replays_total=2)}, "warn", 2),
    ("nvlink.crc_rate", {"nvlinks": links(crc_errors_total=36)}, "warn", 0.01),
    ("nvlink.crc_rate", {"nvlinks": links(crc_errors_total=360_000)}, "fail", 100),
]


@pytest.mark.parametrize(("check", "changed", "status", "value"), MOMENTS)
def test_a_check_of_one_moment_judges_its_values(
    check: str, changed: dict[str, Any], status: str, value: Any
) -> None:
    found = run(check, replace(HEALTHY, **changed), None, PEER)
    assert (found.status, found.value) == (status, value), found
    _is_complete(found)


@pytest.mark.parametrize(("check", "changed", "status", "value"), GROWTHS)
def test_a_check_of_a_difference_judges_its_growth(
    check: str, changed: dict[str, Any], status: str, value: Any
) -> None:
    found = run(check, replace(AFTER, **changed), BEFORE)
    assert found.status == status, found
    assert found.value == (None if value is None else pytest.approx(value))
    _is_complete(found)


def _is_complete(found: CheckResult) -> None:
    """Check that a result has all that a person needs to act on it."""
    bad = found.status in {Status.FAIL, Status.WARN}
    assert found.threshold
    assert found.source
    assert bool(found.action) == bad
    assert (found.severity is not Severity.NONE) == bad
    if found.status in {Status.NOT_TESTED, Status.NOT_APPLICABLE}:
        assert found.evidence


def test_every_check_has_a_case_that_is_bad_and_a_healthy_gpu_passes_it() -> None:
    judged = {check for check, _, status, _ in (*MOMENTS, *GROWTHS) if status in {"fail", "warn"}}
    information = {"persistence.mode", "power.limit", "throttle.power_cap"}
    assert judged == CHECKS.keys() - information
    for check in MOMENT_CHECKS:
        assert run(check.id, HEALTHY, None, PEER).status is Status.PASS, check.id
    for check in GROWTH_CHECKS:
        expected = Status.NOT_APPLICABLE if check.id == "throttle.thermal" else Status.PASS
        assert run(check.id, AFTER, BEFORE).status is expected, check.id


@pytest.mark.parametrize(
    ("findings", "status"),
    [(None, Status.NOT_APPLICABLE), (0, Status.PASS), (1, Status.FAIL), (7, Status.FAIL)],
)
def test_the_findings_of_a_daemon_fail_the_gpu(findings: int | None, status: Status) -> None:
    (check,) = DAEMON_CHECKS
    found = check.run(Evidence(before=HEALTHY, findings=findings), Thresholds())
    assert (found.status, found.value) == (status, findings)


def test_the_ids_are_unique_and_the_rows_are_complete() -> None:
    of_gpus = (*MOMENT_CHECKS, *DAEMON_CHECKS, *GROWTH_CHECKS)
    rows: tuple[Check[Any], ...] = (*of_gpus, *NODE_CHECKS)
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.title, row.id
        assert row.reads, row.id
        assert row.source, row.id
        assert row.threshold(row.limits), row.id
        assert (row.severity is Severity.NONE) == (not row.action), row.id
        # NVIDIA's bucket comes first.
        assert not row.action or row.action.split(":")[0].split(",")[0].isupper(), row.id


@pytest.mark.parametrize(
    ("field", "check"),
    [
        ("ecc_uncorrected_lifetime_total", "ecc.uncorrected_lifetime_new"),
        ("pcie_replays_total", "pcie.replay_rate"),
        ("hardware_thermal_throttled_s", "throttle.hardware_thermal"),
        ("remap_pending", "memory.repair_new"),
    ],
)
def test_a_counter_that_went_backwards_is_not_tested_and_says_so(field: str, check: str) -> None:
    higher: dict[str, Any] = {field: True if "pending" in field else 5.0}
    found = run(check, AFTER, replace(BEFORE, **higher))
    assert found.status is Status.NOT_TESTED
    assert f"{field} went backwards" in found.evidence


def test_a_rule_says_what_its_limit_counts() -> None:
    fewer = CHECKS["pcie.width"].run(Evidence(before=replace(HEALTHY, pcie_width=8)), Thresholds())
    assert fewer.threshold == (
        "lanes below the maximum of GPU and slot: fail > 0; never on an idle GPU"
    )
    for check in CHECKS.values():
        assert not re.search(r"[a-z]; (fail|warn) > 0$", check.default_threshold), check.id
        assert "{" not in check.default_threshold


def test_links_whose_counters_went_backwards_are_not_tested() -> None:
    found = run("nvlink.replays", AFTER, replace(BEFORE, nvlinks=links(replays_total=5)))
    assert found.status is Status.NOT_TESTED
    assert "backwards" in found.evidence


@pytest.mark.parametrize("after", [{"energy_j": 10.0}, {"driver": "590.1"}])
def test_a_reset_between_the_readings_proves_nothing_but_for_lifetime_counters(
    after: dict[str, Any],
) -> None:
    now = replace(AFTER, **after)
    assert run("ecc.uncorrected_new", now, BEFORE).status is Status.NOT_TESTED
    assert run("pcie.replays", now, BEFORE).status is Status.NOT_TESTED
    assert run("ecc.uncorrected_lifetime_new", now, BEFORE).status is Status.PASS
    bad = replace(now, ecc_uncorrected_lifetime_total=1)
    assert run("ecc.uncorrected_lifetime_new", bad, BEFORE).status is Status.FAIL


def test_readings_without_a_time_between_them_have_no_rates() -> None:
    for seconds in (None, 0.0, 59.0):
        evidence = Evidence(before=BEFORE, after=AFTER, seconds=seconds)
        assert CHECKS["pcie.replay_rate"].run(evidence, Thresholds()).status == "not tested"
    for check in ("throttle.power_brake", "nvlink.crc_rate"):
        evidence = Evidence(before=BEFORE, after=AFTER, seconds=None)
        assert CHECKS[check].run(evidence, Thresholds()).status == "not tested"


def test_nothing_but_the_loss_is_judged_on_a_lost_gpu() -> None:
    gone = Counters(uuid="GPU-1", index=0, name="", at=0.0, lost="gone")
    found = [check.run(Evidence(before=gone), Thresholds()) for check in MOMENT_CHECKS]
    assert [one.id for one in found if one.status is not Status.NOT_TESTED] == ["gpu.lost"]
    assert worst(found) is Status.FAIL
    lost_meanwhile = Evidence(before=HEALTHY, after=gone, seconds=9.0)
    assert CHECKS["gpu.lost"].run(lost_meanwhile, Thresholds()).status is Status.FAIL
    for check in GROWTH_CHECKS:
        assert check.run(lost_meanwhile, Thresholds()).status in {"not tested", "n/a"}, check.id


def test_a_call_that_failed_is_not_tested_and_a_missing_feature_does_not_apply() -> None:
    failed = replace(HEALTHY, remap_failed=None, failed={"remap_failed": "no permission"})
    found = run("memory.remap_failed", failed)
    assert (found.status, found.value) == (Status.NOT_TESTED, None)
    assert "no permission" in found.evidence
    absent = run("memory.remap_failed", replace(HEALTHY, remap_failed=None))
    assert absent.status is Status.NOT_APPLICABLE


def test_one_unread_flag_does_not_hide_another_that_is_set() -> None:
    unread = replace(HEALTHY, remap_pending=None, failed={"remap_pending": "no permission"})
    assert run("memory.repair_pending", unread).status is Status.NOT_TESTED
    pending = replace(unread, tpc_repair_pending=True)
    assert run("memory.repair_pending", pending).status is Status.WARN


def test_nvlinks_are_compared_with_gpus_of_the_same_model_only() -> None:
    fewer = replace(HEALTHY, nvlinks=links(active=False))
    none = replace(HEALTHY, nvlinks=tuple(replace(one, active=False) for one in LINKS))
    assert run("nvlink.inactive", fewer).status is Status.NOT_APPLICABLE
    other = replace(PEER, name="NVIDIA A100")
    assert run("nvlink.inactive", fewer, None, other).status is Status.NOT_APPLICABLE
    # One of two pairs with a bridge: the other two have no links at all, and none is missing.
    unbridged = replace(none, index=1), replace(PEER, index=2), replace(PEER, index=3)
    assert run("nvlink.inactive", PEER, None, *unbridged).status is Status.PASS
    pairs = replace(none, index=2), replace(PEER, index=3)
    assert run("nvlink.inactive", none, None, *pairs).status is Status.NOT_APPLICABLE
    # All its peers have links: it lost all of its own.
    peers = [replace(PEER, index=index) for index in range(1, 8)]
    assert run("nvlink.inactive", none, None, *peers).value == 18


def test_what_to_do_follows_from_the_recovery_action() -> None:
    action = run("recovery.action", replace(HEALTHY, recovery_action="node_reboot")).action
    assert action.startswith("RESTART_BM")
    assert run("recovery.action", replace(HEALTHY, recovery_action="gpu_reset")).action.startswith(
        "RESET_GPU"
    )


def test_gpus_that_are_missing_from_nvml_fail_the_node() -> None:
    check = NODE_CHECKS[0]
    both = ("00000000:0A:00.0", "00000000:0B:00.0")
    found = check.run(NodeEvidence(gpus=(HEALTHY,), pci_devices=both), Thresholds())
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert "0B:00.0" in found.evidence
    other = replace(PEER, pci_bus_id="00000000:0b:00.0")
    found = check.run(NodeEvidence(gpus=(HEALTHY, other), pci_devices=both), Thresholds())
    assert found.status is Status.PASS
    # A GPU that NVML lists, but that does not say where it is.
    silent = replace(PEER, pci_bus_id=None, lost="gone")
    found = check.run(NodeEvidence(gpus=(HEALTHY, silent), pci_devices=both), Thresholds())
    assert found.status is Status.PASS
    assert check.run(NodeEvidence(gpus=()), Thresholds()).status is Status.NOT_TESTED


def test_a_node_on_which_a_gpu_was_not_tested_is_incomplete_unless_one_failed() -> None:
    blind = Counters(uuid="", index=1, name="", at=0.0).unread("no permission")
    assert judge_node((HEALTHY,), Thresholds()).status is Status.PASS
    assert judge_node((), Thresholds()).status is Status.NOT_TESTED
    assert judge_node((HEALTHY, blind), Thresholds()).status is Status.NOT_TESTED
    bad = replace(HEALTHY, remap_failed=True)
    assert judge_node((bad, blind), Thresholds()).status is Status.FAIL
    assert judge_node((bad, HEALTHY), Thresholds(), selected={5}).status is Status.NOT_TESTED
    # A missing GPU is a fault of the node even if all others are well.
    lost = judge_node((HEALTHY,), Thresholds(), pci_devices=("00000000:0B:00.0",))
    assert lost.status is Status.FAIL


# --- properties ------------------------------------------------------------------------------

_OPTIONAL = sorted(READ_FIELDS)


@settings(max_examples=50, deadline=None)
@given(
    st.sets(st.sampled_from(_OPTIONAL)),
    st.sets(st.sampled_from(_OPTIONAL)),
    st.sets(st.sampled_from(_OPTIONAL)),
)
def test_no_combination_of_missing_values_is_a_fault(
    before: set[str], after: set[str], failed: set[str]
) -> None:
    absent: dict[str, Any] = dict.fromkeys(before)
    first = replace(BEFORE, **absent, failed=dict.fromkeys(failed & before, "an error"))
    absent = dict.fromkeys(after)
    second = replace(AFTER, **absent, failed=dict.fromkeys(failed & after, "another error"))
    for checks, evidence in (
        (MOMENT_CHECKS, Evidence(before=first, node=(first, PEER))),
        (GROWTH_CHECKS, Evidence(before=first, after=second, seconds=SECONDS, node=(first,))),
    ):
        for check in checks:
            found = check.run(evidence, Thresholds())
            assert found.status not in {Status.FAIL, Status.WARN}, found


def no_alarm_in(nodes: int) -> None:
    """Judge two healthy GPUs of each node twice: at one moment, and after a time."""
    dice = random.Random(20261123)
    thresholds = Thresholds()
    for _ in range(nodes):
        node = tuple(random_healthy(dice, index) for index in range(2))
        for gpu in node:
            seconds = dice.choice((1.0, 61.0, 600.0))
            second = later(dice, gpu, seconds)
            for checks, evidence in (
                (MOMENT_CHECKS, Evidence(before=gpu, node=node)),
                (
                    (*MOMENT_CHECKS, *GROWTH_CHECKS),
                    Evidence(before=gpu, after=second, seconds=seconds, node=node),
                ),
            ):
                for check in checks:
                    found = check.run(evidence, thresholds)
                    assert found.status not in {Status.FAIL, Status.WARN}, (found, gpu)


def test_some_hundred_healthy_gpus_raise_no_alarm() -> None:
    no_alarm_in(100)


@pytest.mark.long
def test_ten_thousand_healthy_gpus_raise_no_alarm() -> None:
    no_alarm_in(2500)


def test_a_healthy_gpu_of_an_old_driver_passes_its_check_of_all_heat() -> None:
    old: dict[str, Any] = {"software_thermal_throttled_s": None}
    found = run("throttle.thermal", replace(AFTER, **old), replace(BEFORE, **old))
    assert (found.status, found.value) == (Status.PASS, 0.0)


def test_every_value_that_a_check_names_is_one_of_the_counters() -> None:
    names = {one.name for one in fields(Counters)}
    changed = {name for _, values, _, _ in (*MOMENTS, *GROWTHS) for name in values}
    assert changed <= names
