"""The table of the checks: rows that each check fails or warns of, and ones that prove nothing.

A row is the check, what differs from a healthy GPU, the status and the value (`...`: any).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.burnin.checks import workload_checks
from sentinel.burnin.checks.catalogue import CATALOGUE, Table
from sentinel.burnin.checks.check import CheckResult, Severity, Status, Thresholds, worst
from sentinel.burnin.checks.evidence import (
    ExpectedEvidence,
    Findings,
    GpuEvidence,
    GrowthEvidence,
    HostEvidence,
    MomentEvidence,
    NodeEvidence,
    ParticipationEvidence,
)
from sentinel.burnin.checks.kernel_checks import KernelEvidence
from sentinel.burnin.checks.load_evidence import LoadEvidence
from sentinel.burnin.checks.node_report import MOMENT, judge_node
from sentinel.burnin.checks.recorded_run import CHECKS, load_references
from sentinel.burnin.record import PhaseRecord, Sample
from sentinel.burnin.xids import XidEvent
from sentinel.config.expectation import Expectation, expect_gpus, parse_expectation
from sentinel.config.plan import Phase
from sentinel.fleet import fleet_checks
from sentinel.protocol.burnin_events import TOO_HOT
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.counters import READ_FIELDS, Counters, HostCounters, NvLink, Port
from sentinel.protocol.stressor import LinkPart
from tests.harness.check_evidence import (
    FORMER,
    HEALTHY,
    MEMORY,
    PEER,
    SECONDS,
    STEADY,
    TO_HOST,
    TO_PEERS,
    Links,
    Run,
    moment,
)

FAIL, WARN, PASS = Status.FAIL, Status.WARN, Status.PASS
UNTESTED, ABSENT = Status.NOT_TESTED, Status.NOT_APPLICABLE
BAD = {FAIL, WARN}
LINKS = HEALTHY.nvlinks or ()
XID_79 = XidEvent(number=79, pci_bus_id="", at=1.0, pid=None, text="GPU has fallen off the bus.")


def judge(check: str, evidence: object) -> CheckResult:
    return CHECKS[check].run(evidence, Thresholds())


def nvlinks(**first: Any) -> tuple[NvLink, ...]:
    """Change the first link."""
    return (replace(LINKS[0], **first), *LINKS[1:])


#: Of one moment: the counters that differ.
MOMENTS: list[tuple[str, dict[str, Any], Status, Any]] = [
    ("gpu.lost", {"lost": "the GPU fell off the bus"}, FAIL, "lost"),
    ("gpu.whole", {"mig": True}, UNTESTED, None),
    ("gpu.whole", {"mig": None}, ABSENT, None),
    ("gpu.identity", {"serial": None, "vbios": None}, ABSENT, None),
    ("clocks.locked", {"reasons": ("applications_clocks_setting",)}, WARN, 1),
    ("recovery.action", {"recovery_action": "gpu_reset"}, FAIL, "gpu_reset"),
    ("recovery.action", {"recovery_action": "action 9"}, FAIL, "action 9"),
    ("memory.size", {"memory_total": 0.989 * (HEALTHY.memory_total or 0)}, WARN, 0.989),
    ("memory.size", {"memory_total": 0.991 * (HEALTHY.memory_total or 0)}, PASS, 0.991),
    ("memory.size", {"name": "NVIDIA L40S"}, ABSENT, None),
    ("memory.size", {"ecc": False}, ABSENT, None),
    ("ecc.mode", {"ecc": False}, WARN, "off"),
    ("ecc.mode", {"ecc_pending": False}, WARN, "on"),
    ("ecc.mode", {"ecc": False, "name": "NVIDIA GeForce RTX 4090"}, PASS, "off"),
    ("ecc.uncorrected", {"ecc_uncorrected_total": 1}, WARN, 1),
    ("memory.sram_threshold", {"sram_threshold_exceeded": True}, FAIL, 1),
    ("memory.remap_failed", {"remap_failed": True}, FAIL, 1),
    ("memory.repair_pending", {"remap_pending": True}, WARN, 1),
    ("memory.repair_pending", {"retirement_pending": True}, WARN, 1),
    ("memory.repair_pending", {"channel_repair_pending": True}, WARN, 1),
    ("memory.repair_pending", {"tpc_repair_pending": True, "remap_pending": None}, WARN, 1),
    ("memory.unrepairable", {"memory_unrepairable": True}, FAIL, 1),
    ("memory.bank_headroom", {"remap_banks_low": 2, "remap_banks_none": 1}, WARN, 3),
    ("memory.retired_pages", {"retired_corrected_total": 14}, PASS, 14),
    ("memory.retired_pages", {"retired_corrected_total": 15}, WARN, 15),
    ("memory.retired_pages", {"retired_uncorrected_total": 63}, FAIL, 63),
    ("inforom.valid", {"inforom_valid": False}, WARN, "corrupted"),
    ("clocks.hardware_slowdown", {"reasons": ("hw_slowdown",)}, WARN, 1),
    ("clocks.hardware_slowdown", {"reasons": ("hw_slowdown", "hw_power_brake_slowdown")}, WARN, 1),
    ("temperature.gpu", {"temperature_c": 83}, PASS, 4),
    ("temperature.gpu", {"temperature_c": 84}, WARN, 3),
    ("temperature.gpu", {"temperature_c": 88}, FAIL, -1),
    ("temperature.gpu", {"temperature_c": 88, "maximum_c": None}, WARN, 1),
    ("temperature.limit", {"temperature_margin_c": 3}, PASS, 5),
    ("temperature.limit", {"temperature_margin_c": 2}, WARN, 4),
    ("temperature.limit", {"temperature_margin_c": -2}, FAIL, 0),
    ("temperature.memory", {"memory_temperature_c": 89}, PASS, 6),
    ("temperature.memory", {"memory_temperature_c": 90}, WARN, 5),
    ("temperature.memory", {"memory_temperature_c": 95}, FAIL, 0),
    ("pcie.generation", {"pcie_generation": 4}, FAIL, 4),
    ("pcie.generation", {"pcie_generation": 1, "reasons": ("gpu_idle",)}, UNTESTED, None),
    ("pcie.generation", {"pcie_generation": 1, "reasons": None}, UNTESTED, None),
    ("pcie.generation", {"pcie_generation": 1, "sm_clock_mhz": 345}, UNTESTED, None),
    ("pcie.width", {"pcie_width": 8}, FAIL, 8),
    ("pcie.width", {"pcie_width": 8, "reasons": ("gpu_idle",)}, UNTESTED, None),
    ("nvlink.inactive", {"nvlinks": nvlinks(active=False)}, FAIL, 1),
    ("nvlink.inactive", {"nvlinks": nvlinks(active=False), "mig": True}, ABSENT, None),
    ("nvlink.speed", {"nvlinks": nvlinks(speed_mbps=13_281)}, FAIL, 1),
    ("nvlink.bit_error_rate", {"nvlinks": nvlinks(effective_ber=2e-12)}, FAIL, 2e-12),
    ("nvlink.bit_error_rate", {"nvlinks": nvlinks(effective_ber=1e-12)}, PASS, 1e-12),
    ("fabric.state", {"fabric_state": "not_started"}, FAIL, "not_started"),
    ("fabric.state", {"fabric_state": "in_progress"}, WARN, "in_progress"),
    ("fabric.state", {"fabric_state": "not_supported"}, ABSENT, None),
    ("fabric.health", {"fabric_health": "unhealthy"}, FAIL, "unhealthy"),
    ("fabric.health", {"fabric_health": "limited_capacity"}, WARN, "limited_capacity"),
    ("fabric.health", {"fabric_health": "not_supported"}, ABSENT, None),
    ("persistence.mode", {"persistence": False}, PASS, 0),
    ("power.limit", {"power_limit_w": 400.0}, WARN, 400.0),
    ("daemon.findings", {"findings": Findings(wrong=7)}, FAIL, 7),
    ("daemon.findings", {"findings": Findings(wrong=7, unknown="damaged")}, FAIL, 7),
    ("daemon.findings", {"findings": Findings(unknown="damaged")}, UNTESTED, None),
    (
        "daemon.findings",
        {"findings": Findings(faults=("XID 48: double bit",))},
        FAIL,
        "known fault",
    ),
    ("daemon.findings", {"findings": None}, ABSENT, None),
]

#: Of a run: the counters that differ after it.
NO_DETAIL = {"software_thermal_throttled_s": None}
GROWTHS: list[tuple[str, dict[str, Any], Status, Any]] = [
    ("ecc.uncorrected_new", {"ecc_uncorrected_total": 1}, FAIL, 1),
    ("ecc.uncorrected_lifetime_new", {"ecc_uncorrected_lifetime_total": 1}, FAIL, 1),
    ("ecc.corrected_new", {"ecc_corrected_total": 10}, PASS, 10),
    ("ecc.corrected_new", {"ecc_corrected_total": 11}, WARN, 11),
    ("ecc.corrected_lifetime_new", {"sram_corrected_lifetime_total": 11}, WARN, 11),
    ("memory.sram_uncorrected_new", {"sram_uncorrected_lifetime_total": 1}, FAIL, 1),
    ("memory.remapped_uncorrected_new", {"remapped_uncorrected_total": 1}, FAIL, 1),
    ("memory.retired_uncorrected_new", {"retired_uncorrected_total": 1}, FAIL, 1),
    ("memory.retired_corrected_new", {"retired_corrected_total": 1}, WARN, 1),
    ("memory.remapped_corrected_new", {"remapped_corrected_total": 1}, WARN, 1),
    ("memory.repair_new", {"remap_pending": True}, FAIL, 1),
    ("memory.repair_new", {"retirement_pending": True, "remap_pending": None}, FAIL, 1),
    ("memory.repair_new", {"channel_repair_pending": True}, FAIL, 1),
    ("memory.repair_new", {"tpc_repair_pending": True}, FAIL, 1),
    ("throttle.hardware_thermal", {"hardware_thermal_throttled_s": 0.001}, WARN, 0.001 / 3600),
    ("throttle.hardware_thermal", {"hardware_thermal_throttled_s": 37.0}, FAIL, 37 / 3600),
    ("throttle.power_brake", {"power_brake_throttled_s": 36.0}, WARN, 0.01),
    ("throttle.power_brake", {"power_brake_throttled_s": 37.0}, FAIL, 37 / 3600),
    ("throttle.software_thermal", {"software_thermal_throttled_s": 18.0}, PASS, 0.005),
    ("throttle.software_thermal", {"software_thermal_throttled_s": 19.0}, WARN, 19 / 3600),
    ("throttle.software_thermal", {"software_thermal_throttled_s": 181.0}, FAIL, 181 / 3600),
    ("throttle.thermal", {"thermal_throttled_s": 999.0}, ABSENT, None),
    ("throttle.thermal", {"thermal_throttled_s": 181.0, **NO_DETAIL}, FAIL, 181 / 3600),
    ("throttle.thermal", NO_DETAIL, PASS, 0.0),
    ("throttle.power_cap", {"power_throttled_s": 3700.0}, PASS, 1.0),
    ("pcie.replay_rate", {"pcie_replays_total": 3 + 184}, PASS, 184 / 60 / 16),
    ("pcie.replay_rate", {"pcie_replays_total": 3 + 185}, WARN, 185 / 60 / 16),
    ("pcie.replay_rate", {"pcie_replays_total": 3 + 1844}, FAIL, 1844 / 60 / 16),
    ("pcie.replay_rate", {"pcie_generation_maximum": 7}, UNTESTED, None),
    ("pcie.replay_rate", {"pcie_width": 0}, UNTESTED, None),
    ("pcie.replays", {"pcie_replays_total": 3 + 81}, WARN, 81),
    ("nvlink.lost", {"nvlinks": nvlinks(active=False)}, FAIL, 1),
    ("nvlink.recoveries", {"nvlinks": nvlinks(recoveries_total=1)}, WARN, 1),
    ("nvlink.replays", {"nvlinks": nvlinks(replays_total=2)}, WARN, 2),
    ("nvlink.crc_rate", {"nvlinks": nvlinks(crc_errors_total=36)}, WARN, 0.01),
    ("nvlink.crc_rate", {"nvlinks": nvlinks(crc_errors_total=360_000)}, FAIL, 100),
]


def with_nvls(
    rate: float, *, name: str = HEALTHY.name, option: str = "true", **changed: Any
) -> Run:
    """Build the run of a GPU whose plan lets NCCL use NVLink multicast."""
    phase = replace(Run().phase_of_links, workload=f"links:nvls={option}")
    links = Links(all_reduce=rate, **changed)
    return Run(links=links, phase_of_links=phase, counters={"name": name})


MISMATCH = {"event": "stressor.mismatch", "errors": 2, "checks": 10}
FINDING = {"event": "stressor.finding", "place": "memory", "detail": "bit 3", "workload": "memtest"}
GOLDEN = {**FINDING, "place": "golden"}
LINK = {**FINDING, "place": "link", "detail": "peer from GPU 1"}
HANG = {"event": "stressor.failed", "kind": "hang", "reason": "no progress for 30 s"}
RELEASED = {"event": "gpu.released", "reason": "its health is critical", "temperature_c": 88}
STARTED = ({"event": "stressor.starting"},)
#: Between two samples, or after the last one.
HEATED = {"event": "gpu.health_changed", "at": 2.0, "temperature_c": 88}
STOPPED = {"event": "stressor.stopped", "at": 2.0}
UNKILLABLE = {"event": "stressor.unkillable", "pid": 7}
STUCK = {"event": "stressor.failed", "kind": "stuck", "reason": "longer than a lease"}
LOST = "it is lost, or hangs: it fell off the bus"
UNREAD = "it cannot be read: the driver is being replaced"
GEFORCE_MHZ = {"memory_clock_mhz": 3201 * 0.974}
LOWER_CLOCK = {"sm_clock_maximum_mhz": 1500}
NO_HEAT, COLD = {"temperature_c": None}, {"temperature_c": 0}
AWAY = {"event": "gpu.unknown", "reason": "the GPU fell off the bus", "lost": True}
BELOW_DEFAULT = {"power_limit_w": 500.0, "power_limit_default_w": 700.0}
AT_500_W = {"power_limit_w": 500.0, "power_w": 495.0}

#: Of what a GPU did in a run, among seven healthy ones.
LOADS: list[tuple[str, Run, Status]] = [
    ("results.wrong", Run(events=(MISMATCH,)), FAIL),
    ("results.wrong", Run(checks=0), UNTESTED),
    ("results.finding", Run(events=(FINDING,)), FAIL),
    ("results.finding", Run(checks=0), UNTESTED),
    # A difference between GPUs is no wrong result of the one that reported it.
    ("results.wrong", Run(events=(GOLDEN, {**MISMATCH, "errors": 1})), PASS),
    ("results.wrong", Run(events=(GOLDEN, MISMATCH)), FAIL),
    ("results.finding", Run(events=(GOLDEN,)), PASS),
    ("gpu.hang", Run(events=(HANG, HANG)), FAIL),
    ("gpu.hang", Run(events=(HANG,)), WARN),
    ("gpu.hang", Run(events=(STUCK,)), PASS),
    ("gpu.hang", Run(events=(UNKILLABLE,)), WARN),
    ("gpu.hang", Run(ended=LOST), FAIL),
    ("gpu.hang", Run(ended=UNREAD), PASS),
    ("stressor.failures", Run(events=(STUCK,)), WARN),
    # NVIDIA/NVSentinel#1748: none when idle, 4,647 and 17,657 a second under load.
    ("ecc.corrected_load", Run(corrected=17_657), FAIL),
    ("ecc.corrected_load", Run(corrected=4_647), FAIL),
    ("ecc.corrected_load", Run(corrected=101), FAIL),
    ("ecc.corrected_load", Run(corrected=100), WARN),
    # No minute of such a rate, but the sum of the run.
    ("ecc.corrected_load", Run(corrected=2e5, corrected_from=59), FAIL),
    ("ecc.corrected_load", Run(corrected=0.2), WARN),
    ("ecc.corrected_load", Run(corrected=0.1), PASS),
    # Billions from before the run say nothing about it.
    ("ecc.corrected_load", Run(read={"ecc_corrected_total": 9_600_000_000}), PASS),
    ("ecc.corrected_load", Run(read={"ecc_corrected_total": None}), UNTESTED),
    ("ecc.corrected_load", Run(after={"ecc_corrected_total": None}), ABSENT),
    ("memory.covered", Run(share=0.5), WARN),
    ("memory.covered", Run(share=None), UNTESTED),
    ("temperature.gpu", Run(read={"temperature_c": 88}), FAIL),
    ("temperature.gpu", Run(read={"temperature_c": 85}), WARN),
    ("temperature.gpu", Run(events=(RELEASED,)), FAIL),
    ("temperature.gpu", Run(events=(*STARTED, HEATED, STOPPED)), FAIL),
    ("temperature.gpu", Run(events=(*STARTED, {**STOPPED, "at": 1.5}, HEATED)), PASS),
    ("clocks.hardware_slowdown", Run(read={"reasons": ("hw_power_brake_slowdown",)}), FAIL),
    ("clocks.hardware_slowdown", Run(read={"reasons": ("hw_slowdown",)}), FAIL),
    ("clocks.hardware_slowdown", Run(after={"reasons": ("hw_slowdown",)}), WARN),
    ("temperature.gpu", Run(counters={"maximum_c": None, "slowdown_c": None}), ABSENT),
    ("temperature.limit", Run(read={"temperature_margin_c": -2}), FAIL),
    ("temperature.limit", Run(read={"temperature_margin_c": 1}), WARN),
    ("temperature.memory", Run(read={"memory_temperature_c": 96}), FAIL),
    ("temperature.memory", Run(read={"memory_temperature_c": 93}), WARN),
    ("temperature.memory", Run(counters={"memory_maximum_c": None}), ABSENT),
    ("load.temperature_spread", Run(read={"temperature_c": 71}), WARN),
    ("load.temperature_spread", Run(read={"temperature_c": 70}), PASS),
    ("load.power", Run(read={"power_w": 400}), WARN),
    ("load.power", Run(steady=False), UNTESTED),
    ("load.power", Run(read={"power_w": 4294967}), UNTESTED),
    ("load.power", Run(after={"energy_j": HEALTHY.energy_j}), UNTESTED),
    (
        "load.power",
        Run(counters={"driver": "simulated"}, after={"energy_j": HEALTHY.energy_j}),
        PASS,
    ),
    ("work.peers", Run(tflops=290.0), FAIL),
    ("work.peers", Run(tflops=470.0), WARN),
    ("load.memory_clock", Run(read={"memory_clock_mhz": 1600}), FAIL),
    ("load.memory_clock", Run(read={"memory_clock_mhz": 3000}), WARN),
    ("load.memory_clock", Run(read={"memory_clock_mhz": None}), UNTESTED),
    ("load.memory_clock", Run(read=GEFORCE_MHZ), PASS),
    ("load.memory_clock", Run(counters={"memory_clock_maximum_mhz": None}), ABSENT),
    ("pcie.width", Run(read={"pcie_width": 8}), FAIL),
    ("pcie.generation", Run(read={"pcie_generation": 4}), FAIL),
    ("pcie.generation", Run(read={"pcie_generation": None}), UNTESTED),
    ("pcie.generation", Run(after={"pcie_generation": 1, "reasons": ("gpu_idle",)}), PASS),
    ("pcie.width", Run(counters={"pcie_width_maximum": None}), ABSENT),
    ("golden.stored", Run(checksums=(("bf16", "0xb", "0xa"),)), FAIL),
    ("golden.stored", Run(checksums=(("bf16", "0xa", None),)), UNTESTED),
    ("golden.stored", Run(checksums=(), events=(GOLDEN,)), FAIL),
    ("golden.peers", Run(checksums=(("bf16", "0xb", None),)), FAIL),
    ("golden.peers", Run(checksums=()), UNTESTED),
    ("golden.peers", Run(checksums=(("bf16", "0xa", None), ("bf16", "0xb", None))), FAIL),
    ("golden.peers", Run(checksums=(("fp16", "0xa", None),)), UNTESTED),
    ("rate.peers", Run(tflops=530), FAIL),
    ("rate.peers", Run(tflops=550), WARN),
    ("rate.peers", Run(tflops=530, counters=LOWER_CLOCK), FAIL),
    ("rate.peers", Run(tflops=120, read={"power_w": 160}), FAIL),
    ("rate.worst", Run(tflops=450), FAIL),
    ("rate.worst", Run(tflops=530), WARN),
    ("rate.peers", Run(tflops=400, counters=BELOW_DEFAULT, read=AT_500_W), UNTESTED),
    ("bandwidth.peers", Run(copy=4.2), PASS),
    ("bandwidth.peers", Run(copy=4.1), WARN),
    ("bandwidth.peers", Run(copy=3.9), FAIL),
    ("bandwidth.peers", Run(copy=None), UNTESTED),
    ("bandwidth.peers", Run(copy=3.4, counters=BELOW_DEFAULT), UNTESTED),
    ("bandwidth.peers", Run(copy=3.4, counters={"driver": "simulated"}), ABSENT),
    ("bandwidth.history", Run(copy=4.1), PASS),
    ("bandwidth.history", Run(copy=4.0), WARN),
    ("bandwidth.history", Run(copy=None), UNTESTED),
    ("bandwidth.history", Run(copy=4.0, counters=BELOW_DEFAULT), ABSENT),
    ("rate.history", Run(tflops=560), FAIL),
    ("rate.history", Run(tflops=575), WARN),
    ("temperature.history", Run(read={"temperature_c": 71}), WARN),
    ("temperature.history", Run(read={"temperature_c": 70}), PASS),
    ("temperature.history", Run(read={"temperature_c": None}), UNTESTED),
    ("temperature.sensor", Run(read={"temperature_c": None}, counters=NO_HEAT), UNTESTED),
    ("temperature.sensor", Run(read={"temperature_c": 0}, counters=COLD), UNTESTED),
    ("gpu.identity", Run(after={"serial": "another"}), UNTESTED),
    ("gpu.identity", Run(after={"vbios": "another"}), UNTESTED),
    ("gpu.reset", Run(after={"energy_j": 1.0}), UNTESTED),
    ("gpu.reset", Run(before={"pcie_replays_total": 9}), UNTESTED),
    ("gpu.reset", Run(), PASS),
    ("gpu.lost", Run(events=(AWAY,)), FAIL),
    ("gpu.lost", Run(events=({**AWAY, "lost": False},)), PASS),
    ("rate.history", Run(tflops=400, counters=BELOW_DEFAULT), ABSENT),
    ("rate.reference", Run(tflops=440), FAIL),
    ("rate.reference", Run(tflops=400, counters=BELOW_DEFAULT, read=AT_500_W), UNTESTED),
    # Half of what a limit of 71 % leaves is a fault of the card.
    ("rate.reference", Run(tflops=250, counters=BELOW_DEFAULT, read=AT_500_W), FAIL),
    ("links.data", Run(links=Links(wrong=8)), FAIL),
    ("links.data", Run(events=(LINK,)), FAIL),
    ("links.data", Run(links=None, events=(LINK,)), FAIL),
    ("links.data", Run(links=Links(checked=0)), UNTESTED),
    ("links.host", Run(links=Links(host={**TO_HOST, LinkPart.TO_DEVICE: 47})), WARN),
    ("links.host", Run(links=Links(host={**TO_HOST, LinkPart.TO_HOST: 27})), FAIL),
    ("links.host", Run(links=Links(host={**TO_HOST, LinkPart.BOTH: 20})), PASS),
    ("links.host", Run(counters={"pcie_generation_maximum": None}), ABSENT),
    ("links.peer", Run(links=Links(peers={**TO_PEERS, 3: 330.0})), WARN),
    ("links.peer", Run(links=Links(peers={**TO_PEERS, 3: 180.0})), FAIL),
    ("links.all_reduce", Run(links=Links(all_reduce=100)), WARN),
    # On the bus of eight GPUs, 7/4 of it: the floor with NVLS is 431 GB/s.
    ("links.all_reduce", with_nvls(247), PASS),
    ("links.all_reduce", with_nvls(245), WARN),
    ("links.all_reduce", with_nvls(245, name="NVIDIA H100 80GB HBM3"), WARN),
    ("links.all_reduce", with_nvls(247, name="NVIDIA H100 80GB HBM3"), PASS),
    ("links.all_reduce", with_nvls(245, option="false"), PASS),
    ("links.all_reduce", with_nvls(200, size=4, peers=dict.fromkeys(range(1, 4), 360.0)), PASS),
    # A model without a reference is compared with the other GPUs.
    ("links.all_reduce", with_nvls(229, name="a card"), PASS),
    ("links.all_reduce", with_nvls(227, name="a card"), WARN),
    ("links.all_reduce_history", Run(links=Links(all_reduce=229)), PASS),
    ("links.all_reduce_history", Run(links=Links(all_reduce=227)), WARN),
]


def two(**changed: Any) -> Run:
    """Build the run of one of two GPUs."""
    links = {"size": 2, "peers": {1: 380.0}, "all_reduce": 324.0, **changed}
    return Run(links=Links(**links), counters={"name": changed.pop("name", HEALTHY.name)})


#: Of links in a smaller group, alone among the GPUs of a node.
SLOW_HOST = {**TO_HOST, LinkPart.TO_HOST: 27}
ONE = Links(size=1, peers={})
GROUPED, BUSY = ({"event": "burnin.grouped", "missing": missing} for missing in ([], [3]))
SIMULATED = Links(host=dict.fromkeys(TO_HOST), peers=dict.fromkeys(TO_PEERS), all_reduce=None)
CARD, NO_LINKS = {"name": "a card"}, {"driver": "simulated"}
GROUPS: list[tuple[str, Run, int, Status]] = [
    ("links.data", Run(links=ONE), 1, PASS),
    ("links.data", Run(links=SIMULATED), 8, PASS),
    ("links.host", Run(links=replace(ONE, host=SLOW_HOST)), 1, FAIL),
    ("links.host", two(host=SLOW_HOST), 8, UNTESTED),
    ("links.host", two(), 8, PASS),
    ("links.host", Run(links=SIMULATED, counters=NO_LINKS), 8, ABSENT),
    ("links.host", Run(links=SIMULATED), 8, UNTESTED),
    ("links.peer", two(), 2, PASS),
    ("links.peer", two(peers={1: 200.0}), 2, WARN),
    ("links.peer", Run(links=two(peers={1: 20.0}).links, counters=CARD), 2, ABSENT),
    ("links.peer", Run(links=ONE, events=(GROUPED,)), 1, ABSENT),
    ("links.peer", Run(links=ONE, events=(BUSY,)), 8, UNTESTED),
    ("links.peer", Run(links=SIMULATED, counters=NO_LINKS), 8, ABSENT),
    ("links.all_reduce", two(), 2, PASS),
    ("links.all_reduce", two(all_reduce=200), 4, UNTESTED),
    ("links.all_reduce", Run(links=two().links, counters=CARD), 2, ABSENT),
    # The runs before were of eight GPUs.
    ("links.all_reduce_history", two(), 2, ABSENT),
    ("links.all_reduce_history", Run(links=replace(ONE, size=2, all_reduce=9)), 2, ABSENT),
    ("links.all_reduce_history", Run(links=SIMULATED, counters=NO_LINKS), 8, ABSENT),
    ("links.all_reduce", Run(links=ONE, events=(GROUPED,)), 1, ABSENT),
    ("links.all_reduce", Run(links=ONE, events=(BUSY,)), 8, UNTESTED),
    ("links.all_reduce", Run(links=SIMULATED, counters=NO_LINKS), 8, ABSENT),
]

GONE = Counters(uuid="", index=1, name="", at=0.0, lost="GPU is lost")
UNUSED = replace(PEER, index=2)
BUSES = ("00000000:0A:00.0", "00000000:0B:00.0")


def inventory(*gpus: Counters, buses: tuple[str, ...] | None = BUSES) -> NodeEvidence:
    return NodeEvidence(gpus=gpus, pci_devices=buses)


def took_part(
    *listed: Counters,
    selected: bool | None = False,
    ignored: str | None = None,
    held: Sequence[Counters] = (),
) -> ParticipationEvidence:
    return ParticipationEvidence(
        listed=(HEALTHY, *listed),
        tested={HEALTHY.uuid},
        selected=selected,
        ignored=ignored,
        held={gpu.uuid or "": "pid 5 (x)" for gpu in held},
    )


EIGHT = tuple(replace(HEALTHY, index=index, uuid=f"GPU-{index}") for index in range(8))


def expected(number: int | None, *listed: Counters, **more: Any) -> ExpectedEvidence:
    wanted = Expectation() if number is None else expect_gpus(number)
    return ExpectedEvidence(expectation=wanted, listed=listed, **more)


def wanted(text: str, *listed: Counters) -> ExpectedEvidence:
    return ExpectedEvidence(expectation=parse_expectation(text, "f"), listed=listed)


def wanted_gpu(text: str) -> MomentEvidence:
    return replace(moment(), expectation=parse_expectation(text, "f"))


PORTS = tuple(
    Port(
        name=f"mlx5_{number}/1",
        state="ACTIVE",
        rate="400 Gb/sec (4X NDR)",
        layer="InfiniBand",
        errors={"symbol_error": 3, "link_downed": 1},
    )
    for number in range(2)
)


def host(*ports: Port, before: tuple[Port, ...] = PORTS, **more: Any) -> HostEvidence:
    return HostEvidence(before=HostCounters(ports=before), after=HostCounters(ports=ports, **more))


def port(**changed: Any) -> Port:
    """Change the second port."""
    return replace(PORTS[1], **changed)


def memory(after: dict[str, int] | None, **before: int) -> HostEvidence:
    counted = None if after is None else HostCounters(memory=after)
    return HostEvidence(before=HostCounters(memory=before), after=counted)


KNOWN = Findings(faults=("XID 48: double bit ECC error: reset the GPU",))

NODES: list[tuple[str, object, Status, Any]] = [
    ("node.inventory", inventory(HEALTHY), FAIL, 1),
    ("node.inventory", inventory(HEALTHY, replace(PEER, pci_bus_id=BUSES[1].lower())), PASS, 0),
    # A GPU that NVML lists, but that does not say where it is.
    ("node.inventory", inventory(HEALTHY, GONE), PASS, 0),
    ("node.inventory", inventory(HEALTHY, buses=None), UNTESTED, None),
    ("node.inventory", inventory(replace(HEALTHY, driver="simulated")), ABSENT, None),
    ("node.serials", inventory(HEALTHY, replace(PEER, serial=HEALTHY.serial)), WARN, 1),
    ("node.serials", inventory(HEALTHY, PEER), PASS, 0),
    ("node.serials", inventory(replace(HEALTHY, serial=None, pci_bus_id=None)), ABSENT, None),
    ("node.serials", inventory(HEALTHY, replace(PEER, pci_bus_id=HEALTHY.pci_bus_id)), WARN, 1),
    ("node.gpus", expected(8, *EIGHT), PASS, 0),
    ("node.gpus", expected(7, *EIGHT), FAIL, 1),
    ("node.gpus", expected(8, *EIGHT, selected=True), ABSENT, None),
    ("node.gpus", expected(8, *EIGHT, selected=True, tested={"GPU-0"}), UNTESTED, None),
    (
        "node.gpus",
        expected(8, *EIGHT, selected=True, tested={f"GPU-{n}" for n in range(8)}),
        PASS,
        0,
    ),
    ("node.gpus", expected(8, *EIGHT[:7], selected=True), FAIL, 1),
    ("node.gpus", expected(8, *EIGHT[:7]), FAIL, 1),
    ("node.gpus", expected(8, *EIGHT[:7], GONE), FAIL, 1),
    ("node.gpus", expected(8), FAIL, 8),
    ("node.gpus", expected(8, driver_error="no driver"), UNTESTED, None),
    ("node.gpus", expected(None, *EIGHT), ABSENT, None),
    ("node.expected", wanted('serials = ["1650000000001"]', HEALTHY), PASS, 0),
    ("node.expected", wanted('serials = ["2"]', HEALTHY), FAIL, 2),
    ("gpu.expected", wanted_gpu("[all]\necc = true"), PASS, 0),
    ("gpu.expected", wanted_gpu("[all]\necc = false"), FAIL, 1),
    ("node.known", expected(None, *EIGHT[:7], known={"GPU-7": "GPU 7"}), WARN, 1),
    ("node.known", expected(None, *EIGHT, known={"GPU-7": "GPU 7"}), PASS, 0),
    ("node.known", expected(7, *EIGHT[:7], findings={"GPU-7": KNOWN}), FAIL, 1),
    ("node.known", expected(None, *EIGHT, findings={"GPU-7": KNOWN}), PASS, 0),
    ("node.known", expected(7, *EIGHT[:7], findings={"GPU-7": Findings(wrong=1)}), PASS, 0),
    ("node.known", expected(None, *EIGHT[:7], findings={"GPU-7": KNOWN}, selected=True), PASS, 0),
    ("daemon.findings", replace(Run().evidence(), findings=KNOWN), FAIL, "known fault"),
    # What a daemon that has ended knew is over if the GPU has counted less energy than then.
    (
        "daemon.findings",
        moment(energy_j=10.0, findings=replace(KNOWN, energy_j=9.0)),
        FAIL,
        "known fault",
    ),
    ("daemon.findings", moment(energy_j=8.0, findings=replace(KNOWN, energy_j=9.0)), PASS, 0),
    (
        "daemon.findings",
        moment(energy_j=None, findings=replace(KNOWN, energy_j=9.0)),
        FAIL,
        "known fault",
    ),
    ("daemon.findings", replace(Run().evidence(), findings=replace(KNOWN, energy_j=1e12)), PASS, 0),
    (
        "daemon.findings",
        replace(Run().evidence(), findings=replace(KNOWN, energy_j=0.0)),
        FAIL,
        "known fault",
    ),
    # A burn-in judges wrong results again; they are named until they are acknowledged.
    ("daemon.findings", replace(Run().evidence(), findings=Findings(wrong=7)), WARN, 7),
    ("daemon.findings", replace(Run().evidence(), findings=Findings()), PASS, 0),
    ("node.known", expected(None, driver_error="no driver"), UNTESTED, None),
    ("node.infiniband", host(*PORTS), PASS, 0),
    ("node.infiniband", HostEvidence(before=HostCounters(ports=PORTS)), PASS, 0),
    ("node.infiniband", host(PORTS[0], port(state="DOWN")), WARN, 1),
    ("node.infiniband", host(PORTS[0], port(rate="200 Gb/sec (4X HDR)")), WARN, 1),
    ("node.infiniband", host(PORTS[0], port(errors={"symbol_error": 4})), WARN, 1),
    ("node.infiniband", host(PORTS[0], port(errors={"link_downed": 2})), WARN, 1),
    ("node.infiniband", host(PORTS[0]), WARN, 1),
    ("node.infiniband", host(PORTS[0], port(errors={"symbol_error": 2})), WARN, 1),
    # A counter that shows nothing after a reset, or that could not be read, proves nothing.
    ("node.infiniband", host(PORTS[0], port(errors={"symbol_error": 0})), PASS, 0),
    ("node.infiniband", host(PORTS[0], port(state=None)), PASS, 0),
    # Not used at all, or another kind of network.
    ("node.infiniband", host(port(state="DOWN"), before=(port(state="DOWN"),)), PASS, 0),
    (
        "node.infiniband",
        host(
            PORTS[0],
            port(state="DOWN", layer="Ethernet"),
            before=(PORTS[0], port(state="DOWN", layer="Ethernet")),
        ),
        PASS,
        0,
    ),
    ("node.infiniband", host(*(replace(one, state=None) for one in PORTS)), UNTESTED, None),
    ("node.infiniband", host(error="not read within 5 s"), UNTESTED, None),
    ("node.infiniband", host(before=()), ABSENT, None),
    ("node.memory_errors", memory({"mc0 ce_count": 5}, **{"mc0 ce_count": 5}), PASS, 0),
    ("node.memory_errors", memory({"mc0 ce_count": 7}, **{"mc0 ce_count": 5}), WARN, 2),
    # It was reset during the run.
    ("node.memory_errors", memory({"mc0 ce_count": 2}, **{"mc0 ce_count": 5}), WARN, 2),
    ("node.memory_errors", memory({"mc0 ue_count": 0}, **{"mc0 ue_count": 1}), WARN, 1),
    ("node.memory_errors", memory(None, **{"mc0 ue_count": 1}), WARN, 1),
    ("node.memory_errors", memory(None, **{"mc0 ce_count": 5}), PASS, 0),
    ("node.memory_errors", memory(None), ABSENT, None),
    ("node.kernel_faults", KernelEvidence(), PASS, "none"),
    ("node.kernel_faults", KernelEvidence(xids=(XID_79,)), FAIL, "XID 79"),
    ("node.kernel_faults", KernelEvidence(others=(XID_79,)), WARN, "XID 79"),
    ("node.kernel_faults", KernelEvidence(unread="no log"), UNTESTED, None),
    ("node.kernel_faults", KernelEvidence(unread="no log", xids=(XID_79,)), FAIL, "XID 79"),
    ("node.kernel_faults", KernelEvidence(is_simulated=True), ABSENT, None),
    ("node.kernel_faults", KernelEvidence(is_simulated=True, xids=(XID_79,)), FAIL, "XID 79"),
    ("node.tested", took_part(), PASS, 0),
    ("node.tested", took_part(GONE), FAIL, 1),
    ("node.tested", took_part(GONE, GONE, UNUSED), FAIL, 2),
    ("node.tested", took_part(UNUSED), WARN, 1),
    ("node.tested", took_part(GONE, UNUSED, selected=True), ABSENT, None),
    ("node.tested", took_part(GONE, UNUSED, selected=None), UNTESTED, None),
    ("node.tested", took_part(UNUSED, selected=True, ignored="why"), WARN, 1),
    ("node.tested", took_part(GONE, UNUSED, selected=True, ignored="why"), FAIL, 1),
    ("node.tested", took_part(selected=True, ignored="why"), ABSENT, None),
    ("node.tested", took_part(UNUSED, held=[UNUSED]), UNTESTED, 1),
    ("node.tested", took_part(UNUSED, selected=True, held=[UNUSED]), UNTESTED, 1),
    ("node.tested", took_part(UNUSED, selected=True, held=[HEALTHY]), ABSENT, None),
    ("node.tested", took_part(UNUSED, selected=True, ignored="why", held=[UNUSED]), UNTESTED, 1),
    ("node.tested", took_part(GONE, UNUSED, held=[UNUSED]), FAIL, 1),
]

#: The evidence of a run is built by its own test: that of all takes a quarter of a second.
ROWS: list[tuple[str, object, Status, Any]] = [
    *((check, moment(**changed), status, value) for check, changed, status, value in MOMENTS),
    *(
        (check, Run(before=NO_DETAIL if NO_DETAIL.items() <= after.items() else {}, after=after)
         .evidence, status, value)
        for check, after, status, value in GROWTHS
    ),
    *((check, run.evidence, status, ...) for check, run, status in LOADS),
    *((check, partial(run.evidence, [], gpus), status, ...) for check, run, gpus, status in GROUPS),
    *NODES,
]  # fmt: skip
#: Each check passes one of these, but those that have a row of their own for that.
HEALTHY_ONES = (moment(), Run().evidence())
INFORMATION = {
    *("gpu.whole", "gpu.identity", "gpu.reset", "persistence.mode"),
    *("temperature.sensor", "throttle.power_cap", "load.recorded"),
}


@pytest.mark.parametrize(("check", "evidence", "status", "value"), ROWS)
def test_each_check_has_the_result_of_its_row(
    check: str, evidence: object, status: Status, value: Any
) -> None:
    found = judge(check, evidence() if callable(evidence) else evidence)
    assert found.status is status, found
    assert value is ... or found.value == (None if value is None else pytest.approx(value))
    bad = status in BAD
    assert found.threshold
    assert found.source
    assert bool(found.action) == bad
    assert (found.severity is not Severity.NONE) == bad
    assert status not in {UNTESTED, ABSENT} or found.evidence


@pytest.mark.parametrize("check", ["temperature.gpu", "temperature.limit", "temperature.memory"])
@pytest.mark.parametrize(
    ("ended", "event", "status"),
    [
        ("cancelled by root", "gpu.health", UNTESTED),
        ("cancelled by root", "stressor.starting", Status.FAIL),
        (TOO_HOT, "gpu.health", Status.FAIL),
    ],
)
def test_heat_before_any_work_is_a_fault_only_if_it_stays(
    check: str, ended: str, event: str, status: Status
) -> None:
    """The job before may have left it, and the run may be cancelled before it is gone."""
    heat = {"temperature_c": 99, "memory_temperature_c": 99, "temperature_margin_c": -9}
    evidence = Run(before=heat, after=heat, events=({"event": event},)).evidence()
    record = replace(evidence.record, phases=[], ended=ended)
    assert judge(check, replace(evidence, record=record)).status is status


def test_a_fault_of_heat_is_no_less_severe_than_a_warning_of_it() -> None:
    warm = Run(after={"hardware_thermal_throttled_s": 1.0}).evidence()
    hot = Run(after={"software_thermal_throttled_s": 900.0}).evidence()
    found = [
        judge("throttle.hardware_thermal", warm),
        judge("throttle.software_thermal", hot),
        judge("temperature.limit", moment(temperature_margin_c=-2, slowdown_margin_c=-2)),
    ]
    assert [result.status for result in found] == [WARN, FAIL, FAIL]
    assert {result.severity for result in found} == {Severity.TRIAGE}


def test_a_margin_of_temperature_is_called_a_margin() -> None:
    found = judge("temperature.limit", moment(temperature_margin_c=57, slowdown_margin_c=-2))
    assert found.evidence == (
        "its margin, to the nearest limit of any sensor, fell to 57 C;"
        " slowdown begins at a margin of -2 C"
    )


def test_every_check_has_a_row_that_is_bad_and_one_that_passes() -> None:
    """Those of the kernel's log and of a phase that was given up have tests of their own."""
    healthy = {
        one.id for e in HEALTHY_ONES for one in CHECKS.run(e, Thresholds()) if one.status is PASS
    }
    passed = healthy | {check for check, _, status, _ in ROWS if status is PASS}
    assert passed == CHECKS.ids
    for evidence in HEALTHY_ONES:
        bad = [one for one in CHECKS.run(evidence, Thresholds()) if one.status in BAD]
        assert bad == []
    judged = {check for check, _, status, _ in ROWS if status in BAD}
    assert judged == CHECKS.ids - INFORMATION - {"xid", "gpu.kernel_faults", "phase.given_up"}


