"""The checks of the counters and modes of a GPU; those of links are in ``link_checks``. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import Findings, GpuEvidence, GrowthEvidence, judge_sum, read
from sentinel.burnin.checks.operator_limits import LOCKED, SAME_LIMIT
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu import HIGHEST_C, IMPOSSIBLE
from sentinel.protocol.gpu_names import device_of
from sentinel.protocol.views import ROW_IN_USE, FaultKind
from sentinel.units import format_size

TABLE = Table()

#: What never differs between two readings of one card, and what to call it.
_IDENTITY = {
    "serial": "serial number",
    "vbios": "VBIOS",
    "inforom": "InfoROM",
    "name": "model",
    "pci_bus_id": "PCI address",
    "memory_total": "memory",
}
#: What to do for each of the driver's recovery actions.
_RECOVERY = {
    "drain_and_reset": "RESET_GPU: drain the GPUs connected to it, then reset it.",
    "drain_p2p": "DRAIN_P2P: drain the GPUs connected to it.",
    "node_reboot": "RESTART_BM: reboot the host.",
    "system_reboot": "RESTART_BM: reboot the whole system.",
    "bus_reset": "RESET_GPU: reset the GPU's PCIe bus, or reboot.",
    "recover_imex_domain": "CONTACT_SUPPORT: recover the IMEX domain.",
}
#: Models with ECC of their memory, on which it is expected to be on (NVIDIA's data sheets).
DATA_CENTRE = re.compile(
    r"\b(Tesla|P100|V100|T4|A2|A10G?|A16|A30|A40|A100|A800|L4|L20|L40S?|H20|H100|H200|H800|GH200|"
    r"B100|B200|B300|GB200|GB300|P4|P40|L2|RTX PRO 6000 Blackwell Server)\b"
)
_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
#: By nvml.h, this reason alone may be a change of clocks: one of many readings proves nothing.
_ALONE = "hw_slowdown"


# --- rules of several checks -----------------------------------------------------------------


@TABLE.rule("total")
def _total(evidence: GpuEvidence, limits: Limits, *fields: str) -> Judgement:
    """Judge the sum of counters and flags at each reading."""
    return evidence.worst(lambda one: judge_sum(limits, partial(read, one), *fields), fields[0])


@TABLE.rule("below_maximum")
def _below_maximum(evidence: GpuEvidence, limits: Limits, field: str, *maxima: str) -> Judgement:
    """Judge how far the highest of all samples is below the first maximum that is declared."""
    declared = next((name for name in maxima if getattr(evidence.now, name) is not None), maxima[0])
    maximum = read(evidence.now, declared)
    known = evidence.samples(field) or [read(evidence.now, field)]
    highest = max((value for value in known if value <= HIGHEST_C), default=None)
    if highest == 0:
        return untested("it reads 0 C")
    if highest is not None:
        left = round(maximum - highest, 4)
        text = f"it reached {highest:g} C; the GPU declares {maximum} C ({declared})"
        judged = by_limits(left, limits, text + _errors(evidence, field))
        if max(known) <= HIGHEST_C or judged.status is Status.FAIL:
            return _unless_cut_hot(evidence, judged)
    return untested(IMPOSSIBLE.format(max(known)))


def _unless_cut_hot(evidence: GpuEvidence, found: Judgement) -> Judgement:
    """Judge heat without a load only if it stayed: what ran before may have left it."""
    if found.status is Status.PASS or not evidence.was_cut_hot:
        return found
    return untested(f"{found.evidence}; the run ended before it had ten minutes to cool")


def _errors(evidence: GpuEvidence, field: str) -> str:
    """Name the readings that do not count, or return nothing."""
    found = evidence.implausible(field)
    return (
        f"; not counted as implausible: {', '.join(f'{one:g} C' for one in found)}" if found else ""
    )


# --- the GPU ---------------------------------------------------------------------------------


@TABLE.check("gpu.lost")
def _gpu_lost(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Judge whether NVML called the GPU lost at any time."""
    evidence.now  # noqa: B018 - raises without readings
    lost = [reading.lost for reading in evidence.readings if not reading.unanswered]
    for loss in (*filter(None, lost), *evidence.losses()):
        return Judgement(status=Status.FAIL, value="lost", evidence=loss)
    for reading in evidence.readings:
        if reading.unanswered:
            return untested(reading.lost or "")
    if (why := evidence.now.why_unread) is not None:
        return untested(why)
    return Judgement(status=Status.PASS, value="readable")


