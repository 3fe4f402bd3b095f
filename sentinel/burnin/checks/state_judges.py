"""Functions that judge the state and the modes of a GPU at one moment."""

from __future__ import annotations

import re
from typing import Any

from sentinel.burnin.checks.check import (
    Evidence,
    Judgement,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.counter_judges import read
from sentinel.burnin.checks.thresholds import Limits
from sentinel.protocol.counters import READ_FIELDS, Counters

#: Models on which ECC is expected to be on.
_DATA_CENTRE = re.compile(
    r"\b(Tesla|P100|V100|T4|A2|A10G?|A16|A30|A40|A100|A800|L4|L20|L40S?|H20|H100|H200|H800|GH200|"
    r"B100|B200|B300|GB200|GB300)\b"
)

#: What to do for each of the driver's recovery actions.
_RECOVERY = {
    "drain_and_reset": "RESET_GPU: drain the GPUs connected to it, then reset it.",
    "drain_p2p": "DRAIN_P2P: drain the GPUs connected to it.",
    "node_reboot": "RESTART_BM: reboot the host.",
    "system_reboot": "RESTART_BM: reboot the whole system.",
    "bus_reset": "RESET_GPU: reset the GPU's PCIe bus, or reboot.",
    "recover_imex_domain": "CONTACT_SUPPORT: recover the IMEX domain.",
}

_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def lost(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge whether the GPU could be read at all."""
    del limits
    for counters in (evidence.now, evidence.before):
        if counters.lost is not None:
            return Judgement(status=Status.FAIL, value="lost", evidence=counters.lost)
    if evidence.now.failed.keys() >= set(READ_FIELDS):
        return untested(next(iter(evidence.now.failed.values())))
    return Judgement(status=Status.PASS, value="readable")


def daemon_findings(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge whether a running daemon has found wrong results or memory on the GPU."""
    if evidence.findings is None:
        return not_applicable("no daemon of this user answers")
    return by_limits(evidence.findings, limits, "as `sentinel health` shows them")


def recovery(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge what the driver wants done with the GPU."""
    del limits
    action = read(evidence.now, "recovery_action")
    if isinstance(action, Judgement):
        return action
    status = Status.PASS if action == "none" else Status.FAIL
    return Judgement(status=status, value=action, action=_RECOVERY.get(action))


def ecc_mode(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge the ECC mode, now and after the next reset."""
    del limits
    now = evidence.now
    on = read(now, "ecc")
    if isinstance(on, Judgement):
        return on
    if on:
        later = "" if now.ecc_pending in {None, True} else "off after the next reset"
        return Judgement(status=Status.WARN if later else Status.PASS, value="on", evidence=later)
    if not _DATA_CENTRE.search(now.name):
        return Judgement(status=Status.PASS, value="off", evidence="not a data-centre model")
    return Judgement(status=Status.WARN, value="off")


def hardware_slowdown(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge by bit whether the hardware slows the clocks down at this moment."""
    reasons = read(evidence.now, "reasons")
    if isinstance(reasons, Judgement):
        return reasons
    found = [one for one in reasons if one in _REASONS]
    status = Status.WARN if limits["warn"].broken_by(len(found)) else Status.PASS
    return Judgement(status=status, value=len(found), evidence=", ".join(found))


def persistence(value: Any, counters: Counters) -> str:
    """Describe the persistence mode."""
    del counters
    return "on" if value else "off: each first open of the GPU takes 1 to 3 s"


def power_limit(value: Any, counters: Counters) -> str:
    """Describe a power limit below the default."""
    default = counters.power_limit_default_w
    if default is None or value >= default:
        return ""
    return f"below the default of {default:g} W, so rates and power are lower"


def inforom(evidence: Evidence, limits: Limits) -> Judgement:
    """Judge whether the checksum of the InfoROM is right."""
    del limits
    valid = read(evidence.now, "inforom_valid")
    if isinstance(valid, Judgement):
        return valid
    if valid:
        return Judgement(status=Status.PASS, value="valid")
    return Judgement(status=Status.WARN, value="corrupted")