def test_every_declaration_is_complete() -> None:
    for row in CHECKS:
        assert row.title, row.id
        assert row.reads, row.id
        assert row.source, row.id
        assert row.default_threshold, row.id
        assert "{" not in row.default_threshold, row.id
        assert (row.severity is Severity.NONE) == (not row.action), row.id
    for row in (*CHECKS.of(MomentEvidence), *CHECKS.of(NodeEvidence), *CHECKS.of(GrowthEvidence)):
        # NVIDIA's bucket comes first, and a rule says what its limit counts.
        assert not row.action or row.action.split(":")[0].split(",")[0].isupper(), row.id
        assert not re.search(r"[a-z]; (fail|warn) > 0$", row.default_threshold), row.id
    with pytest.raises(ValueError, match="two checks are called"):
        Table(CHECKS, CHECKS)
    tables = (CHECKS, workload_checks.TABLE, fleet_checks.CHECKS)
    assert CATALOGUE.keys() == frozenset().union(*(table.ids for table in tables))
    keys = {"title", "reads", "source", "do", "severity", "action", "limits", "correctness"}
    text = resources.files("sentinel.burnin.checks").joinpath("checks.toml").read_text()
    for name, values in tomllib.loads(text)["checks"].items():
        assert values.keys() <= keys | {"rule", "unit", "judge"}, name