@TABLE.check("gpu.whole")
def _gpu_whole(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Judge whether MIG divides the GPU."""

    def judge(one: Counters) -> Judgement:
        if read(one, "mig"):
            return untested(
                "MIG is enabled: its instances are not burned in; nvidia-smi -mig 0 makes it whole"
            )
        return Judgement(status=Status.PASS, value="whole")

    return evidence.worst(judge, "mig")


@TABLE.check("gpu.identity")
def _gpu_identity(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Compare the serial number, firmware, model, address and memory of all readings."""
    known = [one for one in evidence.readings if one.lost is None]
    for name, what in _IDENTITY.items():
        values = {_form(name, getattr(one, name)) for one in known}
        if len(values) > 1:
            return untested(f"its {what} was {' and '.join(sorted(values))}")
    now = evidence.now
    if now.serial is None:
        read(now, "vbios")
    return Judgement(status=Status.PASS, value=", ".join(filter(None, (now.serial, now.vbios))))


def _form(name: str, value: str | int | None) -> str:
    """Return a value of the identity in the one form in which it is compared."""
    if not value:
        return "not read"
    if name == "memory_total":
        return f"{value} bytes"
    if name == "pci_bus_id" and (device := device_of(str(value))) is not None:
        return "{:04x}:{:02x}:{:02x}".format(*device)
    return str(value)


@TABLE.check("recovery.action")
def _recovery_action(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Judge the driver's own recovery action."""

    def judge(one: Counters) -> Judgement:
        action = read(one, "recovery_action")
        status = Status.PASS if action == "none" else Status.FAIL
        return Judgement(status=status, value=action, action=_RECOVERY.get(action))

    found = evidence.worst(judge, "recovery_action")
    known = ROW_IN_USE if evidence.readings[-1].remap_pending else ""
    shown = evidence.withdrawn(FaultKind.RECOVERY, known)
    if not shown or found.status is Status.FAIL:
        return found
    return Judgement(status=Status.FAIL, value="withdrawn", evidence="; ".join(shown))


# --- memory ----------------------------------------------------------------------------------


@TABLE.check("memory.size")
def _memory_size(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Compare the size of the memory with the largest one of the model."""
    now = evidence.now
    own = read(now, "memory_total")
    others = [
        one.memory_total
        for one in evidence.twins
        if one.uuid != now.uuid and one.ecc == now.ecc and one.memory_total
    ]
    if not others:
        return not_applicable("no other GPU of its model has its size")
    most = max(others)
    text = f"{format_size(own)} of {format_size(most)}"
    return by_limits(min(1.0, own / most), limits, text)


@TABLE.check("ecc.mode")
def _ecc_mode(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Judge whether ECC is on where it should be."""

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


@TABLE.check("inforom.valid")
def _inforom_valid(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Judge the checksum of the InfoROM."""

    def judge(one: Counters) -> Judgement:
        valid = read(one, "inforom_valid")
        status, value = (Status.PASS, "valid") if valid else (Status.WARN, "corrupted")
        return Judgement(status=status, value=value)

    return evidence.worst(judge, "inforom_valid")


# --- clocks and temperatures -----------------------------------------------------------------


@TABLE.check("clocks.hardware_slowdown")
def _clocks_hardware_slowdown(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Judge the share of readings with a slowdown by the hardware, of all and of each phase."""
    judged = [_slowdown(*part, limits) for part in evidence.reasons_of_parts()]
    return min(judged, key=lambda one: one.status.rank)


def _slowdown(counted: Counter[str], readings: int, limits: Limits) -> Judgement:
    """Judge the share of some readings with a slowdown by the hardware."""
    found = {reason: counted[reason] for reason in _SLOWDOWNS if counted[reason]}
    text = ", ".join(f"{reason} in {count} of {readings}" for reason, count in found.items())
    most = max(found.values(), default=0)
    if found.keys() == {_ALONE} and most == 1 < readings:
        most, text = 0, f"{text} readings, as a change of clocks has it"
    judged = by_limits(most / readings, {"warn": limits["warn"]}, text)
    if most >= limits["fail_readings"].value and limits["fail"].broken_by(most / readings):
        return replace(judged, status=Status.FAIL)
    return judged


@TABLE.check("clocks.locked")
def _clocks_locked(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Judge the share of readings with locked clocks."""
    counted, readings = evidence.reasons()
    count = counted[LOCKED]
    return by_limits(count / readings, limits, f"{LOCKED} in {count} of {readings}")


@TABLE.check("temperature.limit")
def _temperature_limit(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Judge the least margin to the slowdown."""
    name = "temperature_margin_c"
    least = min(evidence.samples(name) or [read(evidence.now, name)])
    begins = evidence.now.slowdown_margin_c or 0
    # Not of the temperature that is read: two H100 of 78 C had margins of -2 and 6 C.
    margin = f"its margin, to the nearest limit of any sensor, fell to {least:g} C"
    shown = f"{margin}; slowdown begins at a margin of {begins} C{_errors(evidence, name)}"
    judged = by_limits(least - begins, limits, shown)
    if judged.status is not Status.FAIL:  # a margin is that of the same sensor
        evidence.must_be_possible("temperature_c")
    return _unless_cut_hot(evidence, judged)


# --- information -----------------------------------------------------------------------------


@TABLE.check("persistence.mode")
def _persistence_mode(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Say whether persistence mode is on."""
    on = read(evidence.now, "persistence")
    text = "on" if on else "off: each first open of the GPU takes 1 to 3 s"
    return Judgement(status=Status.PASS, value=int(on), evidence=text)


@TABLE.check("power.limit")
def _power_limit(evidence: GpuEvidence, _: Limits) -> Judgement:
    """Compare the lowest power limit with the default."""
    limit, default = read(evidence.now, "power_limit_w"), evidence.now.power_limit_default_w
    known = [value for reading in evidence.readings for value in [reading.power_limit_w] if value]
    limit = min([limit, *known, *filter(None, evidence.samples("power_limit_w"))])
    is_named = "power_limit_w" in evidence.expectation.of(evidence.now.name)
    if default is None or limit >= default * SAME_LIMIT or is_named:
        return Judgement(status=Status.PASS, value=limit)
    why = f"{limit:g} W is below the default of {default:g} W, so rates and power are lower"
    return Judgement(status=Status.WARN, value=limit, evidence=why)


@TABLE.check("daemon.findings")
def _daemon_findings(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """Judge the faults that daemons know, and wrong results; a burn-in judges these again."""
    found = evidence.findings
    if found is None:
        return not_applicable("no daemon of this user has verified it")
    if found.faults and not _was_reset(evidence, found):
        do = "sentinel health --acknowledge GPU --reason TEXT"
        action = (
            f"ISOLATE: follow the remedy of the fault; after a repair, `{do}` ends XIDs and errors."
        )
        faults = "; ".join(found.faults)
        return Judgement(status=Status.FAIL, value="known fault", evidence=faults, action=action)
    if found.unknown is not None and not found.wrong:
        return untested(found.unknown)
    if isinstance(evidence, GrowthEvidence):
        limits = {"warn": limits["fail"]}
    return by_limits(found.wrong, limits, "as `sentinel health` shows them")


def _was_reset(evidence: GpuEvidence, found: Findings) -> bool:
    """Check whether the GPU has been reset since a daemon that has ended found its faults."""
    # What daemons know was looked up when the last part of a run began.
    first = evidence.parts[-1][0] if isinstance(evidence, GrowthEvidence) else evidence.now
    if found.energy_j is None or first is None or first.energy_j is None:
        return False
    return first.energy_j < found.energy_j
