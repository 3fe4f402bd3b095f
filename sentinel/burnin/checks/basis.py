"""Where the limits of checks are from, and what to do about the faults that they find."""

from __future__ import annotations

from sentinel.burnin.checks.check import Action, Severity
from sentinel.protocol.xids import CATALOG

# --- where limits are from -------------------------------------------------------------------

OWN = "Sentinel"
NVML = "NVML"
#: common/DcgmGPUHardwareLimits.h of NVIDIA/DCGM.
DCGM = "DCGM 4.6.0, DcgmGPUHardwareLimits.h"
XID_48 = f"{CATALOG}: 48"
RMA = "NVIDIA, RMA policy for row remapping"
REPAIRS = "NVIDIA, GPU memory error management; imbue-ai/cluster-health"
TIMES = f"{NVML}: the driver's counters in ns; shares: {OWN}"
SAME_BITS = f"{OWN}: same inputs, kernels and model give the same bits"
DCGM_SHARE = "DCGM's rule: 0.75 of the measured rate"

# --- what to do ------------------------------------------------------------------------------

NOTHING = Action(Severity.NONE, "")

_RESET = "RESET_GPU: free the GPU and run `nvidia-smi --gpu-reset`, or reboot; if it recurs,"
RESET = Action(Severity.RESET, f"{_RESET} replace the card.")
RESET_48 = Action(Severity.RESET, f"WORKFLOW_XID_48, then {RESET.text}")
ISOLATE_48 = Action(Severity.ISOLATE, RESET_48.text)
_DIAGNOSE = "CONTACT_SUPPORT: run NVIDIA's field diagnostic; if it confirms the fault,"
RETURN = Action(Severity.ISOLATE, f"{_DIAGNOSE} replace the card.")
WATCH = Action(Severity.MONITOR, "IGNORE: watch whether they grow.")

_COOLING = "CHECK_MECHANICALS: check the air flow, the fans and the seating of the cooler."
HOT = Action(Severity.TRIAGE, _COOLING)
_BRAKE = f"{_COOLING} A power brake comes from the power supply or the chassis."
SLOWDOWN = Action(Severity.MONITOR, _BRAKE)
POWER = Action(
    Severity.TRIAGE,
    "CHECK_MECHANICALS: check the power supplies, the power cables and the chassis.",
)
_SEATING = "CHECK_MECHANICALS: reseat the card; check the slot, the riser and the cables."
SEATING = Action(Severity.TRIAGE, _SEATING)
REPLAYS = Action(Severity.MONITOR, _SEATING)
_LINKS = "WORKFLOW_NVLINK_ERR: check the bridge or the NVSwitches, then reset the GPU."
LINKS = Action(Severity.ISOLATE, _LINKS)
LINK_ERRORS = Action(Severity.TRIAGE, _LINKS)
_FABRIC = "RESTART_FM: check and restart nvidia-fabricmanager, then reset the GPU."
FABRIC = Action(Severity.ISOLATE, _FABRIC)

RETEST = "Run it again on an otherwise idle node; if it fails again, return the GPU."


def isolate(text: str) -> Action:
    """Build the action about a fault that is proven once it repeats."""
    return Action(Severity.ISOLATE, f"TRIAGE: {text} {RETEST}")


def compare(text: str) -> Action:
    """Build the action about a GPU that is slower than it should be."""
    return Action(Severity.TRIAGE, f"TRIAGE: {text} {RETEST}")


SLOW = compare("compare power, temperature and clocks.")
SLOW_MEMORY = compare("compare the memory clock and the corrected errors.")