def test_a_check_judges_every_evidence_of_its_class() -> None:
    of_both = {check.id for check in CHECKS.of(GpuEvidence)}
    assert {"gpu.lost", "temperature.gpu", "pcie.width"} <= of_both
    assert {check.id for check in CHECKS.of(MomentEvidence)} == of_both
    assert of_both < {check.id for check in CHECKS.of(LoadEvidence)}


# --- what is missing -------------------------------------------------------------------------


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
    found = judge(check, Run(before={field: True if "pending" in field else 5.0}).evidence())
    assert found.status is UNTESTED
    assert f"{field} went backwards" in found.evidence
    links = judge("nvlink.replays", Run(before={"nvlinks": nvlinks(replays_total=5)}).evidence())
    assert "backwards" in links.evidence


@pytest.mark.parametrize("after", [{"energy_j": 10.0}, {"driver": "590.1"}])
def test_a_reset_between_the_readings_proves_nothing_but_for_lifetime_counters(
    after: dict[str, Any],
) -> None:
    reset = Run(after=after).evidence()
    assert judge("ecc.uncorrected_new", reset).status is UNTESTED
    assert judge("pcie.replays", reset).status is UNTESTED
    assert judge("ecc.uncorrected_lifetime_new", reset).status is PASS
    bad = Run(after={**after, "ecc_uncorrected_lifetime_total": 1}).evidence()
    assert judge("ecc.uncorrected_lifetime_new", bad).status is FAIL


