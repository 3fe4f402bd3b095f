"""The checks of the counters and modes of a GPU; those of links are in ``link_checks``. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from sentinel.burnin.checks import basis
from sentinel.burnin.checks.check import (
    Action,
    Judgement,
    Limits,
    Severity,
    Status,
    Table,
    Unjudged,
    above,
    at_least,
    at_most,
    below,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import (
    REPAIRS_PENDING,
    GpuEvidence,
    MomentEvidence,
    judge_sum,
    read,
)
from sentinel.protocol.counters import Counters
from sentinel.protocol.xids import CATALOG

TABLE = Table()
check = TABLE.check


# --- rules of several checks -----------------------------------------------------------------


def _total(evidence: GpuEvidence, limits: Limits, *fields: str) -> Judgement:
    """Judge the sum of counters and flags at each reading."""
    return evidence.worst(lambda one: judge_sum(limits, partial(read, one), *fields), fields[0])


def _below_maximum(evidence: GpuEvidence, limits: Limits, field: str, *maxima: str) -> Judgement:
    """Judge how far the highest of all samples is below the first maximum that is declared."""
    declared = next((name for name in maxima if getattr(evidence.now, name) is not None), maxima[0])
    maximum = read(evidence.now, declared)
    highest = max(evidence.samples(field) or [read(evidence.now, field)])
    if not highest:
        raise Unjudged(untested("it reads 0 C"))
    left = round(maximum - highest, 4)
    text = f"it reached {highest:g} C; the GPU declares {maximum} C ({declared})"
    text += _errors(evidence, field)
    return by_limits(left, limits, text)


def _errors(evidence: GpuEvidence, field: str) -> str:
    """Name the readings that do not count, or return nothing."""
    found = evidence.implausible(field)
    return (
        f"; not counted as implausible: {', '.join(f'{one:g} C' for one in found)}" if found else ""
    )


# --- the GPU ---------------------------------------------------------------------------------


@check(
    "gpu.lost",
    rule="fail if NVML calls it lost; not tested if a call for it hangs or crashes",
    source=f"{CATALOG}: 79",
    do=Action(
        Severity.ISOLATE, "RESTART_BM: drain the host and power-cycle it; look for XIDs in `dmesg`."
    ),
)
def _gpu_lost(evidence: GpuEvidence, _: Limits) -> Judgement:
    """The GPU can be read.

    Reads every call.
    """
    evidence.now  # noqa: B018 - raises without readings
    lost = [one.lost for one in evidence.readings if not one.unanswered]
    for loss in (*filter(None, lost), *evidence.losses()):
        return Judgement(status=Status.FAIL, value="lost", evidence=loss)
    for one in evidence.readings:
        if one.unanswered:
            return untested(one.lost or "")
    if (why := evidence.now.why_unread) is not None:
        return untested(why)
    return Judgement(status=Status.PASS, value="readable")


@check(
    "gpu.whole",
    rule="not tested with MIG",
    source=basis.OWN,
    do=basis.NOTHING,
)
def _gpu_whole(evidence: GpuEvidence, _: Limits) -> Judgement:
    """The GPU is not divided by MIG.

    Reads nvmlDeviceGetMigMode.
    """

    def judge(one: Counters) -> Judgement:
        if read(one, "mig"):
            return untested(
                "MIG is enabled: its instances are not burned in; nvidia-smi -mig 0 makes it whole"
            )
        return Judgement(status=Status.PASS, value="whole")

    return evidence.worst(judge, "mig")


_IDENTITY = {"serial": "serial number", "vbios": "VBIOS", "name": "model"}
_IDENTITY |= {"pci_bus_id": "PCI address"}


@check(
    "gpu.identity",
    rule="not tested if serial number, VBIOS, model or PCI address differ between two readings",
    source=basis.OWN,
    do=basis.NOTHING,
)
def _gpu_identity(evidence: GpuEvidence, _: Limits) -> Judgement:
    """It is the same card with the same firmware all the time.

    Reads nvmlDeviceGetSerial and nvmlDeviceGetVbiosVersion.
    """
    known = [one for one in evidence.readings if one.lost is None]
    for name, what in _IDENTITY.items():
        values = {getattr(one, name) for one in known}
        if len(values) > 1:
            found = " and ".join(sorted(str(value or "not read") for value in values))
            return untested(f"its {what} was {found}")
    now = evidence.now
    if now.serial is None:
        read(now, "vbios")
    return Judgement(status=Status.PASS, value=", ".join(filter(None, (now.serial, now.vbios))))


#: What to do for each of the driver's recovery actions.
_RECOVERY = {
    "drain_and_reset": "RESET_GPU: drain the GPUs connected to it, then reset it.",
    "drain_p2p": "DRAIN_P2P: drain the GPUs connected to it.",
    "node_reboot": "RESTART_BM: reboot the host.",
    "system_reboot": "RESTART_BM: reboot the whole system.",
    "bus_reset": "RESET_GPU: reset the GPU's PCIe bus, or reboot.",
    "recover_imex_domain": "CONTACT_SUPPORT: recover the IMEX domain.",
}


@check(
    "recovery.action",
    rule="fail unless none",
    source=f"{basis.NVML}: nvmlDeviceGpuRecoveryAction_t",
    do=basis.RESET,
)
def _recovery_action(evidence: GpuEvidence, _: Limits) -> Judgement:
    """The driver requires no recovery.

    Reads field 230, GET_GPU_RECOVERY_ACTION.
    """

    def judge(one: Counters) -> Judgement:
        action = read(one, "recovery_action")
        status = Status.PASS if action == "none" else Status.FAIL
        return Judgement(status=status, value=action, action=_RECOVERY.get(action))

    return evidence.worst(judge, "recovery_action")


# --- memory ----------------------------------------------------------------------------------

#: Models with ECC of their memory, on which it is expected to be on (NVIDIA's data sheets).
DATA_CENTRE = re.compile(
    r"\b(Tesla|P100|V100|T4|A2|A10G?|A16|A30|A40|A100|A800|L4|L20|L40S?|H20|H100|H200|H800|GH200|"
    r"B100|B200|B300|GB200|GB300)\b"
)


@check(
    "ecc.mode",
    rule="warn if off on a data-centre model, or off after the next reset",
    source=basis.OWN,
    do=Action(Severity.CONFIG, "RESET_GPU: run `nvidia-smi -e 1`, then reset the GPU."),
)
def _ecc_mode(evidence: GpuEvidence, _: Limits) -> Judgement:
    """ECC is on.

    Reads nvmlDeviceGetEccMode.
    """

    def judge(one: Counters) -> Judgement:
        if read(one, "ecc"):
            later = "" if one.ecc_pending in {None, True} else "off after the next reset"
            status = Status.WARN if later else Status.PASS
            return Judgement(status=status, value="on", evidence=later)
        if "ecc" in evidence.expectation.of(one.name):
            return Judgement(status=Status.PASS, value="off", evidence="as the expectation says")
        if not DATA_CENTRE.search(one.name):
            return Judgement(status=Status.PASS, value="off", evidence="not a data-centre model")
        return Judgement(status=Status.WARN, value="off")

    return evidence.worst(judge, "ecc")


@check("ecc.uncorrected", source=basis.XID_48, do=basis.RESET_48, warn=above(0))
def _ecc_uncorrected(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """No uncorrectable errors since the driver was loaded.

    Reads nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE).
    """
    return _total(evidence, limits, "ecc_uncorrected_total")


@check(
    "memory.sram_threshold",
    source=f"{basis.XID_48}, SRAM threshold",
    do=basis.RETURN,
    fail=above(0),
)
def _memory_sram_threshold(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Few uncorrectable SRAM errors.

    Reads nvmlDeviceGetSramEccErrorStatus, bThresholdExceeded.
    """
    return _total(evidence, limits, "sram_threshold_exceeded")


