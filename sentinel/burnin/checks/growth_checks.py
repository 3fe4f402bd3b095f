"""The checks of a difference: what the counters of a GPU show over a time, as data."""

from __future__ import annotations

from sentinel.burnin.checks.check import Check, Evidence, Severity
from sentinel.burnin.checks.counter_checks import DCGM, OWN, RMA, XID_CATALOG
from sentinel.burnin.checks.counter_judges import grown, newly_set, share
from sentinel.burnin.checks.link_judges import link_growth, links_lost, replay_rate
from sentinel.burnin.checks.thresholds import Limits, above, at_least

_ANY_FAILS: Limits = {"fail": above(0)}
_ANY_WARNS: Limits = {"warn": above(0)}

_TIMES = "NVML: the driver's counters in ns"
_RESET = "RESET_GPU: free the GPU and run `nvidia-smi --gpu-reset`; if it recurs, replace the card."
_COOLING = "CHECK_MECHANICALS: check the air flow, the fans and the seating of the cooler."
_POWER = "CHECK_MECHANICALS: check the power supplies, the power cables and the chassis."
_SEATING = "CHECK_MECHANICALS: reseat the card; check the slot, the riser and the cables."
_LINKS = "WORKFLOW_NVLINK_ERR: check the bridge or the NVSwitches, then reset the GPU."


def _check(  # noqa: PLR0913, PLR0917 - the columns of the table
    id_: str,
    title: str,
    reads: str,
    judge: object,
    limits: Limits,
    source: str,
    severity: Severity,
    action: str,
    unit: str = "",
    rule: str = "",
) -> Check[Evidence]:
    return Check(
        id=id_,
        title=title,
        reads=reads,
        judge=judge,  # type: ignore[arg-type]
        limits=limits,
        source=source,
        severity=severity,
        action=action,
        unit=unit,
        rule=rule,
    )