@pytest.mark.parametrize(
    ("check", "counted"),
    [
        ("ecc.uncorrected_new", {"ecc_uncorrected_total": 2}),
        ("pcie.replay_rate", {"pcie_replays_total": 10**4}),
        ("throttle.power_brake", {"power_brake_throttled_s": 90.0}),
        ("nvlink.recoveries", {"nvlinks": nvlinks(recoveries_total=4)}),
        ("nvlink.crc_rate", {"nvlinks": nvlinks(crc_errors_total=10**6)}),
        ("memory.repair_new", {"remap_pending": True}),
    ],
)
def test_a_reset_hides_nothing_that_was_counted_before_or_after_it(
    check: str, counted: dict[str, Any]
) -> None:
    """Whether between two parts or within one; and the counters of a part may be unknown."""
    whole = judge(check, Run(after=counted).evidence())
    assert whole.status in BAD
    assert judge(check, Run(after={**counted, "energy_j": 1.0}).evidence()).status is whole.status
    evidence = Run().evidence()
    begin = evidence.record.before
    assert begin is not None
    end = replace(begin, at=begin.at + SECONDS, **counted)
    evidence.record.resumed = [(end, begin)]
    assert judge(check, evidence).value == pytest.approx(whole.value, rel=0.01)
    unread = replace(begin, failed=dict.fromkeys(READ_FIELDS, "no permission"))
    evidence.record.resumed = [(end, unread)]
    assert judge(check, evidence).status is whole.status
    evidence.record.resumed = [(begin, unread)]
    assert judge(check, evidence).status is UNTESTED
    # A GPU in use is not reset: what counted since then came after a part that was killed.
    evidence.record.resumed = [(None, replace(end, energy_j=1.0))]
    evidence.record.after = replace(end, at=end.at + SECONDS)
    assert judge(check, evidence).status is UNTESTED


