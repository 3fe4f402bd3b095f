"""The checks of one moment: what the counters and modes of a GPU show without a load, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.burnin.checks.check import Check, Evidence, NodeEvidence, Severity
from sentinel.burnin.checks.counter_judges import distance, information, total
from sentinel.burnin.checks.link_judges import (
    bit_error_rate,
    fabric_health,
    fabric_state,
    inventory,
    links_active,
    under_load,
)
from sentinel.burnin.checks.state_judges import (
    daemon_findings,
    ecc_mode,
    hardware_slowdown,
    inforom,
    lost,
    persistence,
    power_limit,
    recovery,
)
from sentinel.burnin.checks.thresholds import Limits, above, at_least, at_most, below

DCGM = "NVIDIA/DCGM 4.6.0, common/DcgmGPUHardwareLimits.h"
XID_CATALOG = "NVIDIA, Analyzing Xid Errors with the Xid Catalog"
RMA = "NVIDIA, RMA policy for row remapping"
NVML = "NVML"
NVSENTINEL = "NVIDIA/NVSentinel, runbook gpu-thermal-margin"
OWN = "Sentinel"

_RESET = "RESET_GPU: free the GPU and run `nvidia-smi --gpu-reset`, or reboot."
_RETURN = (
    "CONTACT_SUPPORT: run NVIDIA's field diagnostic; if it confirms the fault, replace the card."
)
_SUPPORT = "CONTACT_SUPPORT: keep the output of `nvidia-bug-report.sh` and contact the vendor."
_COOLING = "CHECK_MECHANICALS: check the air flow, the fans and the seating of the cooler."
_SEATING = "CHECK_MECHANICALS: reseat the card; check the slot, the riser and the cables."
_LINKS = "WORKFLOW_NVLINK_ERR: check the bridge or the NVSwitches, then reset the GPU."
_FABRIC = "RESTART_FM: check and restart nvidia-fabricmanager, then reset the GPU."


_FLAG: Limits = {"fail": above(0)}
_FLAG_WARNS: Limits = {"warn": above(0)}


def _check(id_: str, title: str, reads: str, **more: Any) -> Check[Evidence]:
    return Check(id=id_, title=title, reads=reads, **more)


#: The checks of one GPU at one moment, in the order of the report.
MOMENT_CHECKS: tuple[Check[Evidence], ...] = (
    _check(
        "gpu.lost",
        "The GPU can be read",
        "every call",
        rule="fail if the GPU is lost, or a call for it hangs or crashes",
        source=f"{XID_CATALOG}: 79",
        severity=Severity.ISOLATE,
        action="RESTART_BM: drain the host and power-cycle it; look for XIDs in `dmesg`.",
        judge=lost,
    ),
    _check(
        "recovery.action",
        "The driver requires no recovery",
        "field 230, GET_GPU_RECOVERY_ACTION",
        rule="fail unless none",
        source=f"{NVML}: nvmlDeviceGpuRecoveryAction_t",
        severity=Severity.RESET,
        action=_RESET,
        judge=recovery,
    ),
    _check(
        "ecc.mode",
        "ECC is on",
        "nvmlDeviceGetEccMode",
        rule="warn if off on a data-centre model, or off after the next reset",
        source=OWN,
        severity=Severity.CONFIG,
        action="RESET_GPU: run `nvidia-smi -e 1`, then reset the GPU.",
        judge=ecc_mode,
    ),
    _check(
        "ecc.uncorrected",
        "No uncorrectable errors since the driver was loaded",
        "nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)",
        limits=_FLAG_WARNS,
        source=f"{XID_CATALOG}: 48",
        severity=Severity.RESET,
        action=f"WORKFLOW_XID_48, then {_RESET}",
        judge=total("ecc_uncorrected_total"),
    ),
    _check(
        "memory.sram_threshold",
        "Few uncorrectable SRAM errors",
        "nvmlDeviceGetSramEccErrorStatus, bThresholdExceeded",
        limits=_FLAG,
        source=f"{XID_CATALOG}: 48, SRAM threshold",
        severity=Severity.ISOLATE,
        action=_RETURN,
        judge=total("sram_threshold_exceeded"),
    ),
    _check(
        "memory.remap_failed",
        "Rows could be remapped",
        "nvmlDeviceGetRemappedRows",
        limits=_FLAG,
        source=RMA,
        severity=Severity.ISOLATE,
        action=_RETURN,
        judge=total("remap_failed"),
    ),
    _check(
        "memory.repair_pending",
        "No repair of memory or of multiprocessors waits for a reset",
        "nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus, "
        "nvmlDeviceGetRepairStatus",
        limits=_FLAG_WARNS,
        source="NVIDIA, GPU memory error management; imbue-ai/cluster-health",
        severity=Severity.RESET,
        action=_RESET,
        judge=total(
            "remap_pending", "retirement_pending", "channel_repair_pending", "tpc_repair_pending"
        ),
    ),
    _check(
        "memory.unrepairable",
        "All memory is repairable",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        limits=_FLAG,
        source=NVML,
        severity=Severity.ISOLATE,
        action=_RETURN,
        judge=total("memory_unrepairable"),
    ),
    _check(
        "memory.bank_headroom",
        "All banks of memory have spare rows",
        "nvmlDeviceGetRowRemapperHistogram: banks with low or no availability",
        limits=_FLAG_WARNS,
        source=RMA,
        severity=Severity.MONITOR,
        action="CONTACT_SUPPORT: watch for XID 64; the card may have to be replaced soon.",
        judge=total("remap_banks_low", "remap_banks_none"),
    ),
    _check(
        "memory.retired_pages",
        "Few pages are retired",
        "nvmlDeviceGetRetiredPages, both causes",
        limits={"fail": at_least(63), "warn": at_least(15)},
        source=f"{DCGM}: MAX_RETIRED_PAGES, SOFT_LIMIT",
        severity=Severity.ISOLATE,
        action=_RETURN,
        unit="pages",
        judge=total("retired_corrected_total", "retired_uncorrected_total"),
    ),
    _check(
        "inforom.valid",
        "The InfoROM is intact",
        "nvmlDeviceValidateInforom",
        rule="warn if its checksum is wrong",
        source=f"{NVML}: NVML_ERROR_CORRUPTED_INFOROM",
        severity=Severity.TRIAGE,
        action="CONTACT_SUPPORT: flash the InfoROM as the vendor says.",
        judge=inforom,
    ),
    _check(
        "clocks.hardware_slowdown",
        "The hardware does not slow the clocks down",
        "nvmlDeviceGetCurrentClocksEventReasons, by bit",
        limits=_FLAG_WARNS,
        source=OWN,
        severity=Severity.MONITOR,
        action=f"{_COOLING} A power brake comes from the power supply or the chassis.",
        unit="reasons",
        judge=hardware_slowdown,
    ),
    _check(
        "temperature.gpu",
        "The GPU is below its maximum temperature",
        "nvmlDeviceGetTemperature, threshold GPU_MAX",
        limits={"fail": below(0), "warn": at_most(3)},
        source=f"{NVML}: NVML_TEMPERATURE_THRESHOLD_GPU_MAX; margin: {OWN}",
        severity=Severity.MONITOR,
        action=_COOLING,
        unit="C left",
        judge=distance("temperature_c", "maximum_c"),
    ),
    _check(
        "temperature.limit",
        "The GPU is away from its slowdown",
        "nvmlDeviceGetMarginTemperature, field 194",
        limits={"fail": at_most(0), "warn": below(5)},
        source=f"{NVSENTINEL}; margin: {OWN}",
        severity=Severity.MONITOR,
        action=_COOLING,
        unit="C left",
        judge=distance("slowdown_margin_c", "temperature_margin_c"),
    ),
    _check(
        "temperature.memory",
        "The memory is below its maximum temperature",
        "field 82, threshold MEM_MAX",
        limits={"fail": at_most(0), "warn": at_most(5)},
        source=f"{NVML}: NVML_TEMPERATURE_THRESHOLD_MEM_MAX; margin: {OWN}",
        severity=Severity.MONITOR,
        action=_COOLING,
        unit="C left",
        judge=distance("memory_temperature_c", "memory_maximum_c"),
    ),
    _check(
        "pcie.generation",
        "The PCIe link has its full speed under load",
        "nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetMaxPcieLinkGeneration",
        rule="generations below the maximum of GPU and slot: {limits}; never on an idle GPU",
        limits=_FLAG,
        source="epilog-gpu-validator: an idle link is no evidence",
        severity=Severity.TRIAGE,
        action=_SEATING,
        judge=under_load(
            "pcie_generation", "pcie_generation_maximum", "pcie_generation_own_maximum"
        ),
    ),
    _check(
        "pcie.width",
        "The PCIe link has its full width under load",
        "nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth",
        rule="lanes below the maximum of GPU and slot: {limits}; never on an idle GPU",
        limits=_FLAG,
        source="epilog-gpu-validator: an idle link is no evidence",
        severity=Severity.TRIAGE,
        action=_SEATING,
        unit="lanes",
        judge=under_load("pcie_width", "pcie_width_maximum"),
    ),
    _check(
        "nvlink.inactive",
        "All NVLinks are active",
        "nvmlDeviceGetNvLinkState, of this GPU and its peers",
        rule="fewer links than a GPU of the same model: {limits}",
        limits=_FLAG,
        source="NVIDIA Health Validation: 0 inactive links",
        severity=Severity.ISOLATE,
        action=_LINKS,
        unit="links",
        judge=links_active,
    ),
    _check(
        "nvlink.bit_error_rate",
        "NVLinks transfer without errors",
        "field 220, NVLINK_COUNT_EFFECTIVE_BER",
        limits={"fail": above(1e-12)},
        source=f"{DCGM}: effective BER",
        severity=Severity.ISOLATE,
        action=_LINKS,
        judge=bit_error_rate,
    ),
    _check(
        "fabric.state",
        "The GPU is registered with the NVLink fabric",
        "nvmlDeviceGetGpuFabricInfoV",
        rule="fail unless completed; warn if in progress",
        source=f"{NVML}: nvmlGpuFabricState_t",
        severity=Severity.ISOLATE,
        action=_FABRIC,
        judge=fabric_state,
    ),
    _check(
        "fabric.health",
        "The NVLink fabric is healthy",
        "nvmlDeviceGetGpuFabricInfoV, healthSummary",
        rule="fail if unhealthy; warn at limited capacity",
        source=f"{NVML}: NVML_GPU_FABRIC_HEALTH_SUMMARY",
        severity=Severity.ISOLATE,
        action=_FABRIC,
        judge=fabric_health,
    ),
    _check(
        "persistence.mode",
        "Persistence mode",
        "nvmlDeviceGetPersistenceMode",
        rule="information",
        source=OWN,
        severity=Severity.NONE,
        action="",
        judge=information("persistence", persistence),
    ),
    _check(
        "power.limit",
        "Power limit",
        "nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPowerManagementDefaultLimit",
        rule="information",
        source=OWN,
        severity=Severity.NONE,
        action="",
        unit="W",
        judge=information("power_limit_w", power_limit),
    ),
)


#: The checks of one GPU by what a running daemon knows of it.
DAEMON_CHECKS: tuple[Check[Evidence], ...] = (
    _check(
        "daemon.findings",
        "The stressors of a running daemon, and of those before it, have found nothing wrong",
        "the daemon's status: what it has verified",
        limits=_FLAG,
        source=OWN,
        severity=Severity.ISOLATE,
        action="TRIAGE: `sentinel history --events` has the findings. Burn the GPU in; if it fails"
        " again, return it.",
        unit="wrong",
        judge=daemon_findings,
    ),
)


#: The checks of a node.
NODE_CHECKS: tuple[Check[NodeEvidence], ...] = (
    Check(
        id="node.inventory",
        title="NVML lists every GPU on the PCI bus",
        reads="/sys/bus/pci/devices, nvmlDeviceGetCount",
        limits=_FLAG,
        source=OWN,
        severity=Severity.ISOLATE,
        action=f"RESTART_BM: look for XIDs in `dmesg` and reboot. {_SUPPORT}",
        unit="missing",
        judge=inventory,
    ),
)


def known_limits(*groups: tuple[Check[Any], ...]) -> Mapping[str, Limits]:
    """Collect the default limits of checks by id, for a file of thresholds."""
    return {check.id: check.limits for group in groups for check in group if check.limits}