#: The checks of two readings of one GPU, in the order of the report.
GROWTH_CHECKS: tuple[Check[Evidence], ...] = (
    _check(
        "ecc.uncorrected_new",
        "No new uncorrectable errors",
        "nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)",
        grown("ecc_uncorrected_total"),
        _ANY_FAILS,
        f"{XID_CATALOG}: 48",
        Severity.ISOLATE,
        f"WORKFLOW_XID_48, then {_RESET}",
        "errors",
    ),
    _check(
        "ecc.uncorrected_lifetime_new",
        "No new uncorrectable errors in the card's own count",
        "nvmlDeviceGetTotalEccErrors(UNCORRECTED, AGGREGATE)",
        grown("ecc_uncorrected_lifetime_total"),
        _ANY_FAILS,
        f"{XID_CATALOG}: 48",
        Severity.ISOLATE,
        f"WORKFLOW_XID_48, then {_RESET}",
        "errors",
    ),
    _check(
        "ecc.corrected_new",
        "Few new correctable errors",
        "nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)",
        grown("ecc_corrected_total"),
        {"warn": above(10)},
        f"{DCGM}: MAX_SBE_RATE",
        Severity.MONITOR,
        "IGNORE: watch whether they grow; a rate alone is no fault.",
        "errors",
    ),
    _check(
        "memory.sram_uncorrected_new",
        "No new uncorrectable SRAM errors",
        "nvmlDeviceGetSramEccErrorStatus, aggregate",
        grown("sram_uncorrected_lifetime_total"),
        _ANY_FAILS,
        f"{XID_CATALOG}: 48, 172",
        Severity.ISOLATE,
        f"WORKFLOW_XID_48, then {_RESET}",
        "errors",
    ),
    _check(
        "memory.remapped_uncorrected_new",
        "No new remaps after uncorrectable errors",
        "nvmlDeviceGetRemappedRows",
        grown("remapped_uncorrected_total"),
        _ANY_FAILS,
        RMA,
        Severity.RESET,
        _RESET,
        "rows",
    ),
    _check(
        "memory.remapped_corrected_new",
        "No new remaps after correctable errors",
        "nvmlDeviceGetRemappedRows",
        grown("remapped_corrected_total"),
        _ANY_WARNS,
        RMA,
        Severity.MONITOR,
        "IGNORE: the remap is the designed repair; reset the GPU when it is convenient.",
        "rows",
    ),
    _check(
        "memory.repair_new",
        "No repair became necessary",
        "nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus, "
        "nvmlDeviceGetRepairStatus",
        newly_set(
            "remap_pending", "retirement_pending", "channel_repair_pending", "tpc_repair_pending"
        ),
        _ANY_FAILS,
        "NVIDIA, GPU memory error management; imbue-ai/cluster-health",
        Severity.RESET,
        _RESET,
        "flags",
    ),
    _check(
        "throttle.hardware_thermal",
        "The hardware did not slow down because of heat",
        "field 270, CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        share("hardware_thermal_throttled_s"),
        {"fail": above(0.01), "warn": above(0)},
        f"{_TIMES}; shares: {OWN}",
        Severity.TRIAGE,
        _COOLING,
        "of the time",
    ),
    _check(
        "throttle.power_brake",
        "The power brake was not applied",
        "field 271, CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
        share("power_brake_throttled_s"),
        {"fail": above(0.01), "warn": above(0)},
        f"{_TIMES}; shares: {OWN}",
        Severity.TRIAGE,
        _POWER,
        "of the time",
    ),
    _check(
        "throttle.software_thermal",
        "The driver did not slow down because of heat",
        "field 269, CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
        share("software_thermal_throttled_s"),
        {"fail": above(0.05), "warn": above(0.005)},
        f"{_TIMES}; shares: {OWN}",
        Severity.MONITOR,
        _COOLING,
        "of the time",
    ),
    _check(
        "throttle.thermal",
        "No slowdown because of heat, on drivers that count all heat together",
        "field 75, PERF_POLICY_THERMAL, or nvmlDeviceGetViolationStatus",
        share("thermal_throttled_s", unless="software_thermal_throttled_s"),
        {"fail": above(0.05), "warn": above(0.005)},
        f"{_TIMES}; shares: {OWN}",
        Severity.MONITOR,
        _COOLING,
        "of the time",
    ),
    _check(
        "throttle.power_cap",
        "Time at the power limit",
        "field 74, PERF_POLICY_POWER, or nvmlDeviceGetViolationStatus",
        share("power_throttled_s"),
        {},
        OWN,
        Severity.NONE,
        "",
        "of the time",
        rule="information: normal under load",
    ),
    _check(
        "pcie.replay_rate",
        "Few retransmissions on PCIe",
        "nvmlDeviceGetPcieReplayCounter",
        replay_rate,
        {
            "generation_1": above(0.15),
            "generation_2": above(0.3),
            "generation_3": above(0.48),
            "generation_4": above(0.96),
            "generation_5": above(1.92),
            "generation_6": above(3.84),
            "warn_share": above(0.1),
            "minimum_s": at_least(60),
        },
        f"{DCGM}: PCIe replays per minute and lane",
        Severity.TRIAGE,
        _SEATING,
        "per minute and lane",
        rule="fail above the number of the link's generation, warn above a share of it",
    ),
    _check(
        "pcie.replays",
        "Few retransmissions on PCIe in a run",
        "nvmlDeviceGetPcieReplayCounter",
        grown("pcie_replays_total"),
        {"warn": above(80)},
        "NVIDIA/DCGM 4.6.0, diag: max_pcie_replays",
        Severity.MONITOR,
        _SEATING,
        "replays",
    ),
    _check(
        "nvlink.lost",
        "No NVLink became inactive",
        "nvmlDeviceGetNvLinkState",
        links_lost,
        _ANY_FAILS,
        f"{XID_CATALOG}: 74",
        Severity.ISOLATE,
        _LINKS,
        "links",
    ),
    _check(
        "nvlink.recoveries",
        "No NVLink was retrained",
        "fields 162 and 215, NVLINK_ERROR_DL_RECOVERY, NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        link_growth("recoveries_total"),
        _ANY_WARNS,
        f"{DCGM}: MAX_NVLINK_ERROR",
        Severity.TRIAGE,
        _LINKS,
        "retrainings",
    ),
    _check(
        "nvlink.replays",
        "No retransmissions on NVLink",
        "field 161, NVLINK_ERROR_DL_REPLAY",
        link_growth("replays_total"),
        _ANY_WARNS,
        f"{DCGM}: MAX_NVLINK_ERROR",
        Severity.TRIAGE,
        _LINKS,
        "replays",
    ),
    _check(
        "nvlink.crc_rate",
        "Few CRC errors on NVLink",
        "field 163, NVLINK_ERROR_DL_CRC",
        link_growth("crc_errors_total", per_second=True),
        {"fail": at_least(100), "warn": above(0)},
        f"{DCGM}: MAX_NVLINK_CRC_ERROR",
        Severity.ISOLATE,
        _LINKS,
        "per second",
    ),
)