@pytest.mark.parametrize("seconds", [0.0, 59.0])
def test_readings_without_a_time_between_them_have_no_rates(seconds: float) -> None:
    evidence = Run(after={"at": HEALTHY.at + seconds}).evidence()
    assert judge("pcie.replay_rate", evidence).status is UNTESTED
    for check in ("throttle.power_brake", "nvlink.crc_rate"):
        assert (judge(check, evidence).status is UNTESTED) == (seconds == 0.0)


def test_waiting_dilutes_no_share_of_the_time() -> None:
    run = Run(after={"power_brake_throttled_s": 37.0, "at": HEALTHY.at + 100 * SECONDS})
    assert judge("throttle.power_brake", run.evidence()).status is FAIL


def test_a_share_of_a_killed_phase_is_of_the_seconds_that_were_recorded() -> None:
    """No event counts the work of such a phase: they are in its samples alone."""
    evidence = Run(after={"power_brake_throttled_s": 35.0, "at": HEALTHY.at + SECONDS}).evidence()
    evidence.record.phases[-1].work = PhaseWork(seconds=60.0, checks=1)
    assert judge("throttle.power_brake", evidence).status is FAIL
    evidence.record.cut, evidence.record.sampled_s = True, 3500.0
    result = judge("throttle.power_brake", evidence)
    assert (result.status, result.value) == (WARN, 0.01)
    killed = "35 s in 3500 s of load that were recorded: a part of the run was killed"
    assert killed in result.evidence


def test_a_share_of_the_time_says_when_readings_showed_it() -> None:
    """Readings are a second apart: a short slowdown may be in none of them."""
    evidence = Run(after={"software_thermal_throttled_s": 900.0}).evidence()
    check = "throttle.software_thermal"
    assert judge(check, evidence).evidence == "900 s in 3600 s of load"
    steady = evidence.record.phases[-1]
    for place in (7, 30, 52):
        sample = steady.telemetry[place]
        values = {"reasons": ["sw_thermal_slowdown"], "time": f"2026-11-27T20:26:{place:02}+00:00"}
        steady.telemetry[place] = replace(sample, values={**sample.values, **values})
    assert judge(check, evidence).evidence == (
        "900 s in 3600 s of load; seen in steady from 2026-11-27 20:26:07 +0000 on, last 45 s later"
    )