@check("memory.remap_failed", source=basis.RMA, do=basis.RETURN, fail=above(0))
def _memory_remap_failed(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Rows could be remapped.

    Reads nvmlDeviceGetRemappedRows.
    """
    return _total(evidence, limits, "remap_failed")


@check("memory.repair_pending", source=basis.REPAIRS, do=basis.RESET, warn=above(0))
def _memory_repair_pending(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """No repair of memory or of multiprocessors waits for a reset.

    Reads nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus,
    nvmlDeviceGetRepairStatus.
    """
    return _total(evidence, limits, *REPAIRS_PENDING)


@check("memory.unrepairable", source=basis.NVML, do=basis.RETURN, fail=above(0))
def _memory_unrepairable(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """All memory is repairable.

    Reads nvmlDeviceGetUnrepairableMemoryFlag_v1.
    """
    return _total(evidence, limits, "memory_unrepairable")


@check(
    "memory.bank_headroom",
    source=basis.RMA,
    do=Action(
        Severity.MONITOR,
        "CONTACT_SUPPORT: watch for XID 64; the card may have to be replaced soon.",
    ),
    warn=above(0),
)
def _memory_bank_headroom(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """All banks of memory have spare rows.

    Reads nvmlDeviceGetRowRemapperHistogram: banks with low or no availability.
    """
    return _total(evidence, limits, "remap_banks_low", "remap_banks_none")


@check(
    "memory.retired_pages",
    source=f"{basis.DCGM}: MAX_RETIRED_PAGES, SOFT_LIMIT",
    do=basis.RETURN,
    unit="pages",
    fail=at_least(63),
    warn=at_least(15),
)
def _memory_retired_pages(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Few pages are retired.

    Reads nvmlDeviceGetRetiredPages, both causes.
    """
    return _total(evidence, limits, "retired_corrected_total", "retired_uncorrected_total")


@check(
    "inforom.valid",
    rule="warn if its checksum is wrong",
    source=f"{basis.NVML}: NVML_ERROR_CORRUPTED_INFOROM",
    do=Action(Severity.TRIAGE, "CONTACT_SUPPORT: flash the InfoROM as the vendor says."),
)
def _inforom_valid(evidence: GpuEvidence, _: Limits) -> Judgement:
    """The InfoROM is intact.

    Reads nvmlDeviceValidateInforom.
    """

    def judge(one: Counters) -> Judgement:
        valid = read(one, "inforom_valid")
        status, value = (Status.PASS, "valid") if valid else (Status.WARN, "corrupted")
        return Judgement(status=status, value=value)

    return evidence.worst(judge, "inforom_valid")


# --- clocks and temperatures -----------------------------------------------------------------

_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


#: The reason of clocks that an operator has set.
LOCKED = "applications_clocks_setting"
#: By nvml.h, this reason alone may be a change of clocks: one of many readings proves nothing.
_ALONE = "hw_slowdown"


@check(
    "clocks.hardware_slowdown",
    source=f"{basis.OWN}; the number of readings: NVIDIA/NVSentinel, runbook gpu-power-brake",
    do=basis.SLOWDOWN,
    unit="of the readings",
    fail=above(0.05),
    fail_readings=at_least(3),
    warn=above(0),
)
def _clocks_hardware_slowdown(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """The hardware does not slow the clocks down.

    Reads nvmlDeviceGetCurrentClocksEventReasons, by bit.
    """
    counted, readings = evidence.reasons()
    found = {reason: counted[reason] for reason in _SLOWDOWNS if counted[reason]}
    if found.keys() == {_ALONE} and found[_ALONE] == 1 < readings:
        found = {}
    text = ", ".join(f"{reason} in {count} of {readings}" for reason, count in found.items())
    most = max(found.values(), default=0)
    judged = by_limits(most / readings, {"warn": limits["warn"]}, text)
    if most >= limits["fail_readings"].value and limits["fail"].broken_by(most / readings):
        return replace(judged, status=Status.FAIL)
    return judged


@check(
    "clocks.locked",
    source=f"{basis.NVML}: nvmlClocksEventReasonApplicationsClocksSetting",
    do=Action(
        Severity.CONFIG, "CONFIG: `nvidia-smi -rac` and `nvidia-smi -rgc` unlock the clocks."
    ),
    unit="of the readings",
    warn=above(0.5),
)
def _clocks_locked(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """No operator has locked the clocks.

    Reads nvmlDeviceGetCurrentClocksEventReasons, by bit.
    """
    counted, readings = evidence.reasons()
    count = counted[LOCKED]
    return by_limits(count / readings, limits, f"{LOCKED} in {count} of {readings}")


_MARGIN = f"; margin: {basis.OWN}"
_DECLARED = f"{basis.NVML}: NVML_TEMPERATURE_THRESHOLD"
_cool = TABLE.like(do=basis.HOT, unit="C left")


@_cool("temperature.gpu", source=f"{_DECLARED}_GPU_MAX{_MARGIN}", fail=below(0), warn=at_most(3))
def _temperature_gpu(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """The GPU stays below its maximum temperature.

    Reads nvmlDeviceGetTemperature, threshold GPU_MAX, or SLOWDOWN without one.
    """
    return _below_maximum(evidence, limits, "temperature_c", "maximum_c", "slowdown_c")


@_cool(
    "temperature.limit",
    source=f"NVIDIA/NVSentinel, runbook gpu-thermal-margin{_MARGIN}",
    fail=at_most(0),
    warn=below(5),
)
def _temperature_limit(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """The GPU stays away from its slowdown.

    Reads nvmlDeviceGetMarginTemperature, field 194.
    """
    name = "temperature_margin_c"
    least = min(evidence.samples(name) or [read(evidence.now, name)])
    begins = evidence.now.slowdown_margin_c or 0
    # Not of the temperature that is read: two H100 of 78 C had margins of -2 and 6 C.
    margin = f"its margin, to the nearest limit of any sensor, fell to {least:g} C"
    shown = f"{margin}; it slows down at {begins} C{_errors(evidence, name)}"
    return by_limits(least - begins, limits, shown)


@_cool(
    "temperature.memory",
    source=f"{_DECLARED}_MEM_MAX{_MARGIN}",
    fail=at_most(0),
    warn=at_most(5),
)
def _temperature_memory(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """The memory stays below its maximum temperature.

    Reads field 82, threshold MEM_MAX.
    """
    return _below_maximum(evidence, limits, "memory_temperature_c", "memory_maximum_c")


# --- information -----------------------------------------------------------------------------

#: Below this share of the default power limit, rates are not those of others.
SAME_LIMIT = 0.99


@check("persistence.mode", rule="information", source=basis.OWN, do=basis.NOTHING)
def _persistence_mode(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Persistence mode.

    Reads nvmlDeviceGetPersistenceMode.
    """
    on = read(evidence.now, "persistence")
    text = "on" if on else "off: each first open of the GPU takes 1 to 3 s"
    return Judgement(status=Status.PASS, value=int(on), evidence=text)


@check(
    "power.limit",
    rule="warn if it was below the default, and no expectation names it",
    source=basis.OWN,
    do=Action(Severity.CONFIG, "CONFIG: `nvidia-smi -pl WATTS` sets it to the default."),
    unit="W",
)
def _power_limit(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Power limit.

    Reads nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPowerManagementDefaultLimit.
    """
    limit, default = read(evidence.now, "power_limit_w"), evidence.now.power_limit_default_w
    known = [value for one in evidence.readings for value in [one.power_limit_w] if value]
    limit = min([limit, *known, *filter(None, evidence.samples("power_limit_w"))])
    is_named = "power_limit_w" in evidence.expectation.of(evidence.now.name)
    lower = default is not None and limit < default * SAME_LIMIT and not is_named
    text = f"below the default of {default:g} W, so rates and power are lower" if lower else ""
    return Judgement(status=Status.WARN if lower else Status.PASS, value=limit, evidence=text)


@check(
    "daemon.findings",
    source=basis.OWN,
    do=Action(
        Severity.ISOLATE,
        "TRIAGE: `sentinel history --events` has the findings. Burn the GPU in; if it fails"
        " again, return it.",
    ),
    unit="wrong",
    fail=above(0),
)
def _daemon_findings(evidence: MomentEvidence, limits: Limits) -> Judgement:
    """The stressors of a running daemon, and of those before it, have found nothing wrong.

    Reads what the daemon and those before it have verified.
    """
    if evidence.findings is None:
        return not_applicable("no daemon of this user answers")
    return by_limits(evidence.findings, limits, "as `sentinel health` shows them")