@pytest.mark.parametrize(
    ("taken", "seen", "status", "share"),
    [
        (None, 0, FAIL, 900 / SECONDS),
        # A job of 800 s, beside which as much may have been counted; one of an hour.
        ("gpu.yielding", 0, WARN, 900 / (SECONDS + 800)),
        ("gpu.yielding", 200, FAIL, 200 / SECONDS),
        ("gpu.reserved", 100, WARN, 900 / (SECONDS + 800)),
    ],
)
def test_heat_beside_others_is_no_fault(
    taken: str | None, seen: int, status: Status, share: float
) -> None:
    begin = HEALTHY.at
    events: list[dict[str, Any]] = [{"event": "stressor.starting", "at": begin + 0.01}]
    if taken is not None:
        events += [
            {"event": taken, "at": begin + 1000},
            {"event": "gpu.idle", "at": begin + 1790},
            {"event": "stressor.starting", "at": begin + 1800},
        ]
    run = Run(after={"software_thermal_throttled_s": 900.0}, events=tuple(events))
    evidence = run.evidence()
    sample = evidence.record.phases[-1].telemetry[0]
    cool, hot = ({**sample.values, "reasons": one} for one in ([], ["sw_thermal_slowdown"]))
    evidence.record.phases[-1].telemetry = [
        replace(sample, at=begin + 10.0 + second, values=hot if second <= seen else cool)
        for second in (*range(400), *range(1810, 5010))
    ]
    result = judge("throttle.software_thermal", evidence)
    assert result.status is status
    assert result.value == pytest.approx(share, rel=1e-3)
    assert ("beside others, who may have had the GPU for 800 s" in result.evidence) == (
        taken is not None
    )


@pytest.mark.parametrize(
    ("check", "counted"),
    [
        ("pcie.replay_rate", {"pcie_replays_total": 9000}),
        ("nvlink.crc_rate", {"nvlinks": nvlinks(crc_errors_total=360_000)}),
    ],
)
def test_a_rate_that_hours_of_a_job_explain_is_no_fault(
    check: str, counted: dict[str, Any]
) -> None:
    begin = HEALTHY.at
    alone = Run(after=counted)
    assert judge(check, alone.evidence()).status is FAIL
    taken = ("stressor.starting", begin + 0.01), ("gpu.yielding", begin + 1)
    events = tuple(
        {"event": name, "at": at} for name, at in (*taken, ("stressor.starting", begin + 36001))
    )
    beside = Run(after={**counted, "at": begin + 36000 + SECONDS}, events=events)
    assert judge(check, beside.evidence()).status is WARN


def test_what_a_job_before_the_first_stressor_or_after_a_kill_caused_is_no_fault() -> None:
    begin = HEALTHY.at
    run = Run(
        after={"hardware_thermal_throttled_s": 900.0},
        events=({"event": "stressor.starting", "at": begin + 600},),
    )
    evidence = run.evidence()
    assert evidence.beside_others == 600
    # Killed at its last event, and resumed 400 s later.
    evidence.record.resumed = [(None, replace(evidence.now, at=begin + 1000))]
    evidence.record.events.append({"event": "stressor.starting", "at": begin + 1100})
    assert evidence.beside_others == 600 + 500
    assert judge("throttle.hardware_thermal", evidence).status is WARN
    older: dict[str, Any] = {"software_thermal_throttled_s": None, "thermal_throttled_s": 900.0}
    evidence.record.after = replace(evidence.now, **older)
    assert judge("throttle.thermal", evidence).status is WARN


def test_a_link_to_the_host_says_which_way_each_rate_is() -> None:
    shared = {LinkPart.ALL_TO_DEVICE: 39.8, LinkPart.ALL_TO_HOST: 33.6}
    evidence = Run(links=Links(host={**TO_HOST, **shared})).evidence()
    assert judge("links.host", evidence).evidence.startswith(
        "to the GPU 55.3 GB/s, to the host 55.3 GB/s, both ways at once 90 GB/s,"
        " to each GPU while all copy 39.8 GB/s, from each 33.6 GB/s"
    )


def test_a_rate_of_errors_of_links_says_how_many_there_were_and_where() -> None:
    for errors, text in ((36, "36 errors in 3600 s of load: link 0"), (0, "0 errors in 3600 s")):
        evidence = Run(after={"nvlinks": nvlinks(crc_errors_total=errors)}).evidence()
        assert judge("nvlink.crc_rate", evidence).evidence.startswith(text)


def test_corrected_errors_are_counted_by_phase_and_only_under_own_load() -> None:
    evidence = Run(corrected=50).evidence()
    record = evidence.record
    memory, steady = record.phases[0], record.phases[-1]

    def count(at: float, errors: int) -> Sample:
        return Sample(at=at, values={"ecc_corrected_total": errors})

    memory.telemetry = [count(-9.0, 0), count(-5.0, 7)]
    # Another process had the GPU: its million errors are none of this load, nor are a reset's.
    steady.telemetry = [count(at, 10**6 + int(at) * 50) for at in map(float, range(61))]
    # The last reading of that time is stamped with it, and written beside the next stressor.
    memory.telemetry.append(count(-1.0, 10**6))
    record.events = [
        {"event": "gpu.yielding", "at": -4.0},
        {"event": "stressor.starting", "at": -0.5},
    ]
    assert judge("ecc.corrected_load", evidence).evidence == (
        "in 64 s of own load: memory 7, steady 3,000; 50.0 a second in the worst minute"
    )
    steady.telemetry.append(count(61.0, 0))
    assert judge("ecc.corrected_load", evidence).value == 3007
    # The same errors within one stressor are of its load.
    record.events = []
    assert judge("ecc.corrected_load", evidence).status is FAIL
    # A reading above both its neighbours is an error, also the last one.
    for spike in (30.0, 60.0):
        evidence = Run(counters={"ecc_corrected_total": 0}).evidence()
        evidence.record.phases[-1].telemetry = [
            count(at, 0xFFFFFFFF if at == spike else 0) for at in map(float, range(61))
        ]
        found = judge("ecc.corrected_load", evidence)
        assert (found.status, found.value) == (PASS, 0)
        assert found.evidence.endswith("not counted as implausible: 4,294,967,295")


def test_one_slowdown_that_does_not_count_is_in_the_evidence() -> None:
    evidence = Run(read={"reasons": ()}).evidence()
    telemetry = evidence.record.phases[-1].telemetry
    telemetry[30] = replace(
        telemetry[30], values={**telemetry[30].values, "reasons": ["hw_slowdown"]}
    )
    found = judge("clocks.hardware_slowdown", evidence)
    readings = evidence.reasons()[1]
    why = f"hw_slowdown in 1 of {readings} readings, as a change of clocks has it"
    assert (found.status, found.evidence) == (PASS, why)
    assert "a change of clocks" in found.threshold


def test_the_missing_gpus_are_named_as_far_as_they_are_known() -> None:
    known = {gpu.uuid: f"GPU {gpu.index} {gpu.uuid}" for gpu in EIGHT}
    one = expected(8, *EIGHT[:6], GONE, known=known, pci_devices=BUSES)
    assert judge("node.gpus", one).evidence == (
        "6 of 8 are there; GPU 1 is lost: GPU is lost; known from before: GPU 6 GPU-6;"
        " known from before: GPU 7 GPU-7; on the PCI bus, but not listed by NVML: 00000000:0B:00.0"
    )
    assert judge("node.gpus", expected(8, *EIGHT, known=known)).evidence == "8 of 8 are there"


def test_nothing_but_the_loss_is_judged_on_a_lost_gpu() -> None:
    gone = Counters(uuid="GPU-1", index=0, name="", at=0.0, lost="gone")
    found = MOMENT.run(MomentEvidence(counters=gone), Thresholds())
    judged = [one.id for one in found if one.status not in {UNTESTED, ABSENT}]
    assert (judged, worst(found)) == (["gpu.lost"], FAIL)
    for when in ("before", "after"):
        evidence = Run(**{when: {"lost": "gone"}}).evidence()  # type: ignore[arg-type]
        assert judge("gpu.lost", evidence).status is FAIL
        for check, _, _, _ in GROWTHS:
            assert judge(check, evidence).status in {UNTESTED, ABSENT}, check


def test_a_gpu_without_counters_is_judged_by_what_it_did() -> None:
    evidence = Run(events=(FINDING,)).evidence()
    evidence.record.before = evidence.record.after = None
    results = CHECKS.run(evidence, Thresholds())
    assert {result.id for result in results if result.status in BAD} == {"results.finding"}
    assert judge("gpu.lost", evidence).status is UNTESTED


def test_a_call_that_failed_is_not_tested_and_a_missing_feature_does_not_apply() -> None:
    failed = judge("memory.remap_failed", moment(remap_failed=None, failed={"remap_failed": "no"}))
    assert (failed.status, failed.value) == (UNTESTED, None)
    assert failed.evidence.endswith(": no")
    assert judge("memory.remap_failed", moment(remap_failed=None)).status is ABSENT
    unread: dict[str, Any] = {"remap_pending": None, "failed": {"remap_pending": "no permission"}}
    assert judge("memory.repair_pending", moment(**unread)).status is UNTESTED
    assert judge("memory.repair_pending", moment(**unread, tpc_repair_pending=True)).status is WARN


_OPTIONAL = st.sets(st.sampled_from(sorted(READ_FIELDS)))


@settings(max_examples=4 * settings().max_examples)
@given(_OPTIONAL, _OPTIONAL, _OPTIONAL)
def test_no_combination_of_missing_values_is_a_fault(
    before: set[str], after: set[str], failed: set[str]
) -> None:
    first: dict[str, Any] = {**dict.fromkeys(before), "failed": dict.fromkeys(failed & before, "x")}
    last: dict[str, Any] = {**dict.fromkeys(after), "failed": dict.fromkeys(failed & after, "y")}
    for evidence in (moment(**first), Run(before=first, after=last).evidence()):
        bad = [one for one in CHECKS.run(evidence, Thresholds()) if one.status in BAD]
        assert bad == []


def test_every_value_that_a_row_names_is_one_of_the_counters() -> None:
    changed = {name for _, values, _, _ in (*MOMENTS, *GROWTHS) for name in values}
    assert changed <= {field.name for field in fields(Counters)} | {"findings"}


# --- comparisons -----------------------------------------------------------------------------


def test_nvlinks_are_compared_with_gpus_of_the_same_model_only() -> None:
    def judged(gpu: Counters, *peers: Counters) -> CheckResult:
        return judge("nvlink.inactive", MomentEvidence(counters=gpu, node=(gpu, *peers)))

    whole = judged(replace(HEALTHY, nvlinks=nvlinks(active=False)))
    assert whole.evidence == "17 active links; 18 this model has"
    listed = judged(replace(HEALTHY, nvlinks=LINKS[:17]))
    assert (listed.status, listed.evidence) == (WARN, "17 of 18 links active, 17 listed")
    # On a model that is not known, each listed link of all GPUs should be active, but for bridges.
    unknown = replace(HEALTHY, name="NVIDIA H100 96GB HBM3", nvlinks=nvlinks(active=False))
    same = judged(unknown, replace(unknown, index=1))
    why = "17 of 18 links active, 18 listed, as on all GPUs of this model"
    assert (same.status, same.evidence) == (WARN, why)
    # How many links a card with bridges should have is not known.
    bridged, peer = (replace(one, name="NVIDIA H100 NVL") for one in (HEALTHY, PEER))
    fewer = replace(bridged, nvlinks=nvlinks(active=False))
    none = replace(HEALTHY, nvlinks=tuple(replace(one, active=False) for one in LINKS))
    assert judged(fewer).status is ABSENT
    assert judged(fewer, replace(peer, name="NVIDIA A100")).status is ABSENT
    assert judged(fewer, peer).value == 1
    # All links of all GPUs of a board are down, or it has no bridge.
    dead = replace(bridged, nvlinks=none.nvlinks)
    assert judged(dead, replace(dead, index=1)).evidence.endswith("no bridge, or all are down")
    assert judged(dead, replace(dead, index=1)).status is ABSENT
    # One of two pairs with a bridge: the other two have no links at all, and none is missing.
    pair = replace(PEER, index=2), replace(PEER, index=3)
    assert judged(PEER, replace(none, index=1), *pair).status is PASS
    assert judged(none, replace(none, index=2), pair[1]).status is ABSENT
    down = judged(none, replace(none, index=2))
    why = f"0 of {len(LINKS)} links active, as on all GPUs of this model: all are down"
    # A board on which each link is used, and it lists all of them: they are down.
    assert (down.status, down.value, down.evidence) == (FAIL, len(LINKS), why)
    # With fewer than the board has, it may be another board.
    fewer = replace(none, nvlinks=none.nvlinks[:2] if none.nvlinks else None)
    assert judged(fewer, replace(fewer, index=2)).status is WARN
    # Alone, a GPU needs none; on a card without a bridge, they are absent.
    assert judged(none).status is ABSENT
    pcie = replace(none, name="NVIDIA H100 PCIe")
    assert judged(pcie, replace(pcie, index=2)).status is ABSENT
    # All its peers have links: it lost all of its own.
    assert judged(none, *(replace(PEER, index=index) for index in range(1, 8))).value == 18


@pytest.mark.parametrize(
    ("own", "air", "value"),
    [
        # It is slow, and as hot as its peers: 0.096 C/W, and theirs 0.043.
        ({"power_w": 345.0, "temperature_c": 63.0}, 30, 18.0),
        # It is slow, and as much cooler.
        ({"power_w": 345.0, "temperature_c": 45.0}, 30, 0.0),
        # Nothing is known of the air: a GPU before the run was as hot as under load.
        ({"power_w": 345.0, "temperature_c": 63.0}, 60, 3.0),
        ({"power_w": 345.0, "temperature_c": 63.0}, None, 3.0),
        # More power explains nothing.
        ({"power_w": 720.0, "temperature_c": 63.0}, 30, 3.0),
        ({"power_w": None, "temperature_c": 63.0}, 30, 3.0),
    ],
)
def test_a_cool_gpu_that_is_slow_is_as_hot_as_its_power_explains(
    own: dict[str, float | None], air: int | None, value: float
) -> None:
    cold = {"temperature_c": air}
    run = Run(read=own, before=cold)
    found = judge("load.temperature_spread", run.evidence([Run(before=cold)] * 7))
    assert found.value == pytest.approx(value)
    assert found.status is (WARN if value > 10 else PASS)
    assert ("0.096 C/W at 345 W, theirs 0.043 C/W at 690 W" in found.evidence) == (value == 18.0)


@pytest.mark.parametrize("check", ["rate.peers", "load.temperature_spread"])
def test_too_few_gpus_or_those_of_other_times_are_no_peers(check: str) -> None:
    run = Run(tflops=100, read={"temperature_c": 80})
    few = judge(check, run.evidence([Run(), Run()])).status
    assert few is (WARN if check == "rate.peers" else ABSENT)
    assert judge(check, Run().evidence([Run(), Run()])).status is ABSENT
    evidence = run.evidence()
    assert judge(check, evidence).status in BAD
    for number, peer in enumerate(evidence.peers[1:], start=1):
        peer.phases[-1].stretches = [(100.0 * number, 100.0 * number + 60)]
    assert judge(check, evidence).status is ABSENT


def test_gpus_with_usual_noise_pass_and_5_percent_alone_is_no_failure() -> None:
    noisy = [Run(tflops=600 + delta) for delta in (-6, -4, -1, 0, 1, 3, 5)]
    assert judge("rate.peers", Run(tflops=592).evidence(noisy)).status is PASS
    # Five good H100s.
    h100s = [Run(tflops=rate) for rate in (668.4, 671.9, 674.9, 677.6)]
    assert judge("rate.peers", Run(tflops=639.6).evidence(h100s)).status is PASS


def test_no_limit_that_an_operator_has_set_blames_a_gpu_nor_makes_it_an_exception() -> None:
    lowered = Run(tflops=400, read={"power_limit_w": 400.0, "power_w": 395.0})
    alone = judge("rate.peers", lowered.evidence())
    assert alone.status is UNTESTED
    assert alone.evidence == "CONFIG: its power limit is 57% of the default"
    slower = Run(tflops=300, read={"power_limit_w": 400.0, "power_w": 395.0})
    assert judge("rate.peers", slower.evidence([lowered] * 7)).status is FAIL
    lower = {"reasons": ("applications_clocks_setting",), "sm_clock_mhz": 1130.0}
    locked = Run(tflops=400, read=lower)
    assert judge("rate.peers", locked.evidence()).status is UNTESTED
    # Locked at the usual clock, it is as fast as others, which differ, too.
    usual = Run(tflops=598, read={"reasons": lower["reasons"]})
    assert judge("rate.peers", usual.evidence()).status is UNTESTED
    assert judge("rate.peers", replace(usual, tflops=500).evidence()).status is FAIL
    # A limit of 57 % does not explain a third of the rate.
    beyond = judge("rate.peers", replace(lowered, tflops=200).evidence())
    assert (beyond.status, beyond.value) == (FAIL, 0.3333)
    assert judge("rate.peers", Run(tflops=500).evidence([locked, *[Run()] * 6])).status is FAIL


def test_each_steady_phase_and_each_format_is_compared() -> None:
    for workload, steady in (("gemm", True), ("gemm:dtype=fp16", False)):
        evidence = Run().evidence()
        for index, record in enumerate(evidence.peers):
            last = record.phases[-1]
            rate = 300e12 if index == 0 else 600e12
            reports = [
                Sample(at=one.at, values={**one.values, "flops": rate}) for one in last.reports
            ]
            phase = replace(last.phase, name="other", workload=workload, steady=steady)
            record.phases.insert(0, replace(last, phase=phase, reports=reports))
        found = judge("rate.peers", evidence)
        assert (found.status, found.value) == (FAIL, 0.5)
        assert found.evidence.startswith("other: 300 TFLOP/s")


@pytest.mark.parametrize(
    ("slow", "status"), [(range(5), PASS), (range(0, 60, 12), WARN), (range(20, 50), FAIL)]
)
def test_the_worst_moments_of_a_phase_are_judged(slow: range, status: Status) -> None:
    """A few seconds of little are nothing, 5 % of the time a warning, half a minute a fault."""
    evidence = Run().evidence()
    steady = evidence.record.phases[-1]
    steady.reports = [
        Sample(at=one.at, values={**one.values, "flops": 300e12 if one.at in slow else 600e12})
        for one in steady.reports
    ]
    if status is PASS:
        steady.reports = [
            *steady.reports,
            *[replace(one, at=59.0) for one in steady.reports[5:]] * 2,
        ]
    assert judge("rate.peers", evidence).status is PASS
    assert judge("rate.worst", evidence).status is status


def test_a_reading_of_0_is_one_and_one_temperature_alone_is_none() -> None:
    zeros = Run(read={"power_w": 0.0, "memory_clock_mhz": 0, "pcie_width": 0}).evidence()
    for check in ("load.power", "load.memory_clock", "pcie.width"):
        found = judge(check, zeros)
        assert found.status is UNTESTED
        assert found.evidence.endswith("read 0 in 100% of the samples under load")
    for name, value, check in (
        ("temperature_c", 255, "temperature.gpu"),
        ("temperature_c", 88, "temperature.gpu"),
        ("temperature_margin_c", -120, "temperature.limit"),
        ("temperature_margin_c", -5, "temperature.limit"),
    ):
        # No GPU can have 255 C, however often it is read.
        for length, status in ((1, PASS), (2, PASS if value == 255 else FAIL)):
            evidence = Run().evidence()
            telemetry = evidence.record.phases[-1].telemetry
            for place in range(30, 30 + length):
                one = telemetry[place]
                telemetry[place] = replace(one, values={**one.values, name: value})
            found = judge(check, evidence)
            assert found.status is status
            assert (f"not counted as implausible: {value} C" in found.evidence) is (status is PASS)


@pytest.mark.parametrize("apart", [1.0, 30.0])
def test_a_spike_hides_no_heat_of_the_same_degrees(apart: float) -> None:
    """Nor is a reading a spike whose neighbours are of other times."""
    evidence = Run().evidence()
    telemetry = evidence.record.phases[-1].telemetry
    for place, one in enumerate(telemetry):
        hot = place == 10 or (apart == 1.0 and 40 <= place < 50)
        values = {**one.values, "temperature_c": 100.0 if hot else 60.0}
        telemetry[place] = replace(one, at=one.at * apart, values=values)
    assert judge("temperature.gpu", evidence).status is FAIL


def test_a_temperature_that_no_power_changes_is_none() -> None:
    evidence = Run(counters={"temperature_c": 60}).evidence()
    assert judge("temperature.sensor", evidence).status is PASS
    telemetry = evidence.record.phases[-1].telemetry
    telemetry[0] = replace(telemetry[0], values={**telemetry[0].values, "power_w": 200.0})
    found = judge("temperature.sensor", evidence)
    assert found.status is UNTESTED
    assert found.evidence == "it read 60 to 60 C while the power varied by 490 W"
    # 37 W of 120 W warm a card that is cooled for 700 W by no more than noise, and a second of any
    # power is over before a sensor follows.
    for high in (120.0, 690.0):
        for place, one in enumerate(telemetry):
            values = {**one.values, "power_w": 83.0 if place else high}
            telemetry[place] = replace(one, values=values)
        assert judge("temperature.sensor", evidence).status is PASS


def test_a_phase_that_all_peers_can_do_must_be_done() -> None:
    evidence = Run().evidence()
    copy = evidence.record.phases[2]
    copy.work = PhaseWork(given_up="its stressors failed 3 times")
    found = judge("phase.given_up", evidence)
    assert (found.status, found.evidence) == (FAIL, "copy: its stressors failed 3 times")
    few = replace(evidence, peers=evidence.peers[:2])
    assert judge("phase.given_up", few).status is WARN
    evidence.peers[3].phases[2].work = copy.work
    assert judge("phase.given_up", evidence).status is PASS


def test_a_card_is_not_compared_with_few_runs_or_with_other_ones() -> None:
    slow = Run(tflops=300)
    assert judge("rate.history", slow.evidence()).status is FAIL
    flashed = tuple(replace(one, vbios="97") for one in FORMER)
    hot = tuple(replace(one, temperature_c=70.0) for one in FORMER)
    for former in (FORMER[:2], flashed):
        assert judge("rate.history", slow.evidence(former=former)).status is ABSENT
    # Another temperature explains some of it, and not all.
    assert judge("rate.history", slow.evidence(former=hot)).status is FAIL
    assert judge("rate.history", Run(tflops=560).evidence(former=hot)).status is WARN


def test_another_number_format_or_model_is_not_compared_with_the_reference() -> None:
    evidence = Run(tflops=50).evidence()
    evidence.record.phases[-1].phase = replace(STEADY, workload="gemm:dtype=fp64")
    assert judge("rate.reference", evidence).status is UNTESTED
    found = judge("rate.reference", Run().evidence(references=(), model="a card"))
    assert (found.status, found.evidence) == (ABSENT, "there is no reference for a card")
    for one in (reference for references in load_references().values() for reference in references):
        assert (one.workload, one.unit) in {("gemm", "TFLOP/s"), ("elementwise", "TB/s")}
        assert one.source
        assert one.n > 0


def test_a_gpu_with_shorter_ways_is_compared_with_others_that_have_such() -> None:
    bridged, lost = (
        Run(links=Links(size=4, peers={1: first, 2: 20.0, 3: 20.0})) for first in (100.0, 20.0)
    )
    assert judge("links.peer", bridged.evidence([bridged] * 3, 4)).status is PASS
    assert judge("links.peer", lost.evidence([bridged] * 3, 4)).status is FAIL


@pytest.mark.parametrize("check", [row.id for row in CHECKS if row.id.startswith("links.")])
def test_links_that_were_not_run_are_not_tested(check: str) -> None:
    broken = Run(links=None, given_up="its group was broken up 3 times").evidence()
    assert judge(check, broken).status is UNTESTED
    assert "broken up" in judge(check, broken).evidence
    other = Phase(name="other", workload="gemm", seconds=15)
    absent = judge(check, Run(links=None, phase_of_links=other).evidence())
    assert absent.evidence == "the plan has no phase that tests links"


# --- golden checksums ------------------------------------------------------------------------

#: The key, the checksum and the one on record.
Row = tuple[str, str, str | None]
A, B, C = ("bf16", "0xa", "0xa"), ("bf16", "0xb", "0xa"), ("bf16", "0xc", "0xa")
MADE_A: Row = ("bf16", "0xa", None)


def golden(check: str, *gpus: Row) -> list[Status]:
    """Judge every GPU of a node, given the checksum of each."""
    runs = [Run(checksums=(row,)) for row in gpus]
    return [
        judge(check, run.evidence([*runs[:index], *runs[index + 1 :]])).status
        for index, run in enumerate(runs)
    ]


def test_a_record_that_most_gpus_of_the_node_contradict_is_wrong() -> None:
    stale: Row = ("bf16", "0xa", "0xc")
    own: Row = ("bf16", "0xc", "0xc")
    assert golden("golden.stored", stale, stale, stale, own) == [WARN, WARN, WARN, PASS]
    assert golden("golden.peers", stale, stale, stale, own) == [PASS, PASS, PASS, FAIL]
    assert golden("golden.stored", stale) == [FAIL]


def test_the_majority_decides_then_the_record_and_without_both_all_fail() -> None:
    made_b: Row = ("bf16", "0xb", None)
    good: Row = ("bf16", "0xa", "0xb")
    assert golden("golden.peers", made_b, good, good, good) == [FAIL, PASS, PASS, PASS]
    # The record of this run is the faulty GPU's own, so it accuses none.
    assert golden("golden.stored", made_b, good, good, good) == [UNTESTED] * 4
    assert golden("golden.stored", A, B) == [PASS, FAIL]
    assert golden("golden.peers", A, B) == [PASS, FAIL]
    assert golden("golden.peers", MADE_A, B) == [FAIL, FAIL]
    assert golden("golden.peers", MADE_A, B, C) == [FAIL, FAIL, FAIL]


def test_the_evidence_names_the_checksums() -> None:
    wrong = Run(checksums=(("bf16", "0xb", "0xa"), ("fp16", "0xd", None))).evidence()
    stored = judge("golden.stored", wrong)
    assert stored.evidence == "1 of 1 differ; first: bf16: 0xb, 0xa is on record"
    peers = judge("golden.peers", wrong)
    assert peers.evidence == "1 of 2: bf16: 0xb, as 0 of 7 other GPUs; 7 computed 0xa"
    torn = Run(checksums=(MADE_A, B)).evidence([])
    assert judge("golden.peers", torn).evidence.endswith("the GPU contradicts itself: 0xa, 0xb")


# --- texts and nodes -------------------------------------------------------------------------


def test_what_is_not_in_a_row() -> None:
    reset = judge("recovery.action", moment(recovery_action="node_reboot"))
    assert reset.action.startswith("RESTART_BM")
    assert judge("recovery.action", moment(recovery_action="gpu_reset")).action.startswith("RESET_")
    assert judge("pcie.width", moment(pcie_width=8)).threshold == (
        "lanes below the maximum of GPU and slot: fail > 0; never on an idle GPU"
    )
    # The rule of three.
    assert "1.0e-03" in judge("results.wrong", Run().evidence()).evidence
    two_gpus = Run(links=ONE, events=(BUSY,)).evidence()
    assert "GPU 3" in judge("links.peer", two_gpus).evidence


def test_an_error_counts_although_its_event_was_lost() -> None:
    evidence = Run().evidence()
    steady = evidence.record.phases[-1]
    steady.work = replace(steady.work, errors=7)
    assert judge("results.wrong", evidence).status is FAIL


def test_the_coverage_is_judged_where_no_stripe_is_held() -> None:
    evidence = Run(share=0.8).evidence()
    work = PhaseWork(covered={"0": 1}, patterns=1, share=0.5, retained=0.11)
    held = PhaseRecord(phase=replace(MEMORY, name="retention"), work=work)
    evidence.record.phases.append(held)
    assert judge("memory.covered", evidence).status is PASS
    evidence.record.phases = [held]
    assert judge("memory.covered", evidence).status is WARN


def test_a_node_on_which_a_gpu_was_not_tested_is_incomplete_unless_one_failed() -> None:
    blind = Counters(uuid="", index=1, name="", at=0.0).unread("no permission")
    bad = replace(HEALTHY, remap_failed=True)
    for gpus, status in (
        ((HEALTHY,), PASS),
        ((), UNTESTED),
        ((HEALTHY, blind), UNTESTED),
        ((bad, blind), FAIL),
    ):
        assert judge_node(gpus, Thresholds()).status is status
    assert judge_node((bad, HEALTHY), Thresholds(), selected={5}).status is UNTESTED
    # A missing GPU is a fault of the node even if all others are well.
    assert judge_node((HEALTHY,), Thresholds(), pci_devices=BUSES).status is FAIL


def test_an_all_reduce_is_compared_with_those_of_as_many_gpus() -> None:
    """A group that begins again without some GPUs sums faster, which is no measure for those."""
    (smaller,) = Links(size=5, all_reduce=262.5).samples()[-1:]
    for rate, status in ((240.0, PASS), (200.0, WARN)):
        others = [Run(counters=CARD)] * 7
        evidence = Run(links=Links(all_reduce=rate), counters=CARD).evidence(others)
        for record in evidence.peers[3:] if status is PASS else evidence.peers:
            record.phases[1].links.append(smaller)
        found = judge("links.all_reduce", evidence)
        assert (found.status, found.value) == (status, round(rate / 240, 4))
